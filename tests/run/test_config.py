"""The rules of precedence between a command and a checkpoint, without Lightning."""

import subprocess
import sys

import pytest

from lightning_dar.checkpoint.load import Checkpoint
from lightning_dar.checkpoint.tensors import InMemory
from lightning_dar.run.config import VALIDATE_TRAINER, Origin, RunConfig, other_text, resolve, saved_config

DEFAULT = "bpe:4096"
SAVED = RunConfig(
    model={"hidden_size": 64, "optimizer": {"lr": 1e-3}},
    data={"source": "law", "dir": "shards", "mix": None, "tokenizer": "bpe:300", "seq_len": 128},
    trainer={"max_steps": 100, "precision": "bf16-mixed", "logger": "mine"},
    seed_everything=7,
)
ORIGIN = Origin(path="a.ckpt", config=SAVED, weights="averaged", lay_tokenizer=lambda: "own/tokenizer.json")
DEFAULTS = {"source": "stdlib", "dir": None, "mix": None, "tokenizer": DEFAULT, "seq_len": 256}


def command(domains=None, **sections):
    """What reads a command: its `sections` over those beneath them, over the defaults of the data."""

    def given(beneath):
        keys = ("model", "data", "trainer")
        read = {key: {**getattr(beneath, key), **sections.get(key, {})} for key in keys}
        return read | {"data": DEFAULTS | read["data"], "domains": domains or {}, "seed": beneath.seed_everything}

    return given


def test_a_run_that_goes_on_has_every_setting_of_its_checkpoint():
    config, replaced = resolve("fit", command(), ORIGIN, None, DEFAULT)
    assert (config["model"], config["data"]) == (SAVED.model, DEFAULTS | SAVED.data)
    assert (config["trainer"], config["seed"]) == (SAVED.trainer, 7)
    assert replaced == RunConfig()


def test_what_the_command_says_holds_over_the_checkpoint():
    config, _ = resolve("fit", command(trainer={"max_steps": 200}, data={"seq_len": 64}), ORIGIN, None, DEFAULT)
    assert (config["trainer"]["max_steps"], config["data"]["seq_len"]) == (200, 64)
    assert config["trainer"]["precision"] == "bf16-mixed"


def test_validate_takes_model_data_and_precision_and_loads_weights_alone():
    config, replaced = resolve("validate", command(), ORIGIN, None, DEFAULT)
    assert config["trainer"] == {"precision": "bf16-mixed", **VALIDATE_TRAINER}
    assert (config["model"], config["data"], config["seed"]) == (SAVED.model, DEFAULTS | SAVED.data, None)
    assert replaced.model == {"init_from": "a.ckpt", "init_weights": "averaged"}


def test_without_a_checkpoint_the_command_is_all_there_is():
    config, replaced = resolve("fit", command(data={"source": "law"}), None, None, DEFAULT)
    assert (config["data"]["source"], config["trainer"], replaced) == ("law", {}, RunConfig())


def test_a_run_that_starts_from_weights_has_its_own_settings_and_their_tokenizer():
    config, replaced = resolve("fit", command(), None, ORIGIN, DEFAULT)
    assert config["trainer"] == {} and config["data"]["seq_len"] == 256
    assert replaced.data["tokenizer"] == "own/tokenizer.json"


@pytest.mark.parametrize(
    "asked, changed",
    [
        ({}, {}),
        ({"source": "law"}, {}),
        ({"source": "code"}, {"dir": None, "mix": None, "tokenizer": "own/tokenizer.json"}),
        ({"source": "code", "tokenizer": DEFAULT}, {"dir": None, "mix": None, "tokenizer": "own/tokenizer.json"}),
        ({"source": "code", "tokenizer": "bytes"}, {"dir": None, "mix": None}),
        ({"source": "code", "dir": "mine"}, {"mix": None, "tokenizer": "own/tokenizer.json"}),
        ({"source": "code", "mix": {"a": 1}}, {"dir": None, "tokenizer": "own/tokenizer.json"}),
    ],
)
def test_other_text_has_its_own_folder_and_the_checkpoints_tokenizer(asked, changed):
    assert other_text(ORIGIN, SAVED.data | asked, DEFAULT) == changed


def test_domains_are_other_text_whatever_the_source():
    _, replaced = resolve("validate", command(domains={"law": "law"}), ORIGIN, None, DEFAULT)
    assert replaced.data == {"dir": None, "mix": None, "tokenizer": "own/tokenizer.json"}


def test_a_checkpoint_without_a_tokenizer_leaves_the_one_that_is_asked_for():
    bare = Origin(path="a", config=SAVED)
    assert other_text(bare, SAVED.data | {"source": "code"}, DEFAULT)["tokenizer"] == "bpe:300"


def test_settling_needs_no_lightning():
    code = "import sys, lightning_dar.run.config; print('lightning' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_callbacks_of_earlier_runs_are_found_without_the_clone(tmp_path):
    callbacks = [{"class_path": "callbacks.Throughput"}, {"class_path": "mine.Callback"}]
    content = {"lightning_dar_trainer": {"trainer": {"callbacks": callbacks, "max_steps": 3}}}
    description = {"architecture": {}, "residual": {"name": "standard", "options": {}}}
    checkpoint = Checkpoint(path=tmp_path, description=description, tensors=InMemory({}), content=content)
    trainer = saved_config(checkpoint).trainer
    paths = [entry["class_path"] for entry in trainer["callbacks"]]
    assert (paths, trainer["max_steps"]) == (["lightning_dar.callbacks.Throughput", "mine.Callback"], 3)
