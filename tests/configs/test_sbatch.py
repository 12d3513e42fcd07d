"""The batch file for SLURM: what it asks of the queue, and what it starts, with a srun that only writes that down."""

import os
import shlex
import subprocess
import sys

import pytest
from test_shipped_configs import ROOT, Parsed

SBATCH = ROOT / "configs/cluster/fit.sbatch"
CONFIG = "configs/delta_8b.yaml"
RECORD = '#!/bin/bash\nprintf "%s\\n" "$SRUN_CPUS_PER_TASK" "$@" > recorded\nexit 3\n'
ALLOCATION = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "3", "SLURM_NTASKS_PER_NODE": "4", "SLURM_CPUS_PER_TASK": "6"}

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs bash")


def asked_for() -> dict[str, str]:
    """The options that sbatch reads: those above the first command."""
    options: dict[str, str] = {}
    for line in SBATCH.read_text().splitlines():
        if line and not line.startswith("#"):
            break
        if line.startswith("#SBATCH "):
            for option in shlex.split(line)[1:]:
                name, _, value = option.partition("=")
                options[name] = value
    return options


def test_what_it_asks_of_the_queue():
    assert SBATCH.read_text().count("#SBATCH ") == 11, "all of them above the first command"
    options = asked_for()
    assert len(options) == 12
    assert options["--ntasks-per-node"] == options["--gpus-per-node"], "a process for each GPU"
    assert options["--signal"] == "SIGUSR1@300", "to the processes: `B:` would be to this script"
    assert options["--requeue"] == ""
    assert options["--open-mode"] == "append"
    assert options["--job-name"] not in ("bash", "interactive"), "where Lightning takes SLURM for a shell"


def test_what_it_starts(tmp_path):
    srun = tmp_path / "srun"
    srun.write_text(RECORD)
    srun.chmod(0o755)
    environment = os.environ | ALLOCATION | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert subprocess.run(["bash", "-n", SBATCH]).returncode == 0
    done = subprocess.run(["bash", SBATCH, "--data.seed", "1"], cwd=tmp_path, env=environment)
    assert done.returncode == 3, "the job fails where the run does"
    cpus, *command = (tmp_path / "recorded").read_text().splitlines()
    assert cpus == "6"
    assert command == [
        *("--kill-on-bad-exit=1", "python", "cli.py", "fit", "--config", CONFIG),
        *("--ckpt_path", "last", "--trainer.num_nodes", "3", "--trainer.devices", "4", "--data.seed", "1"),
    ]


def test_the_command_line_is_one_that_fit_takes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where there is no run to continue
    allocation = ["--trainer.num_nodes", "3", "--trainer.devices", "4"]
    parsed = Parsed(["fit", "--config", str(ROOT / CONFIG), "--ckpt_path", "last", *allocation])
    assert (parsed.trainer.num_nodes, int(parsed.trainer.devices)) == (3, 4)
