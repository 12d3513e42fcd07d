"""plan: what a run will need and take, for every residual strategy side by side; by arithmetic, without a GPU."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from jsonargparse import Namespace

from lightning_dar.errors import UsageError
from lightning_dar.plan.devices import DEVICES, device_by_name
from lightning_dar.plan.run_options import add_run_config, architecture_of, only_read, strategy_of
from lightning_dar.residual import ResidualConfig, available_residuals
from lightning_dar.residual.build import with_defaults
from lightning_dar.residual.registry import residual_class
from lightning_dar.run.parser import PlainParser, add_plugins, use_plugins

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
        from lightning_dar.plan.tables import lines

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
