"""The configuration of a routed model for transformers, and the check that it is its code's own."""

from copy import deepcopy
from inspect import Parameter, signature
from typing import Any

from transformers import PretrainedConfig

from lightning_dar.checkpoint.hf_fields import SIZES, refuse_contradictions
from lightning_dar.residual.standard import Standard as Strategy


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


FORMAT, RESIDUAL, CODE = 1, "standard", ""  # `hf_export.py` writes the folder's own here


def check_made_for(config: RoutedConfig) -> None:
    """Raises ValueError where the config describes a model of other code."""
    wanted = config.lightning_dar
    if wanted is None:
        raise _refusal("has no 'lightning_dar' entry, which describes the model")
    residual = wanted["residual"]["name"]
    if wanted.get("format", FORMAT) != FORMAT:
        raise _refusal(f"has format {wanted['format']}, this code reads format {FORMAT}")
    if residual != RESIDUAL:
        raise _refusal(f"asks for residual strategy '{residual}', this code is of '{RESIDUAL}'")
    if wanted.get("code", CODE) != CODE:
        raise _refusal(f"belongs to other code of residual strategy '{residual}' ({wanted['code']}, this is {CODE})")
    unknown = sorted(set(wanted["residual"]["options"]) - _options())
    if unknown:
        raise _refusal(f"gives residual strategy '{residual}' options that it does not have: {', '.join(unknown)}")


def _options() -> set[str]:
    """The keyword-only arguments along the strategy's bases."""
    own = [parameter for base in Strategy.__mro__ for parameter in signature(base.__init__).parameters.values()]
    return {parameter.name for parameter in own if parameter.kind is Parameter.KEYWORD_ONLY}


def _refusal(why: str) -> ValueError:
    return ValueError(
        f"the model's config {why}; open its folder with AutoModelForCausalLM.from_pretrained and "
        "trust_remote_code=True, which takes the folder's own code"
    )
