"""The settings of a run, and the rules by which a command and a checkpoint settle them: `resolve`."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lightning_dar.checkpoint.carried import own_tokenizer
from lightning_dar.checkpoint.load import DATA_KEY, Checkpoint, WhichWeights
from lightning_dar.run.state import STATE_KEY, state_of

MODEL_KEY = "hyper_parameters"  # Lightning's
RUNNING = ("activation_checkpointing", "compile", "non_finite", "max_skipped_steps")
"""Settings of the model that are not its checkpoint's description."""
VALIDATE_TRAINER = {
    "logger": False,
    "enable_checkpointing": False,
    "callbacks": [{"class_path": "lightning_dar.callbacks.RoutingSharpness"}],
}

Command = Literal["fit", "validate", "prepare"]
Settings = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The settings of a run. What is not in them is as it is by default.

    Attributes:
        model: arguments of `LanguageModel`.
        data: arguments of `TextData`.
        trainer: arguments of Lightning's `Trainer`.
        seed_everything: as LightningCLI takes it.
    """

    model: Settings = field(default_factory=dict)
    data: Settings = field(default_factory=dict)
    trainer: Settings = field(default_factory=dict)
    seed_everything: int | bool | None = None

    def as_dict(self) -> Settings:
        """A config for LightningCLI, without what is empty."""
        return {key: value for key, value in vars(self).items() if value not in (None, {})}


@dataclass(frozen=True, kw_only=True)
class Origin:
    """A checkpoint, as far as settings depend on it.

    Attributes:
        path: where it lies.
        config: the settings that it was saved with.
        weights: which of its two sets of weights are taken; None where it has one.
        lay_tokenizer: writes its tokenizer to a file and returns the path; None where it has none.
    """

    path: str
    config: RunConfig
    weights: WhichWeights | None = None
    lay_tokenizer: Callable[[], str | None] = lambda: None


Given = Callable[[RunConfig], Mapping[str, Any]]
"""Reads a command: its settings by section, all defaults filled in, over those of the config beneath it."""


def resolve(
    command: Command, given: Given, checkpoint: Origin | None, start: Origin | None, default_tokenizer: str
) -> tuple[Mapping[str, Any], RunConfig]:
    """Settles the settings of a run.

    1. What the command says, options before config files, holds over what the checkpoint says.
    2. `fit` takes every setting of the checkpoint that it goes on from; `validate` takes model, data and precision, and
       loads weights alone, as a run does that starts from them.
    3. Text other than that of the checkpoint (see `other_text`) goes to a folder of its own, by the checkpoint's
       tokenizer.

    Args:
        command: the command.
        given: reads what it says.
        checkpoint: the checkpoint named by --ckpt_path, None without one.
        start: the checkpoint named by model.init_from, of a run that begins.
        default_tokenizer: what `data.tokenizer` is where nothing is said.

    Returns:
        The settings by section as `given` has read them, and those that replace some of them.
    """
    beneath = RunConfig()
    if checkpoint is not None:
        beneath = checkpoint.config if command == "fit" else _to_validate(checkpoint.config)
    config = given(beneath)
    data: Settings = {}
    if (origin := checkpoint or start) is not None:
        data = other_text(origin, config["data"], default_tokenizer, in_domains=bool(config.get("domains")))
    model: Settings = {}
    if checkpoint is not None and command == "validate":
        model = {"init_from": checkpoint.path, "init_weights": checkpoint.weights}
    return config, RunConfig(model=model, data=data)


def other_text(
    origin: Origin, data: Mapping[str, Any], default_tokenizer: str | None = None, in_domains: bool = False
) -> Settings:
    """The settings of the data that change where the text is not the checkpoint's: folder and mix are forgotten, and
    the tokenizer is the checkpoint's own, each unless others are asked for.

    Args:
        origin: the checkpoint.
        data: the section `data` that is asked for.
        default_tokenizer: what its `tokenizer` is where none is asked for.
        in_domains: the text is several sources, in place of `data.source`.
    """
    saved = origin.config.data
    if data["source"] == saved.get("source") and not in_domains:
        return {}
    changed: Settings = {key: None for key in ("dir", "mix") if data.get(key) == saved.get(key)}
    if data.get("tokenizer") in (saved.get("tokenizer"), default_tokenizer):
        changed["tokenizer"] = origin.lay_tokenizer() or data.get("tokenizer")
    return changed


def _to_validate(config: RunConfig) -> RunConfig:
    trainer = {"precision": config.trainer.get("precision"), **VALIDATE_TRAINER}
    return RunConfig(model=config.model, data=config.data, trainer=trainer)


def origin_of(checkpoint: Checkpoint) -> Origin:
    """What the settings of a run depend on in a checkpoint."""
    return Origin(
        path=str(checkpoint.path),
        config=saved_config(checkpoint),
        weights=checkpoint.weights,
        lay_tokenizer=lambda: own_tokenizer(checkpoint),
    )


def saved_config(checkpoint: Checkpoint) -> RunConfig:
    """The settings that a checkpoint was saved with, as far as it says."""
    content, model = checkpoint.content, checkpoint.content.get(MODEL_KEY, {})
    settings = state_of(content).settings
    return RunConfig(
        model={
            **checkpoint.description["architecture"],
            "residual": checkpoint.description["residual"],
            **{key: model[key] for key in ("optimizer", "freeze_base", *RUNNING) if key in model},
        },
        data=_plain(content.get(DATA_KEY, {})),
        trainer=_with_callbacks_at_home(settings.get("trainer") or {}),
        seed_everything=settings.get("seed_everything"),
    )


def _with_callbacks_at_home(trainer: Settings) -> Settings:
    """The settings of a trainer; its callbacks of this project by the names that an installed package knows too."""
    callbacks = trainer.get("callbacks")
    if not isinstance(callbacks, list):
        return trainer
    return {**trainer, "callbacks": [{**entry, "class_path": _at_home(entry["class_path"])} for entry in callbacks]}


def _at_home(class_path: str) -> str:
    return f"lightning_dar.{class_path}" if class_path.startswith("callbacks.") else class_path


def portable_settings(content: Mapping[str, Any]) -> Settings:
    """The part of a checkpoint's settings that a converted one keeps, in types that JSON has: optimizer, data,
    precision."""
    kept: Settings = {}
    if "optimizer" in content.get(MODEL_KEY, {}):
        kept[MODEL_KEY] = {"optimizer": content[MODEL_KEY]["optimizer"]}
    if DATA_KEY in content:
        kept[DATA_KEY] = _plain(content[DATA_KEY])
    if settings := state_of(content).settings:
        precision = (settings.get("trainer") or {}).get("precision")
        kept[STATE_KEY] = {"settings": {"trainer": {"precision": precision}}}
    return json.loads(json.dumps(kept))


def _plain(hyper_parameters: Mapping[str, Any]) -> Settings:
    return {key: value for key, value in hyper_parameters.items() if not key.startswith("_")}
