"""Input of others: whatever is wrong with it is said in one line, nothing of it is run and nothing is written."""

import json
import os
import pickle
import struct
from pathlib import Path

import pytest
import torch
from foreign import LLAMA3, save
from safetensors.torch import load_file, save_file

from lightning_dar.checkpoint.tensors import SafetensorsFiles
from lightning_dar.convert.convert import Conversion, convert
from lightning_dar.errors import DataError


@pytest.fixture
def source(tmp_path):
    save("llama", tmp_path / "source", shard="20KB")
    return tmp_path / "source"


def refused(source, match):
    before = sorted(path.name for path in source.parent.iterdir())
    with pytest.raises(DataError, match=match) as caught:
        convert(Conversion(source=str(source), output=str(source.parent / "out")))
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in source.parent.iterdir()) == before


def edit(path: Path, **changes) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


CONFIGS = {
    "mixture of experts": ({"num_experts": 8}, "num_experts=8: a mixture of experts"),
    "mixtral": ({"model_type": "mixtral"}, "model_type 'mixtral' .a mixture of experts.; convertible are qwen3"),
    "another family": ({"model_type": "gpt2"}, "model_type 'gpt2'; convertible are"),
    "window by layers": ({"sliding_window": 16, "layer_types": ["sliding_attention"] * 3}, "sliding_window=16"),
    "activation": ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
    "yarn": ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}}, "rope scaling 'yarn'"),
    "old linear": ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2}}, "rope scaling 'linear'"),
    "llama3 without factor": ({"rope_parameters": {**LLAMA3, "factor": None}}, "factor=None must be a positive number"),
    "partial rotary": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
    "quantised": ({"quantization_config": {"bits": 4}}, "quantization_config: quantised weights"),
    "attention bias": ({"attention_bias": True}, "attention_bias=true"),
    "mlp bias": ({"mlp_bias": True}, "mlp_bias=true"),
    "absurd layers": ({"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000 must be a whole number from 1 to"),
    "absurd width": ({"hidden_size": 2**60}, "hidden_size="),
    "negative": ({"vocab_size": -5}, "vocab_size=-5"),
    "text": ({"intermediate_size": "48"}, "intermediate_size='48'"),
    "true": ({"num_attention_heads": True}, "num_attention_heads=True"),
    "missing": ({"vocab_size": None}, "vocab_size is missing"),
    "heads do not divide": ({"num_key_value_heads": 3}, "num_heads=4 must be a multiple"),
    "zero epsilon": ({"rms_norm_eps": 0}, "rms_norm_eps=0 must be a positive number"),
}


@pytest.mark.parametrize("changes, says", CONFIGS.values(), ids=CONFIGS)
def test_config(changes, says, source, monkeypatch):
    edit(source / "config.json", **changes)
    monkeypatch.setattr(SafetensorsFiles, "__init__", None)  # refused before any weights are looked at
    refused(source, says)


@pytest.mark.parametrize(
    "family, changes", [("mistral", {"sliding_window": 8}), ("qwen2", {"use_sliding_window": True})]
)
def test_a_sliding_window_in_force(family, changes, tmp_path):
    save(family, tmp_path / "source")
    edit(tmp_path / "source/config.json", **{"sliding_window": 8, **changes, "layer_types": None})
    refused(tmp_path / "source", 'sliding_window=8 is in force.*set "sliding_window" to null')


RELEASED = Path(__file__).parents[1] / "reference/delta_sublayer"


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"attnres_mode": "delta_everything"}, "attnres_mode 'delta_everything' is not supported; block, full, delta,"),
        ({"attnres_gate_type": "sigmoid"}, "attnres_gate_type 'sigmoid' is not supported; bias, learnable_alpha"),
        ({"attnres_mode": "full", "attnres_use_null_source": True}, "attnres_mode 'full' with a gate or a null source"),
    ],
)
def test_released_modes_that_we_do_not_have(changes, says, tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((RELEASED / name).read_bytes())
    edit(folder / "config.json", **changes)
    refused(folder, says)


def test_tensors_that_do_not_fit_are_all_named(tmp_path):
    save("llama", tmp_path / "source")
    file = tmp_path / "source/model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.0.self_attn.q_norm.weight"] = torch.ones(8)
    tensors["model.norm.weight"] = torch.ones(33)
    save_file(tensors, file)
    with pytest.raises(DataError) as caught:
        convert(Conversion(source=str(tmp_path / "source"), output=str(tmp_path / "out")))
    for problem in (
        "missing model.layers.1.mlp.up_proj.weight",
        "unknown model.layers.0.self_attn.q_norm.weight",
        "model.norm.weight has shape [33], not [32]",
    ):
        assert problem in str(caught.value)


