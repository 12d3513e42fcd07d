"""Peak memory and time of converting a synthetic checkpoint of 2 GB in 4 shards, into one file and into small shards,
against copying its files.

python benchmarks/convert_memory.py [GIGABYTES] [FOLDER]
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

ROOT = Path(__file__).parents[1]
SHARD_SIZES = ("5GB", "250MB")
HIDDEN, LAYERS, VOCAB, SHARDS = 2048, 8, 32_000, 4
RUN_AND_REPORT = """
import cli, time
start = time.perf_counter()
cli.main()
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print("peak resident", status["VmHWM"].strip(), "after", round(time.perf_counter() - start, 1), "s", flush=True)
"""  # getrusage would count the parent's memory too: a child inherits its mark
PER_INTERMEDIATE = 3 * LAYERS * HIDDEN * 4  # bytes of fp32 that one unit of the MLP's width costs


def write_checkpoint(folder: Path, gigabytes: float) -> None:
    """A Llama of about this size in fp32, with an index over its shards."""
    rest = 4 * (2 * VOCAB * HIDDEN + LAYERS * 4 * HIDDEN**2)
    width = max(64, int((gigabytes * 1e9 - rest) / PER_INTERMEDIATE) // 64 * 64)
    attention = {f"self_attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in "qkvo"}
    mlp = {"mlp.gate_proj.weight": (width, HIDDEN), "mlp.up_proj.weight": (width, HIDDEN)}
    norms = {"input_layernorm.weight": (HIDDEN,), "post_attention_layernorm.weight": (HIDDEN,)}
    layer = {**attention, **mlp, "mlp.down_proj.weight": (HIDDEN, width), **norms}
    shapes = {f"model.layers.{n}.{name}": shape for n in range(LAYERS) for name, shape in layer.items()}
    shapes |= {"model.embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN)}
    shapes["model.norm.weight"] = (HIDDEN,)
    names, weight_map = list(shapes), {}
    for shard in range(SHARDS):
        file = f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        tensors = {name: torch.randn(shapes[name]) for name in names[shard::SHARDS]}
        weight_map |= dict.fromkeys(tensors, file)
        save_file(tensors, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    config = {
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": width,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "rms_norm_eps": 1e-6,
    }
    (folder / "config.json").write_text(json.dumps(config))


def main(gigabytes: float = 2.0, folder: str | None = None) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as work:
        source, output = Path(work, "source"), Path(work, "output")
        source.mkdir()
        write_checkpoint(source, gigabytes)
        size = sum(file.stat().st_size for file in source.iterdir())
        os.sync()  # or writing back one file would slow the next
        start = time.perf_counter()
        shutil.copytree(source, Path(work, "copy"))
        copied = time.perf_counter() - start
        shutil.rmtree(Path(work, "copy"))
        print(f"{size / 1e9:.2f} GB: copying the files takes {copied:.1f} s")
        options = ["--source", source, "--output", output, "--model.residual.name", "delta-block", "--no-verify"]
        for shard_size in SHARD_SIZES:
            print(f"--max_shard_size {shard_size}:", flush=True)
            os.sync()
            more = ["--max_shard_size", shard_size, "--overwrite"]
            subprocess.run([sys.executable, "-c", RUN_AND_REPORT, "convert", *options, *more], cwd=ROOT, check=True)


if __name__ == "__main__":
    main(*(kind(value) for kind, value in zip((float, str), sys.argv[1:], strict=False)))
