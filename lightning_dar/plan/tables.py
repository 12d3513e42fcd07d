"""A plan, as tables for the terminal."""

from collections.abc import Iterator, Sequence
from typing import Any

from lightning_dar.plan.activations import MODES
from lightning_dar.plan.duration import HIGH, LOW
from lightning_dar.plan.memory import SPARE
from lightning_dar.plan.setting import Setting
from lightning_dar.run.parser import table

GIB, GB = 2**30, 10**9
Plan = dict[str, Any]


def lines(setting: Setting, plans: Sequence[Plan], left_out: dict[str, str]) -> Iterator[str]:
    """All that is printed."""
    yield _head(setting)
    for title, head, row in (
        ("Size", ("parameters", "routing", "GFLOPs/token", "of it depth reads"), _size),
        ("Memory of each GPU, GiB", _MEMORY, _memory),
        ("Activations and sources by checkpointing, GiB", MODES, _held),
        ("Depth reads and communication, each step and GPU", _TRAFFIC, _traffic),
        ("Speed", ("tokens/s", "of peak", "step", "tokens", "time"), _speed),
    ):
        yield f"\n{title}"
        yield table(["strategy", *head], [[_name(plan), *row(plan)] for plan in plans])
    yield ""
    yield from _notes(setting, plans, left_out)


def _head(setting: Setting) -> str:
    config = setting.config
    return (
        f"{config.num_layers} layers x {config.hidden_size}, vocabulary {config.vocab_size:,}; {setting.gpus} x "
        f"{setting.device.name} ({setting.strategy}), {setting.precision}, checkpointing {setting.checkpointing}; "
        f"{setting.batch_size} x {setting.seq_len} tokens x {setting.accumulate} micro-batches, "
        f"{setting.tokens_per_step:,} tokens/step"
    )


def _name(plan: Plan) -> str:
    return " ".join([plan["strategy"], *(f"{key}={value}" for key, value in plan["options"].items())])


def _size(plan: Plan) -> list[str]:
    counted, flops = plan["parameters"], plan["flops_per_token"]
    total = (flops["model"] + flops["depth_reads"]) / 1e9
    return [f"{counted['total']:,}", f"{counted['routing']:,}", f"{total:,.2f}", f"{flops['depth_reads_share']:.2%}"]


_PARTS = ("weights", "gradients", "optimizer", "activations", "sources", "logits", "work", "total")
_MEMORY = (*_PARTS, "of")


def _memory(plan: Plan) -> list[str]:
    needed = plan["memory"]
    return [*(f"{needed[part] / GIB:.1f}" for part in _PARTS), f"{needed['usable'] / GIB:.1f}"]


def _held(plan: Plan) -> list[str]:
    return [f"{plan['held'][mode] / GIB:.1f}" for mode in MODES]


_TRAFFIC = ("reads see", "read GB", "read time", "share of step", "ddp sends GB", "in", "fsdp2 sends GB", "in")


def _traffic(plan: Plan) -> list[str]:
    read = plan["depth_read"]
    rates = read["seconds_per_step"]
    shares = [taken["depth_reads"] / sum(taken.values()) for taken in plan["speed"]["step_seconds"]]
    return [
        f"{read['sources_read']:,}",
        f"{read['bytes_per_step'] / GB:,.1f}",
        _range(rates, _seconds) if rates[0] else "-",
        _range(shares, lambda share: f"{share:.1%}") if rates[0] else "-",
        *_sent(plan["communication"]["ddp"]),
        *_sent(plan["communication"]["fsdp2"]),
    ]


def _sent(exchange: dict[str, float]) -> list[str]:
    return [f"{exchange['bytes'] / GB:,.1f}", _seconds(exchange["seconds"]) if exchange["bytes"] else "-"]


def _speed(plan: Plan) -> list[str]:
    speed = plan["speed"]
    return [
        _range(speed["tokens_per_second"], lambda rate: f"{rate:,.0f}"),
        _range(speed["utilisation"], lambda share: f"{share:.0%}"),
        _range([sum(taken.values()) for taken in speed["step_seconds"]], _seconds),
        f"{speed['tokens']:.3g}",
        _range(speed["seconds"], _duration),
    ]


def _range(values: Sequence[float], form: Any) -> str:
    return " to ".join(form(value) for value in sorted(values))


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.0f} s"


def _notes(setting: Setting, plans: Sequence[Plan], left_out: dict[str, str]) -> Iterator[str]:
    for plan in plans:
        if not plan["fits"]:
            yield _does_not_fit(setting, plan)
    for name, reason in left_out.items():
        yield f"{name}: not shown with its default options: {reason}"
    peak, rate = setting.device.peak(setting.precision) / 1e12, setting.device.bandwidth / 1e12
    yield (
        f"Assumed: products at {LOW.products:.0%} to {HIGH.products:.0%} of {peak:g} TFLOP/s, memory at "
        f"{LOW.bandwidth:.0%} to {HIGH.bandwidth:.0%} of {rate:.3g} TB/s, communication in full to hidden behind "
        f"products, {SPARE:.0%} of the GPU's memory to spare. A model, not a measurement: docs/plan.md."
    )


def _does_not_fit(setting: Setting, plan: Plan) -> str:
    needed = plan["memory"]
    says = f"{_name(plan)}: does not fit, {needed['total'] / GIB:.1f} of {needed['usable'] / GIB:.1f} GiB"
    found = plan["nearest"]
    if found is None:
        return f"{says}; nothing tried does"
    changes = [
        f"{option} {value}"
        for option, value, present in (
            ("--gpu", found["gpu"], setting.device.name),
            ("--gpus", found["gpus"], setting.gpus),
            ("--trainer.strategy", found["strategy"], setting.strategy),
            ("--model.activation_checkpointing", found["checkpointing"], setting.checkpointing),
            ("--data.batch_size", found["batch_size"], setting.batch_size),
            ("--trainer.accumulate_grad_batches", found["accumulate"], setting.accumulate),
        )
        if value != present
    ]
    return f"{says}; fits with {' '.join(changes)}: {found['memory'] / GIB:.1f} GiB"
