"""Verification reads the source by itself: a reader that lies, in whatever way, is found out."""

from importlib.metadata import PackageNotFoundError

import pytest
import torch
from foreign import save
from safetensors.torch import load_file, save_file
from tiny import scramble, tiny_model

from lightning_dar.checkpoint import families, tensors
from lightning_dar.checkpoint.description import describe
from lightning_dar.checkpoint.families import Renamed
from lightning_dar.checkpoint.tensors import InMemory, Unprefixed
from lightning_dar.convert import convert as conversion
from lightning_dar.convert import verify
from lightning_dar.convert.convert import Conversion, convert
from lightning_dar.errors import DataError
from lightning_dar.residual import ResidualConfig

UP, GATE = "model.layers.{layer}.mlp.up_proj.weight", "model.layers.{layer}.mlp.gate_proj.weight"


def run(source, output, **options):
    return convert(Conversion(source=str(source), output=str(output), **options))


@pytest.fixture
def source(tmp_path):
    save("llama", tmp_path / "source", shard="20KB")
    return tmp_path / "source"


@pytest.fixture
def checkpoint(tmp_path):
    model = scramble(tiny_model("delta-sublayer"))
    description = describe(model.config, model.residual, ResidualConfig(name="delta-sublayer"))
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save({"lightning_dar": description, "state_dict": weights}, tmp_path / "x.ckpt")
    return tmp_path / "x.ckpt"


def refused(source, match):
    with pytest.raises(DataError, match=match):
        run(source, source.parent / "out")
    assert not (source.parent / "out").exists()


def test_what_was_compared_is_said(source, tmp_path):
    tensors = len([name for file in source.glob("*.safetensors") for name in load_file(file)])
    text = "\n".join(run(source, tmp_path / "out", residual=ResidualConfig(name="delta-sublayer")))
    assert f"all {tensors} tensors of the source's files, read by safetensors" in text
    assert "and 3 new ones of delta-sublayer" in text
    assert f"transformers' LlamaForCausalLM opened from {source}, on 128 random tokens in float32" in text


def test_two_names_exchanged_in_the_table(source, monkeypatch):
    names = dict(families.FAMILIES["llama"].names)
    names[UP], names[GATE] = names[GATE], names[UP]
    monkeypatch.setattr(families, "FAMILIES", {"llama": families.Family(names=names, architecture="LlamaForCausalLM")})
    refused(source, "logits differ from those of transformers' LlamaForCausalLM")


def test_an_epsilon_that_is_misread(source, monkeypatch):
    from lightning_dar.checkpoint import hf_config

    real = hf_config.positive
    monkeypatch.setattr(hf_config, "positive", lambda fields, name, absent=None: 2 * real(fields, name, absent))
    refused(source, "logits differ from those of transformers' LlamaForCausalLM")


READERS = {Renamed: "source", InMemory: "checkpoint", Unprefixed: "checkpoint"}


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_that_changes_a_bit(reader, monkeypatch, request):
    real = reader.read

    def lying(self, name):
        tensor = real(self, name).clone()
        if name.endswith("norm.weight"):
            tensor[0] *= 1 + 2**-23
        return tensor

    source = request.getfixturevalue(READERS[reader])
    monkeypatch.setattr(reader, "read", lying)
    refused(source, "norm.weight is not from the source")


@pytest.mark.parametrize("fixture", ["source", "checkpoint"])
def test_a_writer_that_loses_or_changes_something(fixture, monkeypatch, request):
    def damaged(tensors, path, metadata):
        for name, tensor in tensors.items():
            if name == "norm.weight":
                tensor[3] += 1
        save_file(tensors, path, metadata)

    source = request.getfixturevalue(fixture)
    monkeypatch.setattr(tensors, "save_file", damaged)
    refused(source, r"verification failed: norm.weight is not from the source; model.norm.weight is lost")


def test_two_layers_exchanged_in_our_own_checkpoint(checkpoint, monkeypatch):
    """The content is the same, tensor by tensor: only the logits tell."""
    real = Unprefixed.read
    exchanged = {"sublayers.0.q_proj.weight": "sublayers.2.q_proj.weight"}
    exchanged |= {value: key for key, value in exchanged.items()}
    monkeypatch.setattr(Unprefixed, "read", lambda self, name: real(self, exchanged.get(name, name)))
    refused(checkpoint, "logits are not the source's")


def absent(name):
    raise PackageNotFoundError(name)


@pytest.mark.parametrize(
    "version, says", [(absent, "is not installed"), (lambda name: "4.57.6", "4.57.6 reads config.json otherwise")]
)
def test_without_a_transformers_that_reads_as_we_do(version, says, source, tmp_path, monkeypatch):
    monkeypatch.setattr(verify, "version", version)
    text = "\n".join(run(source, tmp_path / "out"))
    assert f"not compared with transformers' own model of the source: transformers {says}" in text


def test_a_cast_is_compared_too(source, tmp_path, monkeypatch):
    assert "cast to bfloat16" in "\n".join(run(source, tmp_path / "out", dtype="bfloat16"))
    real = conversion.write_safetensors

    def truncated(folder, tensors, dtypes, *args, **options):
        real(folder, tensors, dict.fromkeys(dtypes, torch.float16), *args, **options)

    monkeypatch.setattr(conversion, "write_safetensors", truncated)
    with pytest.raises(DataError, match="verification failed"):
        run(source, tmp_path / "other", dtype="bfloat16")
