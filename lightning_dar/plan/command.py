"""The `plan` command: what a run will need, before it is queued."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from jsonargparse import Namespace

from lightning_dar.errors import UsageError
from lightning_dar.plan.duration import HIGH, LOW
from lightning_dar.plan.memory import SPARE
from lightning_dar.plan.run_options import add_run_config, architecture_of, only_read, strategy_of
from lightning_dar.plan.setting import DEVICES, MODES, Setting, device_by_name
from lightning_dar.residual import ResidualConfig, available_residuals
from lightning_dar.residual.build import with_defaults
from lightning_dar.residual.registry import residual_class
from lightning_dar.run.parser import PlainParser, add_plugins, table, use_plugins

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


MORE = (ResidualConfig(name="attnres", options={"granularity": "sublayer"}),)
"""Shown beside every strategy with its defaults."""


def make_parser() -> PlainParser:
    parser = PlainParser(
        description="Reckon what a run will need: parameters, FLOPs, memory, depth reads, communication, time.",
        epilog="Reads the configs of fit. Rows: standard, every other strategy with its default options, and the "
        "config's own. What is assumed is in docs/plan.md.",
    )
    add_run_config(parser)
    parser.add_argument("--gpus", type=int | None, default=None, help="In all; default: trainer.devices x num_nodes.")
    parser.add_argument("--gpu", type=str, default="h100", help=f"Kind: {', '.join(DEVICES)}.")
    parser.add_argument("--gpus_per_node", type=int, default=8, help="GPUs that have fast links to each other.")
    parser.add_argument(
        "--tokens",
        type=float | None,
        default=None,
        help="To train on, such as 1e12; default: those of trainer.max_steps, else 20 a parameter.",
    )
    parser.add_argument("--json", action="store_true", help="Print everything as JSON.")
    add_plugins(parser)
    return parser


def run(args: list[str]) -> None:
    """Runs the command. Raises UsageError or DataError for bad input."""
    parser = make_parser()
    parser.asked = args
    options = parser.parse_args(only_read(args))
    use_plugins(options.plugins)
    from lightning_dar.plan.plan import plan

    setting, residual = _setting(options)
    tokens = _tokens(options, setting)
    plans, left_out = [], {}
    for row in _rows(residual):
        try:
            plans.append(plan(setting, row, tokens))
        except UsageError as error:
            if row == residual:
                raise
            left_out[row.name] = str(error)
    if options.json:
        print(json.dumps(_report(setting, plans, left_out), indent=2, allow_nan=False))
    else:
        print("\n".join(lines(setting, plans, left_out)))


def _setting(options: Namespace) -> tuple[Any, ResidualConfig]:
    from lightning_dar.plan.setting import Setting

    config, residual = architecture_of(options)
    gpus = _gpus(options)
    setting = Setting(
        config=config,
        seq_len=options.data.seq_len,
        batch_size=options.data.batch_size,
        accumulate=options.trainer.accumulate_grad_batches,
        precision=str(options.trainer.precision or "32-true"),
        strategy=strategy_of(options, gpus),
        checkpointing=options.model.activation_checkpointing,
        optimizer=options.model.optimizer.name,
        gpus=gpus,
        gpus_per_node=options.gpus_per_node,
        device=device_by_name(options.gpu),
    )
    return setting, residual


def _gpus(options: Namespace) -> int:
    if options.gpus is not None:
        return options.gpus
    devices = options.trainer.devices
    if isinstance(devices, list):
        return len(devices) * options.trainer.num_nodes
    devices = str(devices)
    if devices not in ("auto", "-1") and not devices.isdecimal():
        raise UsageError(f"trainer.devices={devices}: plan takes a number; give --gpus")
    return (int(devices) if devices.isdecimal() else 1) * options.trainer.num_nodes


def _tokens(options: Namespace, setting: Any) -> float | None:
    """None stands for 20 a parameter."""
    if options.tokens is not None and not 0 < options.tokens < float("inf"):
        raise UsageError(f"--tokens {options.tokens}: must be finite and positive")
    if options.tokens is None and options.trainer.max_steps > 0:
        return float(options.trainer.max_steps * setting.tokens_per_step)
    return options.tokens


def _rows(own: ResidualConfig) -> Iterator[ResidualConfig]:
    """`standard` first, and each once."""
    names = ["standard", *(name for name in available_residuals() if name != "standard")]
    shown: list[ResidualConfig] = []
    for row in (*(ResidualConfig(name=name) for name in names), *MORE, own):
        row = replace(row, depth_read=own.depth_read)
        complete = with_defaults(row, residual_class(row.name))
        if complete not in shown:
            shown.append(complete)
            yield row


def _report(setting: Any, plans: list[dict[str, Any]], left_out: dict[str, str]) -> dict[str, Any]:
    from dataclasses import asdict

    from lightning_dar.plan.duration import HIGH, LOW
    from lightning_dar.plan.memory import SPARE

    assumed = {"low": asdict(LOW), "high": asdict(HIGH), "memory_spared": SPARE}
    return {"setting": asdict(setting), "assumptions": assumed, "strategies": plans, "left_out": left_out}
