"""A routed model's configuration for transformers. It travels in the file that `hf_export.py` writes."""

from copy import deepcopy
from typing import Any

from transformers import PretrainedConfig

from lightning_dar.checkpoint.hf_fields import SIZES, refuse_contradictions


class RoutedConfig(PretrainedConfig):
    """`lightning_dar` describes the model: its architecture and its residual strategy. The sizes beside it, under the
    names that transformers knows, are the same ones: setting one of them sets the description's."""

    model_type = "lightning_dar"
    keys_to_ignore_at_inference = ["past_key_values", "cache"]  # noqa: RUF012
    rope_parameters = None  # transformers 5 keeps the rotary embeddings here

    def __init__(self, lightning_dar: dict[str, Any] | None = None, use_cache: bool = True, **kwargs: Any):
        """Raises ValueError for fields that contradict the description."""
        self.lightning_dar = deepcopy(lightning_dar)
        self.use_cache = use_cache
        if lightning_dar is not None:
            architecture = lightning_dar["architecture"]
            refuse_contradictions(kwargs, architecture)
            sizes = {name: architecture[ours] for name, ours in SIZES.items() if ours in architecture}
            kwargs = {**sizes, **kwargs}
        super().__init__(**kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in SIZES and self.lightning_dar is not None:
            self.lightning_dar["architecture"][SIZES[name]] = value

    def checked_architecture(self) -> dict[str, Any]:
        """The architecture that a model is built with. Raises ValueError where a field says something else."""
        refuse_contradictions(vars(self), self.lightning_dar["architecture"])
        return self.lightning_dar["architecture"]
