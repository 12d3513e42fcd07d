"""Folders in shards: written as transformers writes them, and read as it reads them, or refused in one line."""

import json
import stat

import pytest
import torch
from foreign import make, save
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny import scramble, tiny_model
from transformers import AutoModelForCausalLM

from lightning_dar import load_model
from lightning_dar.checkpoint.description import describe
from lightning_dar.convert.convert import Conversion, convert
from lightning_dar.errors import DataError, UsageError
from lightning_dar.residual import ResidualConfig

INDEX = "model.safetensors.index.json"
IDS = torch.arange(40).view(2, 20)


def run(source, output, **options):
    return convert(Conversion(source=str(source), output=str(output), **options))


def index_of(folder):
    return json.loads((folder / INDEX).read_text())


@torch.no_grad()
def test_the_shards_are_those_of_transformers(tmp_path):
    theirs = make("qwen3")
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    theirs.save_pretrained(tmp_path / "source")
    run(tmp_path / "source", tmp_path / "ours", format="hf", max_shard_size="20KB")
    ours, expected = index_of(tmp_path / "ours"), index_of(tmp_path / "theirs")
    assert ours["metadata"] == expected["metadata"]
    assert set(ours["weight_map"]) == set(expected["weight_map"])
    files = sorted((tmp_path / "ours").glob("*.safetensors"))
    assert [file.name for file in files] == [
        f"model-{n + 1:05}-of-{len(files):05}.safetensors" for n in range(len(files))
    ]
    for file in files:
        with safe_open(file, framework="pt") as opened:
            assert opened.metadata() == {"format": "pt"}
        tensors = load_file(file)
        assert sum(tensor.nbytes for tensor in tensors.values()) <= 20_000
        assert {ours["weight_map"][name] for name in tensors} == {file.name}
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    torch.testing.assert_close(again(IDS).logits, theirs(IDS).logits, atol=1e-5, rtol=0)


@torch.no_grad()
def test_our_own_folders_too(tmp_path):
    theirs = save("llama", tmp_path / "source")
    run(tmp_path / "source", tmp_path / "ours", max_shard_size="15KB")
    assert len(set(index_of(tmp_path / "ours")["weight_map"].values())) > 5
    torch.testing.assert_close(load_model(tmp_path / "ours")(IDS), theirs(IDS).logits, atol=1e-5, rtol=0)
    run(tmp_path / "ours", tmp_path / "one", format="hf")
    assert [file.name for file in (tmp_path / "one").glob("*.safetensors*")] == ["model.safetensors"]


def test_a_tensor_larger_than_a_shard_is_one_of_its_own(tmp_path):
    save("llama", tmp_path / "source")
    lines = run(tmp_path / "source", tmp_path / "ours", max_shard_size="1KB")
    assert "tensors of the source's files" in "\n".join(lines)
    assert len(list((tmp_path / "ours").glob("*.safetensors"))) > 20


def test_whoever_may_read_the_folder_may_read_its_weights(tmp_path):
    save("llama", tmp_path / "source")
    run(tmp_path / "source", tmp_path / "ours", max_shard_size="20KB")
    plain = stat.S_IMODE((tmp_path / "ours/lightning_dar.json").stat().st_mode)
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "ours").iterdir()} == {plain}


@pytest.mark.parametrize("size", ["5", "5 gigabytes", "", "0GB", "-1GB", "nanGB", "0.1KBB", "GB"])
def test_sizes_that_are_none(size, tmp_path):
    with pytest.raises(UsageError, match="--max_shard_size=.*: give a size such as 5GB or 500MB"):
        run(tmp_path, tmp_path / "ours", max_shard_size=size)


@torch.no_grad()
def test_a_single_file_beside_an_index_counts(tmp_path):
    """As in transformers, where a small model was saved over a large one."""
    save("llama", tmp_path / "source", shard="20KB")
    torch.manual_seed(1)
    make("llama").save_pretrained(tmp_path / "other")
    (tmp_path / "other/model.safetensors").rename(tmp_path / "source/model.safetensors")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "source").eval()
    torch.testing.assert_close(load_model(tmp_path / "source")(IDS), theirs(IDS).logits, atol=1e-5, rtol=0)


@pytest.fixture
def source(tmp_path):
    save("llama", tmp_path / "source", shard="20KB")
    return tmp_path / "source"


def add(folder, number, **tensors):
    file = sorted(folder.glob("*.safetensors"))[number]
    save_file({**load_file(file), **tensors}, file)
    return file.name


def test_a_tensor_that_the_index_does_not_name(source):
    name = add(source, 0, extra=torch.ones(2))
    with pytest.raises(DataError, match=f"does not name all tensors of its files: extra in {name}"):
        load_model(source)


def test_a_tensor_in_two_shards(source):
    key = "model.norm.weight"
    first = index_of(source)["weight_map"][key]
    other = next(n for n, file in enumerate(sorted(source.glob("*.safetensors"))) if file.name != first)
    add(source, other, **{key: torch.ones(32)})
    with pytest.raises(DataError, match=f"tensor '{key}' is also in model-"):
        load_model(source)


def test_a_file_that_no_index_names_is_not_read(source):
    (source / "consolidated.safetensors").write_bytes(b"nonsense")
    load_model(source)


def test_an_adapter_beside_the_model_is_not_forgotten(source):
    (source / "adapter_config.json").write_text("{}")
    with pytest.raises(DataError, match="adapter_config.json: merge the adapter into the model first"):
        load_model(source)


@pytest.mark.parametrize("form", ["lightning", "hf"])
def test_what_lies_beside_the_model_in_our_own_checkpoints_is_not_dropped(form, tmp_path):
    model = scramble(tiny_model("delta-sublayer"))
    description = describe(model.config, model.residual, ResidualConfig(name="delta-sublayer"))
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save({"lightning_dar": description, "state_dict": weights}, tmp_path / "x.ckpt")
    weights |= {"teacher.weight": torch.ones(2), "model.sublayers.0._extra_state": "text"}
    torch.save({"lightning_dar": description, "state_dict": weights}, tmp_path / "y.ckpt")
    with pytest.raises(DataError, match="unknown model.sublayers.0._extra_state; unknown teacher.weight"):
        run(tmp_path / "y.ckpt", tmp_path / "out", verify=False)
    run(tmp_path / "x.ckpt", tmp_path / "out", format=form)
    file = tmp_path / "out/model.safetensors"
    save_file({**load_file(file), "teacher.weight": torch.ones(2)}, file)
    with pytest.raises(DataError, match="unknown teacher.weight"):
        load_model(tmp_path / "out")
