"""Sharded or replicated over processes, every strategy has the losses and gradients of one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def run_steps(*args: str, timeout: float) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests")))}
    command = [sys.executable, str(HERE / "sharded_steps.py"), *args]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr[-3000:]


def test_two_processes():
    run_steps("2", timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("world", ["2", "4"])
def test_every_combination(world):
    run_steps(world, "all", timeout=3600)
