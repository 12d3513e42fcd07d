"""A run sharded by FSDP2 over two processes: its checkpoint folder validates, generates and becomes one file."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import fit_args
from safetensors.torch import load_file
from spoken import chat_files, lay

from lightning_dar import load_model
from lightning_dar.checkpoint.load import open_checkpoint

ROOT = Path(__file__).parents[2]
STRATEGY = """
trainer:
  devices: 2
  strategy:
    class_path: lightning.pytorch.strategies.ModelParallelStrategy
    init_args: {data_parallel_size: 2, tensor_parallel_size: 1, save_distributed_checkpoint: true}
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_a_sharded_checkpoint_opens_everywhere(run, text_folder, tmp_path):
    Path("sharded.yaml").write_text(STRATEGY)
    words = lay(tmp_path / "words", chat_files())
    args = [*fit_args(text_folder), "--config", "sharded.yaml", "--model.residual.name=delta-block"]
    args.append("--data.tokenizer=words")
    command = [sys.executable, ROOT / "cli.py", *args, "--model.residual.options.num_blocks=2"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    trained = float(re.search(r"validation perplexity +(\S+)", done.stdout)[1])
    folder = Path("runs/test/version_0/checkpoints/last.ckpt").resolve()
    assert len(list(folder.glob("*.distcp"))) == 2

    status, _, err = run("convert", "--source", folder, "--output", "single")
    assert status == 0, err
    for path in (folder, "single"):
        status, out, err = run("validate", "--ckpt_path", path, "--trainer.strategy=auto", "--trainer.devices=1")
        assert status == 0, err
        assert float(re.search(r"val/perplexity\W+([\d.]+)", out)[1]) == pytest.approx(trained, rel=1e-5)
    single = load_file("single/model.safetensors")
    for name, tensor in load_model(folder).state_dict().items():
        assert torch.equal(tensor, single[name])
    assert open_checkpoint("single").residual.options["num_blocks"] == 2
    status, _, err = run("convert", "--source", folder, "--output", "hf", "--format", "hf")
    assert status == 0, err
    for name in ("tokenizer.json", "chat_template.jinja", "tokenizer.model", "additional_chat_templates/tools.jinja"):
        assert Path("hf", name).read_bytes() == (words / name).read_bytes()
    status, out, err = run("generate", "--ckpt_path", folder, "--prompt", "ta", "--max_new_tokens=4")
    assert status == 0, err
