"""What the code in an exported folder was written for, and the check that a config asks for nothing else."""

from inspect import Parameter, signature

from lightning_dar.convert.hf_configuration import RoutedConfig
from lightning_dar.residual.standard import Standard as Strategy

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
