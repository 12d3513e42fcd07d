"""A residual strategy whose parameters adapters can name, and a check that they named what there is."""

from collections.abc import Iterable, Iterator, Mapping
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
    modules = {_plain(name) for name, _ in model.named_modules()}
    parameters = {_plain(name) for name, _ in model.named_parameters()}
    for config in configs.values():
        unknown = [
            *_missing(getattr(config, "target_modules", None), modules),
            *_missing(getattr(config, "modules_to_save", None), modules),
            *_missing(getattr(config, "target_parameters", None), parameters),
        ]
        if unknown:
            last = sorted({name.split(".")[-1] for name in modules} - {""})
            near = [match for name in unknown for match in get_close_matches(name, last, n=1)]
            raise ValueError(
                f"the adapter names {', '.join(unknown)}, which this model does not have"
                + (f"; did you mean {', '.join(near)}?" if near else "")
                + f" It has {', '.join(name for name in last if not name.isdigit())}"
            )


def _missing(names: Iterable[str] | str | None, present: set[str]) -> Iterator[str]:
    if names is None or isinstance(names, str):  # one string is a pattern, of which peft says whether anything fits
        return
    yield from (name for name in names if not any(f".{known}".endswith(f".{name}") for known in present))


def _plain(name: str) -> str:
    """The name before peft wrapped anything."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)