def header(file: Path, change) -> None:
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    entries = json.loads(data[8 : 8 + length])
    change(entries)
    text = json.dumps(entries).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def set_entry(**changes):
    return lambda entries: entries["model.norm.weight"].update(changes)


LIES = {
    "offsets beyond the file": lambda file: header(file, set_entry(data_offsets=[0, 10**12])),
    "shape that is not there": lambda file: header(file, set_entry(shape=[4096, 4096])),
    "unknown dtype": lambda file: header(file, set_entry(dtype="X9")),
    "absurd length": lambda file: file.write_bytes(struct.pack("<Q", 2**62) + file.read_bytes()[8:]),
    "no JSON": lambda file: file.write_bytes(struct.pack("<Q", 4) + b"oops"),
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:-100]),
    "empty": lambda file: file.write_bytes(b""),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_header_that_lies(lie, tmp_path):
    save("llama", tmp_path / "source")
    lie(tmp_path / "source/model.safetensors")
    refused(tmp_path / "source", "model.safetensors: no safetensors file, or a damaged one")


def test_integer_weights_are_quantised_weights(tmp_path):
    save("llama", tmp_path / "source")
    file = tmp_path / "source/model.safetensors"
    save_file({**load_file(file), "model.norm.weight": torch.ones(32, dtype=torch.int8)}, file)
    refused(tmp_path / "source", "'model.norm.weight' is I8: quantised or integer weights")


INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize("target", ["../secret.safetensors", "/etc/passwd", "sub/x.safetensors", ".."])
def test_an_index_that_points_outside(target, source):
    index = json.loads((source / INDEX).read_text())["weight_map"]
    edit(source / INDEX, weight_map={**index, "model.norm.weight": target})
    refused(source, "lies outside the folder; copy the model into one folder")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model-00001-of-00006.safetensors", INDEX])
def test_a_link_out_of_the_folder(name, source):
    elsewhere = source.parent / "elsewhere"
    elsewhere.write_bytes((source / name).read_bytes() if (source / name).exists() else b"{}")
    (source / name).unlink(missing_ok=True)
    os.symlink(elsewhere, source / name)
    refused(source, f"'{name}' lies outside the folder")


@pytest.mark.parametrize(
    "weight_map, says",
    [({"model.norm.weight": 3}, "no weight_map"), (["x"], "no weight_map"), (None, "no weight_map")],
)
def test_an_index_that_is_none(weight_map, says, source):
    edit(source / INDEX, weight_map=weight_map)
    refused(source, says)


def test_an_index_that_promises_what_its_files_do_not_hold(source):
    index = json.loads((source / INDEX).read_text())["weight_map"]
    edit(source / INDEX, weight_map={**index, "model.extra.weight": index["model.norm.weight"]})
    refused(source, "names tensors that its files do not hold: model.extra.weight")


def test_a_shard_that_is_missing(source):
    (source / "model-00002-of-00006.safetensors").unlink()
    refused(source, "model-00002-of-00006.safetensors: missing; complete the folder")


class Payload:
    def __reduce__(self):
        return os.system, ("touch ran",)


def test_pickled_weights_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save("llama", tmp_path / "source")
    (tmp_path / "source/model.safetensors").unlink()
    torch.save({"model.norm.weight": torch.ones(3), "x": Payload()}, tmp_path / "source/pytorch_model.bin")
    refused(tmp_path / "source", "only pickled weights .pytorch_model.bin.*save the model as safetensors")
    (tmp_path / "file.ckpt").write_bytes((tmp_path / "source/pytorch_model.bin").read_bytes())
    refused(tmp_path / "file.ckpt", "is no checkpoint, or a damaged one")
    assert not Path("ran").exists()


def test_the_index_of_a_sharded_checkpoint_runs_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from lightning_dar.checkpoint.description import describe
    from lightning_dar.checkpoint.load import build_on_meta
    from lightning_dar.model import resolve_config
    from lightning_dar.residual import ResidualConfig

    config, residual = resolve_config(vocab_size=7, hidden_size=8, num_layers=1, num_heads=2), ResidualConfig()
    description = describe(config, build_on_meta(config, residual).residual, residual)
    folder = tmp_path / "source"
    folder.mkdir()
    torch.save({"lightning_dar": description}, folder / "meta.pt")
    (folder / ".metadata").write_bytes(pickle.dumps(Payload()))
    refused(folder, "no index of a sharded checkpoint, or a damaged one .asks for posix.system")
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    "change, says",
    [
        ({"architecture": {"hidden_size": 8}}, "description is damaged"),
        ({"format": 99}, "written by a later lightning_dar"),
        ({"residual": None}, "description is damaged"),
    ],
)
def test_a_description_that_is_damaged(change, says, source, tmp_path):
    convert(Conversion(source=str(source), output=str(tmp_path / "converted")))
    edit(tmp_path / "converted/lightning_dar.json", **change)
    refused(tmp_path / "converted", says)
