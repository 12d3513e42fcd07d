"""Sharded over two processes, the callbacks log what one process logs of the same global batches."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runs import logged_in, measured_run

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    logged = logged_in(folder / "run/version_0")
    tags = [tag for tag in logged.Tags()["scalars"] if tag.startswith(("routing", "branch", "redundancy"))]
    return {tag: [(event.step, event.value) for event in logged.Scalars(tag)] for tag in tags}


def test_two_processes_log_what_one_logs(tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests")))}
    command = [sys.executable, str(HERE / "sharded_run.py"), str(tmp_path / "two")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    measured_run(tmp_path / "alone", accumulate_grad_batches=2)  # the batches that the two share at a step

    expected, found = scalars(tmp_path / "alone"), scalars(tmp_path / "two")
    assert found.keys() == expected.keys()
    assert {"routing/sharpness", "branch_sites/query_grad_norm_03", "redundancy/cosine"} <= found.keys()
    assert expected["branch/query_grad_norm"][0][1] > 0
    for tag, events in expected.items():
        assert [step for step, _ in found[tag]] == [step for step, _ in events] == [1, 3]
        values = [value for _, value in events]
        loose = 0.02 if "share" in tag else 1e-6  # a token's two largest weights may be equal but for rounding
        assert [value for _, value in found[tag]] == pytest.approx(values, rel=1e-4, abs=loose), tag
