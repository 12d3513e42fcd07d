"""Which callbacks a run has: the default ones, those that are added, and what the trainer's flags leave of them."""

from inspect import Parameter, signature
from pkgutil import resolve_name
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch.callbacks import Checkpoint, LearningRateMonitor, ModelCheckpoint, ProgressBar

DEFAULT_CALLBACKS: list[dict[str, Any]] = [
    {
        "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
        "init_args": {  # the two newest: one is left where the other cannot be read
            "monitor": "step",
            "mode": "max",
            "save_top_k": 2,
            "save_last": "link",
            "enable_version_counter": False,
        },
    },
    {"class_path": "lightning.pytorch.callbacks.LearningRateMonitor"},
    {"class_path": "lightning.pytorch.callbacks.TQDMProgressBar"},  # one line, where rich's would wrap
    {"class_path": "lightning_dar.callbacks.Throughput"},  # before those that measure, which it would take for waiting
    {"class_path": "lightning_dar.callbacks.RoutingSharpness"},
    {"class_path": "lightning_dar.callbacks.RoutingCollapse"},
    {"class_path": "lightning_dar.callbacks.BranchStrength"},
    {"class_path": "lightning_dar.callbacks.SourceRedundancy"},
    {"class_path": "lightning_dar.callbacks.SampleText"},
    {"class_path": "lightning_dar.callbacks.FinalValidation"},
    {"class_path": "lightning_dar.callbacks.RunSummary"},
    {"class_path": "lightning_dar.callbacks.Interruption"},
]
BAREBONES = {  # what Lightning forbids beside the flag; what else it forbids nobody sets without meaning it
    "enable_checkpointing": False,
    "enable_model_summary": False,
    "enable_progress_bar": False,
    "log_every_n_steps": 0,
    "logger": False,
    "num_sanity_val_steps": 0,
}


def settle_callbacks(trainer: Namespace) -> None:
    """Leaves out callbacks that flags of the trainer switch off, and default ones that an added one replaces: of the
    same class, any progress bar, and a ModelCheckpoint whose state Lightning could not tell from the default one's.

    Args:
        trainer: its settings; changed in place.
    """
    entries = trainer.callbacks or []
    entries = _without_copies(entries if isinstance(entries, list) else [entries])
    if trainer.barebones:
        trainer.update(Namespace(BAREBONES))
        entries = [entry for entry in entries if not _is_default(entry)]
    off = _switched_off(trainer)
    for entry in entries:
        _name_its_files(entry)
    trainer.callbacks = [
        entry
        for number, entry in enumerate(entries)
        if not issubclass(_class_of(entry), off)
        and not (_is_default(entry) and any(_replaces(later, entry) for later in entries[number + 1 :]))
    ]


def _without_copies(entries: list[Namespace]) -> list[Namespace]:
    """A command that is given again with `--ckpt_path` adds to what the checkpoint's settings have already."""
    return [entry for number, entry in enumerate(entries) if entry not in entries[:number]]


def _name_its_files(entry: Namespace) -> None:
    """Gives the files of a second ModelCheckpoint names of their own: under names that both have, each would remove
    files of the other."""
    settings = entry.get("init_args")
    if _class_of(entry) is ModelCheckpoint and not _is_default(entry) and settings.dirpath is settings.filename is None:
        default = ModelCheckpoint(**DEFAULT_CALLBACKS[0]["init_args"]).state_key
        if _state_key(entry) != default:
            settings.filename = (settings.monitor or "added").replace("/", "_") + "-{epoch}-{step}"


def _switched_off(trainer: Namespace) -> tuple[type, ...]:
    """Lightning refuses what contradicts its flags; here the flags win."""
    flags = {
        LearningRateMonitor: trainer.logger is False,
        Checkpoint: trainer.enable_checkpointing is False or bool(trainer.fast_dev_run),
        ProgressBar: trainer.enable_progress_bar is False,
    }
    return tuple(kind for kind, is_off in flags.items() if is_off)


def _replaces(added: Namespace, default: Namespace) -> bool:
    kind, own = _class_of(added), _class_of(default)
    if issubclass(own, ProgressBar):
        return issubclass(kind, ProgressBar)
    return kind is own and (own is not ModelCheckpoint or _state_key(added) == _state_key(default))


def _is_default(entry: Namespace) -> bool:
    for default in DEFAULT_CALLBACKS:
        if default["class_path"] == entry.class_path:
            return _init_args(entry) == _defaults_of(_class_of(entry)) | default.get("init_args", {})
    return False


def _state_key(checkpoint: Namespace) -> str:
    return ModelCheckpoint(**_init_args(checkpoint)).state_key


def _class_of(entry: Namespace) -> type:
    return resolve_name(entry.class_path)


def _init_args(entry: Namespace) -> dict[str, Any]:
    given = entry.get("init_args") or {}
    return given.as_dict() if isinstance(given, Namespace) else dict(given)


def _defaults_of(kind: type) -> dict[str, Any]:
    return {
        name: parameter.default
        for name, parameter in signature(kind).parameters.items()
        if parameter.default is not Parameter.empty
    }


def leave_out_unwritable(config: Any) -> None:
    """Takes out of a config what no file can hold and a class has as the default of an argument, such as a device: the
    class would have it anyway. Changes the config, a Namespace or a list, at any depth.
    """
    for value in config.__dict__.values() if isinstance(config, Namespace) else config:
        if isinstance(value, Namespace | list):
            leave_out_unwritable(value)
    if isinstance(config, Namespace) and config.get("class_path") and isinstance(config.get("init_args"), Namespace):
        for name, default in _defaults_of(resolve_name(config.class_path)).items():
            if config.init_args.get(name) is default and not _is_writable(default):
                del config.init_args[name]


def _is_writable(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_writable, value))
    if isinstance(value, dict):
        return all(_is_writable(item) for pair in value.items() for item in pair)
    return value is None or type(value) in (bool, int, float, str)  # not an enum that is a str too
