"""A routed model's configuration for transformers. `hf_export.py` copies this file into the folders it writes."""

from typing import Any

from transformers import PreTrainedConfig


class RoutedConfig(PreTrainedConfig):
    """`lightning_dar` describes the model: its architecture and its residual strategy. The rest is for transformers."""

    model_type = "lightning_dar"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012

    def __init__(self, lightning_dar: dict[str, Any] | None = None, **kwargs: Any):
        self.lightning_dar = lightning_dar
        super().__init__(**kwargs)
