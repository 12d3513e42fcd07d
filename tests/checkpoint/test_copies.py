"""Tensors stored beside those that count: what transformers computes from the folder is what we compute, and nothing is
left out that differs from what stands for it."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from foreign import save
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from lightning_dar import load_model
from lightning_dar.convert.convert import Conversion, convert
from lightning_dar.errors import DataError

REFERENCE = Path(__file__).parents[1] / "reference/delta_sublayer"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
FREQUENCIES = "model.layers.1.self_attn.rotary_emb.inv_freq"


def edit(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def other_head(tensors):
    tensors[HEAD] = tensors[EMBEDDING].flip(0).contiguous()


def one_bit(tensors):
    tensors[HEAD] = tensors[EMBEDDING].clone()
    tensors[HEAD][-1, -1].view(torch.int32).bitwise_xor_(1)


def same_head(tensors):
    tensors[HEAD] = tensors[EMBEDDING].clone()


def head_alone(tensors):
    tensors[HEAD] = tensors.pop(EMBEDDING)


STORED = {  # what is stored -> whether the model is tied, and what is said
    "another head": (other_head, False, "lm_head.weight differs from model.embed_tokens.weight, though config.json"),
    "one bit of it": (one_bit, False, "lm_head.weight differs from model.embed_tokens.weight, though config.json"),
    "the same head": (same_head, True, "lm_head.weight is model.embed_tokens.weight to the last bit"),
    "the head alone": (head_alone, True, ""),
    "the embedding alone": (lambda tensors: None, True, ""),
}


@torch.no_grad()
@pytest.mark.parametrize("family", ["qwen3", "llama"])
@pytest.mark.parametrize("stored", STORED)
def test_a_tied_head(stored, family, tmp_path):
    change, tied, says = STORED[stored]
    source = tmp_path / "source"
    save(family, source, tie_word_embeddings=True)
    edit(source, change)
    input_ids = torch.randint(97, (2, 9))
    expected = AutoModelForCausalLM.from_pretrained(source).eval()(input_ids).logits
    lines = convert(Conversion(source=str(source), output=str(tmp_path / "ours")))
    assert says in "\n".join(lines)
    for folder in (source, tmp_path / "ours"):
        ours = load_model(folder)
        assert (ours.head is None) == tied
        torch.testing.assert_close(ours(input_ids), expected, atol=1e-5, rtol=0)
    convert(Conversion(source=str(tmp_path / "ours"), output=str(tmp_path / "back"), format="hf"))
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "back").eval()
    assert back.config.tie_word_embeddings == tied
    torch.testing.assert_close(back(input_ids).logits, expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_tied_head_in_the_authors_layout(tmp_path):
    shutil.copytree(REFERENCE, tmp_path / "source")
    edit(tmp_path / "source", other_head)
    (tmp_path / "source/expected.safetensors").unlink()
    untied = load_model(tmp_path / "source")
    assert torch.equal(untied.head.weight, untied.embed.weight.flip(0))
    edit(tmp_path / "source", same_head)
    assert load_model(tmp_path / "source").head is None


def test_of_two_shapes_is_a_tensor_that_does_not_fit(tmp_path):
    save("llama", tmp_path / "source", tie_word_embeddings=True)
    edit(tmp_path / "source", lambda tensors: tensors.update({HEAD: torch.ones(96, 32)}))
    with pytest.raises(DataError, match=r"lm_head.weight has shape \[96, 32\], not \[97, 32\]"):
        load_model(tmp_path / "source")


def frequencies(dtype=torch.float32, theta=10_000.0):
    return (1 / theta ** (torch.arange(0, 8, 2) / 8)).to(dtype)


@pytest.mark.parametrize("name", [FREQUENCIES, "model.rotary_emb.inv_freq"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_stored_frequencies_that_are_those_of_the_config(dtype, name, tmp_path):
    theirs = save("llama", tmp_path / "source")
    edit(tmp_path / "source", lambda tensors: tensors.update({name: frequencies(dtype)}))
    input_ids = torch.randint(97, (1, 9))
    torch.testing.assert_close(load_model(tmp_path / "source")(input_ids), theirs(input_ids).logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("stored", [torch.ones(4), frequencies(theta=10_100.0), frequencies()[:2]])
def test_stored_frequencies_of_another_base(stored, tmp_path):
    save("llama", tmp_path / "source")
    edit(tmp_path / "source", lambda tensors: tensors.update({FREQUENCIES: stored.clone()}))
    with pytest.raises(DataError, match=f"{FREQUENCIES} is not what rope_theta=10000 in config.json says"):
        load_model(tmp_path / "source")


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.masked_bias",
        "model.layers.0._extra_state",
        "score.weight",
        "model.layers.3.mlp.up_proj",
    ],
)
def test_whatever_else_is_stored_is_refused(name, tmp_path):
    save("llama", tmp_path / "source")
    edit(tmp_path / "source", lambda tensors: tensors.update({name: torch.zeros(3)}))
    with pytest.raises(DataError, match=f"unknown {name}"):
        load_model(tmp_path / "source")


@pytest.mark.parametrize("tied", [None, False])
def test_a_head_that_is_missing(tied, tmp_path):
    save("llama", tmp_path / "source", tie_word_embeddings=True)
    config = json.loads((tmp_path / "source/config.json").read_text())
    del config["tie_word_embeddings"]
    (tmp_path / "source/config.json").write_text(
        json.dumps(config if tied is None else {**config, "tie_word_embeddings": tied})
    )
    with pytest.raises(DataError, match="missing lm_head.weight"):
        load_model(tmp_path / "source")
