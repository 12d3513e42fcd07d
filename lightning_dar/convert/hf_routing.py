"""A residual strategy whose parameters adapters can name, and a check that they named what there is."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn

from lightning_dar.residual.base import Shape
from lightning_dar.residual.standard import Standard as Strategy

WRAPPERS = ("base_layer", "original_module", "modules_to_save")  # what peft puts between a module and its parameters


class RoutingParameter(nn.Module):
    """One parameter of a strategy; calling it gives the tensor."""

    def __init__(self, weight: nn.Parameter):
        super().__init__()
        self.weight = weight

    def forward(self, _: None = None) -> Tensor:
        return self.weight


class AddressableStrategy(Strategy):
    """The strategy, with each of its own parameters, such as `query`, in a module `routing_parameters.query`.

    An adapter wraps modules and has no effect on a bare parameter; what the strategy reads here goes through the
    module, so through whatever wraps it.
    """

    def __init__(self, shape: Shape, **options: Any):
        super().__init__(shape, **options)
        parameters = dict(self.named_parameters(recurse=False))
        for name in parameters:
            delattr(self, name)
        modules = {name: RoutingParameter(weight) for name, weight in parameters.items()}
        self.routing_parameters = nn.ModuleDict(modules)

    def __getattr__(self, name: str) -> Any:
        modules = self.__dict__.get("_modules", {}).get("routing_parameters", ())
        return modules[name](None) if name in modules else super().__getattr__(name)

    @torch.no_grad()
    def reset_module(self, module: nn.Module) -> None:
        """Initialises the parameters of one module of the strategy; it can only do all at once, so others are kept."""
        own = {id(parameter) for parameter in module.parameters(recurse=False)}
        kept = [(parameter, parameter.clone()) for parameter in self.parameters() if id(parameter) not in own]
        self.reset_parameters()
        for parameter, value in kept:
            parameter.copy_(value)


def refuse_unknown_targets(model: nn.Module, configs: Mapping[str, Any]) -> None:
    """Raises ValueError where a peft configuration names a module or parameter that the model does not have; peft
    itself is silent as long as one other name fits."""
    modules = {_plain(name) for name, _ in model.named_modules(remove_duplicate=False)}
    parameters = {_plain(name) for name, _ in model.named_parameters(remove_duplicate=False)}
    for config in configs.values():
        for option, present in (
            ("target_modules", modules),
            ("modules_to_save", modules),
            ("target_parameters", parameters),
        ):
            names = getattr(config, option, None)
            if isinstance(names, str):  # a pattern, of which peft says whether anything fits
                continue
            for name in names or ():
                if not any(f".{known}".endswith(f".{name}") for known in present):
                    raise ValueError(_unknown(option, name, present))


def _unknown(option: str, name: str, present: set[str]) -> str:
    """The message: the name, and the nearest, or all that there are."""
    length = 2 if option == "target_parameters" else 1
    known = sorted({".".join(path.split(".")[-length:]) for path in present if not path.split(".")[-1].isdigit()})
    known = [path for path in known if path and "lora_" not in path]
    near = get_close_matches(name, known, n=1) or [path for path in known if path.split(".")[0] == name.split(".")[-1]]
    hint = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(known)}"
    return f"{option}: this model has nothing named '{name}'; {hint}"


def _plain(name: str) -> str:
    """The name before peft wrapped anything."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)
