"""A checkpoint under another residual strategy: which tensors it gains or loses, and whether it stays what it was."""

from dataclasses import replace

import torch

from lightning_dar.checkpoint.description import describe
from lightning_dar.checkpoint.load import Checkpoint, build_on_meta
from lightning_dar.checkpoint.tensors import InMemory, Joined, Tensors
from lightning_dar.errors import DataError, UsageError
from lightning_dar.residual import ResidualConfig, Shape, build_residual
from lightning_dar.residual.build import checked_options
from lightning_dar.residual.registry import residual_class
from lightning_dar.residual.routed import AdditiveResidual, RoutedResidual

PREFIX = "residual."


def rewire(source: Checkpoint, wanted: ResidualConfig | None, allow_disturbance: bool = False) -> Checkpoint:
    """`source` with the strategy `wanted`, None for its own; new routing parameters are freshly initialised.

    An additive strategy gets a zero gate unless its options say otherwise: the network then computes what it did.

    Raises:
        UsageError: a strategy that changes what the network computes, without `allow_disturbance`; another
            routing than the source's; back to standard where a gate has moved.
        DataError: a strategy whose sublayers have parameters that the source lacks.
    """
    if wanted is None:
        return source
    own, wanted = source.residual, _typed(wanted)
    if wanted.name == own.name and all(own.options.get(key) == value for key, value in wanted.options.items()):
        return source
    if wanted.name == "standard":
        return _unrouted(source, wanted)
    if source.residual.name != "standard":
        raise UsageError(
            f"model.residual.name={wanted.name}: '{source.path}' is routed by {source.residual.name} already; leave "
            "the option out to keep that, or convert to standard first, which needs every gate to be zero"
        )
    wanted = _with_gate(wanted)
    if not allow_disturbance and _disturbs(wanted, source):
        raise UsageError(
            f"model.residual.name={wanted.name} with options {wanted.options or 'unset'} changes what the network "
            "computes; use an additive strategy with gate alpha, or --allow-disturbance to convert all the same"
        )
    return _routed(source, wanted)


def shape_of(checkpoint: Checkpoint) -> Shape:
    config = checkpoint.config
    return Shape(num_layers=config.num_layers, hidden_size=config.hidden_size, eps=config.norm_eps)


def _typed(wanted: ResidualConfig) -> ResidualConfig:
    return replace(wanted, options=checked_options(wanted, residual_class(wanted.name)))


def _with_gate(wanted: ResidualConfig) -> ResidualConfig:
    if not issubclass(residual_class(wanted.name), AdditiveResidual):
        return wanted
    return replace(wanted, options={"gate": "alpha", **wanted.options})


def _disturbs(wanted: ResidualConfig, source: Checkpoint) -> bool:
    """Whether it surely does; of a plugin's strategy only the comparison of logits can tell."""
    residual = build_residual(wanted, shape_of(source))
    return isinstance(residual, RoutedResidual) and getattr(residual, "gate", None) is None


def _routed(source: Checkpoint, wanted: ResidualConfig) -> Checkpoint:
    dtype = source.tensors.infos["embed.weight"].dtype
    residual = build_residual(wanted, shape_of(source))
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        residual.reset_parameters()
        if getattr(residual, "gate", None) is not None and getattr(residual, "null_source", None) is not None:
            # Behind a zero gate a null source may be anything; at zero the two would keep each other there at site 0.
            torch.nn.init.normal_(residual.null_source, std=source.config.init_std)
    fresh = InMemory({f"{PREFIX}{name}": tensor.to(dtype) for name, tensor in residual.state_dict().items()})
    tensors = Joined(source.tensors, fresh)
    needed = build_on_meta(source.config, wanted).state_dict()
    problems = [f"it needs {name}" for name in needed if name not in tensors.infos]
    problems += [f"it has no {name}" for name in tensors.infos if name not in needed]
    if problems:
        raise DataError(f"strategy {wanted.name} builds other sublayers than '{source.path}': {'; '.join(problems)}")
    return _described(source, wanted, tensors)


def _unrouted(source: Checkpoint, wanted: ResidualConfig) -> Checkpoint:
    own = [name for name in source.tensors.infos if name.startswith(PREFIX)]
    gate = source.tensors.read(f"{PREFIX}gate") if f"{PREFIX}gate" in own else None
    if gate is None or gate.any():
        moved = "has no gates" if gate is None else f"has {int(gate.count_nonzero())} gates that are not zero"
        raise UsageError(
            f"model.residual.name=standard: '{source.path}' is routed by {source.residual.name} and {moved}, so it "
            "would compute something else without its routing; leave the option out to keep it"
        )
    tensors = Joined(source.tensors)
    for name in own:
        del tensors.infos[name]
    return _described(source, wanted, tensors)


def _described(source: Checkpoint, residual: ResidualConfig, tensors: Tensors) -> Checkpoint:
    built, known = build_residual(residual, shape_of(source)), source.description
    description = describe(source.config, built, residual, known["tokenizer"], known.get("hf_config"))
    return replace(source, description=description, tensors=tensors)
