"""What a run's sizes depend on, read from the configs that `fit` takes, without Lightning."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any, Literal

from jsonargparse import Namespace

from lightning_dar.checkpoint.load import open_checkpoint
from lightning_dar.errors import UsageError
from lightning_dar.model import TransformerConfig, resolve_config
from lightning_dar.residual import ResidualConfig
from lightning_dar.run.explain import nearest, place_of, read_config
from lightning_dar.run.parser import PlainParser
from lightning_dar.text.tokenizer import bpe_size, load_tokenizer

SIZES = tuple(signature(resolve_config).parameters)
READ = {
    "model": (*SIZES, "residual", "optimizer", "init_from", "freeze_base", "activation_checkpointing"),
    "data": ("seq_len", "batch_size", "tokenizer"),
    "trainer": ("precision", "accumulate_grad_batches", "devices", "num_nodes", "strategy", "max_steps"),
    "plugins": None,
}
NOT_READ = {
    "model": ("compile", "non_finite", "max_skipped_steps"),
    "data": ("source", "mix", "dir", "num_workers", "seed", "text_field", "val_fraction", "val_windows"),
    "trainer": (
        "accelerator",
        "callbacks",
        "check_val_every_n_epoch",
        "default_root_dir",
        "gradient_clip_val",
        "limit_val_batches",
        "log_every_n_steps",
        "logger",
        "max_epochs",
        "num_sanity_val_steps",
        "val_check_interval",
    ),
}
"""What changes neither sizes nor, as far as is reckoned, times. `fit` knows more, and is asked about other keys."""
SECTIONS = (*READ, "seed_everything", "domains", "ckpt_path", "weights")


def add_run_config(parser: PlainParser) -> None:
    """The options of `fit` that matter here, under their names, and `--config`."""
    parser.add_argument("--config", action="config", help="Config of a run, as for fit. Repeat it to add overlays.")
    parser.add_function_arguments(resolve_config, "model")
    parser.add_argument("--model.residual", type=ResidualConfig, default=ResidualConfig(), help="As for fit.")
    parser.add_argument("--model.optimizer.name", type=Literal["adamw", "muon"], default="adamw", help="As for fit.")
    parser.add_argument("--model.init_from", type=str | None, default=None, help="As for fit: its sizes.")
    parser.add_argument("--model.freeze_base", type=bool, default=False, help="As for fit; not planned for.")
    parser.add_argument(
        "--model.activation_checkpointing",
        type=str | float,
        default="none",
        help="As for fit: none, sublayer, full, or a share of the layers.",
    )
    parser.add_argument("--data.seq_len", type=int, default=256, help="Tokens a window.")
    parser.add_argument("--data.batch_size", type=int, default=8, help="Windows a GPU and micro-batch.")
    parser.add_argument(
        "--data.tokenizer", type=str, default="bpe:4096", help="Its size, where model.vocab_size is not set."
    )
    parser.add_argument("--trainer.precision", type=str | int | None, default=None, help="Default: 32-true.")
    parser.add_argument("--trainer.accumulate_grad_batches", type=int, default=1, help="Micro-batches a step.")
    parser.add_argument("--trainer.devices", type=int | str | list[int], default="auto", help="GPUs a node.")
    parser.add_argument("--trainer.num_nodes", type=int, default=1, help="Nodes.")
    parser.add_argument("--trainer.strategy", type=str | dict[str, Any], default="auto", help="As for fit.")
    parser.add_argument("--trainer.max_steps", type=int, default=-1, help="Optimizer steps.")


def only_read(args: Sequence[str]) -> list[str]:
    """The same arguments, each config file replaced by the part of it that is read here. Raises UsageError."""
    return list(_with_configs(list(args)))


def _with_configs(args: list[str]) -> Iterator[str]:
    while args:
        arg = args.pop(0)
        name, given, path = arg.partition("=")
        if name != "--config" or (not given and not args):
            yield arg
        else:
            yield f"--config={json.dumps(_part(path if given else args.pop(0)))}"


def _part(path: str) -> dict[str, Any]:
    content = read_config(path)
    for key in content:
        if key not in SECTIONS:
            raise UsageError(f"--config {path}: fit has no such section: {key}{nearest(key, SECTIONS)}")
    for section in NOT_READ:
        _check_keys(path, section, content.get(section, {}))
    part = {}
    for section, keys in READ.items():
        if section in content:
            own = content[section]
            part[section] = own if keys is None else {key: own[key] for key in keys if key in own}
    optimizer = part.get("model", {}).pop("optimizer", None)
    if isinstance(optimizer, dict) and "name" in optimizer:  # its rates change nothing here
        part["model"]["optimizer"] = {"name": optimizer["name"]}
    return part


def _check_keys(path: str, section: str, own: dict[str, Any]) -> None:
    """Raises UsageError for a key that `fit` does not have: it would be read by nobody."""
    if own.keys() <= {*READ[section], *NOT_READ[section]}:
        return
    from lightning.pytorch import Trainer  # seconds, for the rare keys alone

    from lightning_dar.text import TextData
    from lightning_dar.training import LanguageModel

    made = {"trainer": Trainer, "data": TextData, "model": LanguageModel}[section]
    known = {*signature(made).parameters, *READ[section]}
    for key in own.keys() - known:
        place = place_of(f"{section}.{key}", ["--config", path])
        raise UsageError(f"{place}: {section}.{key}: fit has no such option{nearest(key, known, section + '.{}')}")


def architecture_of(options: Namespace) -> tuple[TransformerConfig, ResidualConfig]:
    """Sizes and strategy that the options name. Raises UsageError, and DataError for a checkpoint to start from."""
    model = options.model
    if model.freeze_base:
        raise UsageError("model.freeze_base: plan reckons with training all parameters; set it to false")
    residual = ResidualConfig(**vars(model.residual))
    if model.init_from is not None:
        checkpoint = open_checkpoint(model.init_from)
        return checkpoint.config, replace(checkpoint.residual, depth_read=residual.depth_read)
    sizes = {name: getattr(model, name) for name in SIZES}
    config = resolve_config(
        **{name: value.as_dict() if isinstance(value, Namespace) else value for name, value in sizes.items()}
    )
    return replace(config, vocab_size=config.vocab_size or _vocabulary(options.data.tokenizer)), residual


def _vocabulary(tokenizer: str) -> int:
    size = bpe_size(tokenizer)
    if size is not None:
        return size
    if tokenizer != "bytes" and not Path(tokenizer).exists():
        raise UsageError(f"model.vocab_size is not set, and data.tokenizer={tokenizer} is not there to tell: give it")
    return load_tokenizer(tokenizer).vocab_size


def strategy_of(options: Namespace, gpus: int) -> str:
    """single, ddp, fsdp or fsdp2. Raises UsageError for another strategy of the trainer."""
    wanted = options.trainer.strategy
    name = wanted.get("class_path", "") if isinstance(wanted, dict) else wanted
    name = name.rpartition(".")[2].lower()
    if name == "auto":
        return "ddp" if gpus > 1 else "single"
    for known, names in (
        ("fsdp2", ("fsdp2", "modelparallelstrategy")),
        ("fsdp", ("fsdp", "fsdpstrategy")),
        ("ddp", ("ddp", "ddpstrategy")),
    ):
        if name in names:
            return "single" if known == "ddp" and gpus == 1 else known
    raise UsageError(f"trainer.strategy={wanted}: plan knows auto, ddp, fsdp and lightning_dar.training.FSDP2")
