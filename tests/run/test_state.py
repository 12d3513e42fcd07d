"""The state of a run in a checkpoint, and checkpoints from before it had one key."""

import pytest

from lightning_dar.run.state import STATE_KEY, RunState, add_state, state_of

TENSORBOARD = "lightning.pytorch.loggers.tensorboard.TensorBoardLogger"
SETTINGS = {"trainer": {"max_steps": 3}, "seed_everything": 1}


def test_parts_that_are_added_make_one_state():
    checkpoint = {}
    add_state(checkpoint, settings=SETTINGS, logs=[])
    add_state(checkpoint, random=[{"python": 1}], skipped_steps=2)
    assert list(checkpoint) == [STATE_KEY]
    assert state_of(checkpoint) == RunState(settings=SETTINGS, random=[{"python": 1}], skipped_steps=2)


def test_a_field_that_a_state_lacks_is_not_added():
    with pytest.raises(AssertionError):
        add_state({}, seed=1)


@pytest.mark.parametrize(
    "run, logs",
    [
        ("version_3", [{"logger": TENSORBOARD, "version": "version_3"}]),
        (3, [{"logger": TENSORBOARD, "version": 3}]),
        ([{"logger": "a.B", "version": "x"}], [{"logger": "a.B", "version": "x"}]),
        (None, []),
    ],
)
def test_the_keys_of_format_1_are_read(run, logs):
    old = {
        "lightning_dar_trainer": SETTINGS,
        "lightning_dar_run": run,
        "lightning_dar_random": [{"python": 1}],
        "lightning_dar_skipped_steps": 2,
    }
    assert state_of(old) == RunState(settings=SETTINGS, logs=logs, random=[{"python": 1}], skipped_steps=2)


def test_a_checkpoint_without_a_state_has_an_empty_one():
    assert state_of({"state_dict": {}}) == RunState()
