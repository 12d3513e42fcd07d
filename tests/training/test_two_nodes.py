"""Two agents of torchrun, each a node of one process, train in one folder what one process trains by itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import fit_args
from free_port import free_port

import cli
from lightning_dar import load_model

ROOT = Path(__file__).parents[2]
CLIP = "--trainer.gradient_clip_val=0.5"
NODES = [
    "--trainer.num_nodes=2",
    "--trainer.devices=1",
    "--trainer.strategy.class_path=lightning_dar.training.FSDP2",
    "--data.batch_size=4",
    CLIP,
]


@pytest.fixture
def two_nodes(tmp_path, text_folder):
    """The agents, running in one folder, as on a file system that both nodes share. They end with the test."""
    folder = tmp_path / "shared"
    folder.mkdir()
    port = free_port()
    agent = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    agent += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=test", "--local-addr=127.0.0.1"]
    command = [*agent, str(ROOT / "cli.py"), *fit_args(text_folder), *NODES]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    agents = [subprocess.Popen(command, cwd=folder, env=environment, text=True, **pipes) for _ in range(2)]
    yield folder, agents
    for process in agents:
        process.terminate()  # an agent ends its worker
        process.wait()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
@pytest.mark.slow
def test_two_nodes_are_one_run_and_agree_with_one_process(two_nodes, tmp_path, text_folder, monkeypatch):
    shared, agents = two_nodes
    (tmp_path / "alone").mkdir()
    monkeypatch.chdir(tmp_path / "alone")
    cli.main([*fit_args(text_folder), "--data.batch_size=8", CLIP])  # while the nodes run
    said = [process.communicate(timeout=120) for process in agents]
    for process, (_, err) in zip(agents, said, strict=True):
        assert process.returncode == 0, err[-3000:]

    assert sum(out.count("validation perplexity") for out, _ in said) == 1, "one summary"
    assert sum(err.count("tokens per second") for _, err in said) == 1, "one node prepares, the other waits"
    assert [path.name for path in (shared / "runs/test").iterdir()] == ["version_0"]
    last = "runs/test/version_0/checkpoints/last.ckpt"
    expected, weights = load_model(last).state_dict(), load_model(shared / last).state_dict()
    assert weights.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
