"""A run killed at any moment and gone on with ends with the very weights of one that was left alone."""

import pytest
from runs_to_kill import CHECKPOINTS, SHARDED, Runs, killed_at_a_random_moment
from states import different

MUON = {"model__optimizer__name": "muon", "model__optimizer__schedule": "wsd"}
KINDS = {
    "one process": {},
    "two workers": {"data__num_workers": 2, **MUON},
    "accumulation": {"trainer__accumulate_grad_batches": 2, "data__batch_size": 16, "trainer__val_check_interval": 7},
    "two processes": {"processes": 2, "model__optimizer__schedule": "linear"},
    "shards of two": {"processes": 2, **SHARDED, **MUON},
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, shards):
    """undisturbed(kind) -> (weights, scalars) of a run that nobody kills, made once."""
    made = {}

    def of(kind: str):
        if kind not in made:
            runs = Runs(tmp_path_factory.mktemp("undisturbed"), shards)
            runs.fit(**KINDS[kind]).check()
            made[kind] = runs.weights(), runs.logged()
        return made[kind]

    return of


def kill_and_go_on(kind: str, seed: int, new_runs, undisturbed) -> None:
    weights, scalars = undisturbed(kind)
    runs, options = new_runs("killed"), KINDS[kind]
    batches = 32 if kind == "accumulation" else 16
    killed = runs.fit(**options, before={0: killed_at_a_random_moment(seed, batches)})
    assert killed.statuses[0] < 0, f"seed {seed} did not kill it:\n{killed.said}"
    had_saved = any((runs.folder / CHECKPOINTS).glob("[!.]*.ckpt"))
    runs.fit("--ckpt_path=last", **options).check()
    assert different(runs.weights(), weights) == [], f"seed {seed}"
    assert runs.logged() == scalars, f"seed {seed}"
    assert runs.newest().name == ("version_0" if had_saved else "version_1")
    assert not list(runs.newest().rglob(".*partial"))


@pytest.mark.parametrize("seed, kind", enumerate(("accumulation", "two processes")))
def test_killed_at_some_moment(kind, seed, new_runs, undisturbed):
    kill_and_go_on(kind, seed, new_runs, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5, 25))
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_twenty_moments(kind, seed, new_runs, undisturbed):
    kill_and_go_on(kind, seed, new_runs, undisturbed)
