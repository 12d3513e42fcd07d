"""Each family against transformers: the same logits and greedy text, and back again byte for byte."""

import json

import pytest
import torch
from foreign import FAMILIES, save
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from lightning_dar import load_model
from lightning_dar.checkpoint.families import FAMILIES as TABLES
from lightning_dar.checkpoint.families import name_table
from lightning_dar.checkpoint.load import build_on_meta, open_checkpoint, tensor_infos
from lightning_dar.convert.convert import Conversion, convert
from lightning_dar.model.generate import generate
from lightning_dar.residual import ResidualConfig

BASE = {"rope_type": "default", "rope_theta": 300.0}


def run(source, output, **options):
    return convert(Conversion(source=str(source), output=str(output), **options))


def weights(folder):
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_greedy_text_are_those_of_transformers(family, tmp_path):
    theirs = save(family, tmp_path / "source", shard="20KB")
    assert len(list((tmp_path / "source").glob("*.safetensors"))) > 3
    run(tmp_path / "source", tmp_path / "ours")
    ours = load_model(tmp_path / "ours")
    input_ids = torch.randint(97, (2, 60))
    with torch.no_grad():
        expected = theirs(input_ids).logits
        assert expected.std() > 0.3
        torch.testing.assert_close(ours(input_ids), expected, atol=1e-5, rtol=0)
    prompt = input_ids[:1, :7]
    text = theirs.generate(prompt, max_new_tokens=64, min_new_tokens=64, do_sample=False, eos_token_id=None)
    assert torch.equal(generate(ours, prompt, 64, temperature=0), text)


@pytest.mark.parametrize("family", FAMILIES)
def test_back_to_transformers_byte_for_byte(family, tmp_path):
    theirs = save(family, tmp_path / "source", shard="20KB")
    run(tmp_path / "source", tmp_path / "ours")
    run(tmp_path / "ours", tmp_path / "back", format="hf")
    before, after = weights(tmp_path / "source"), weights(tmp_path / "back")
    assert set(before) == set(after)
    assert all(torch.equal(after[name].view(torch.uint8), before[name].view(torch.uint8)) for name in before)
    configs = [AutoConfig.from_pretrained(tmp_path / name).to_dict() for name in ("source", "back")]
    assert [config.pop("_name_or_path") for config in configs]
    assert configs[0] == configs[1]
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "back").eval()
    input_ids = torch.randint(97, (2, 20))
    torch.testing.assert_close(again(input_ids).logits, theirs(input_ids).logits, atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "llama3"])
@pytest.mark.parametrize("ignored", [["rope_parameters"], ["rope_theta", "rope_scaling"]], ids=["before 5", "since 5"])
def test_either_spelling_of_the_rotary_embeddings_is_enough(ignored, family, tmp_path):
    """transformers 4 does not know `rope_parameters`, which is all that transformers 5 writes."""
    theirs = save(family, tmp_path / "source", **({} if family == "llama3" else {"rope_parameters": BASE}))
    run(tmp_path / "source", tmp_path / "ours", format="hf")
    path = tmp_path / "ours/config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in config.items() if key not in ignored}))
    input_ids = torch.randint(97, (1, 60))
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    torch.testing.assert_close(again(input_ids).logits, theirs(input_ids).logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama3"])
def test_a_model_without_a_config_of_theirs_gets_one(family, tmp_path):
    theirs = save(family, tmp_path / "source")
    run(tmp_path / "source", tmp_path / "ours")
    description = json.loads((tmp_path / "ours/lightning_dar.json").read_text())
    (tmp_path / "ours/lightning_dar.json").write_text(json.dumps({**description, "hf_config": None}))
    run(tmp_path / "ours", tmp_path / "back", format="hf")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "back").eval()
    assert type(again) is type(theirs)
    input_ids = torch.randint(97, (2, 20))
    torch.testing.assert_close(again(input_ids).logits, theirs(input_ids).logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dtypes_stay_unless_told_otherwise(dtype, tmp_path):
    save("qwen3", tmp_path / "source", dtype=dtype)
    run(tmp_path / "source", tmp_path / "kept", residual=ResidualConfig(name="delta-sublayer"))
    assert {tensor.dtype for tensor in weights(tmp_path / "kept").values()} == {dtype}
    run(tmp_path / "source", tmp_path / "cast", dtype="float32", format="hf")
    before, after = weights(tmp_path / "source"), weights(tmp_path / "cast")
    assert all(torch.equal(after[name], before[name].float()) for name in before)
    assert json.loads((tmp_path / "cast/config.json").read_text())["dtype"] == "float32"


ROUTED = [ResidualConfig(name="attnres", options={"num_blocks": 2})] + [
    ResidualConfig(name=name, options={"gate": gate, "null_source": null})
    for name in ("delta-sublayer", "delta-block")
    for gate in ("none", "alpha")
    for null in (False, True)
]


def cases():
    for family, table in TABLES.items():
        for tied in (True, False):
            for residual in ROUTED if table.architecture is None else [ResidualConfig(name="standard")]:
                yield pytest.param(family, tied, residual, id=f"{family} {'tied' if tied else 'head'} {residual}")


@pytest.mark.parametrize("family, tied, residual", cases())
def test_every_table_is_a_bijection(family, tied, residual):
    from lightning_dar.model import resolve_config

    config = resolve_config(
        vocab_size=97,
        hidden_size=32,
        num_layers=5,
        num_heads=4,
        qk_norm=TABLES[family].qk_norm,
        qkv_bias=TABLES[family].qkv_bias,
        tie_embeddings=tied,
    )
    ours = tensor_infos(build_on_meta(config, residual))
    places = list(name_table(family, 5, ours).values())
    assert len(set(places)) == len(places), "two of their tensors would lie in one place of ours"
    rows = {name: {place.row for place in places if place.name == name} for name in ours}
    for name, info in ours.items():
        assert rows[name] in ({None}, set(range(info.shape[0]))), name


def test_opening_reads_no_weights(tmp_path, monkeypatch):
    from lightning_dar.checkpoint.tensors import SafetensorsFiles

    save("llama", tmp_path / "source")
    monkeypatch.setattr(SafetensorsFiles, "read", None)
    assert open_checkpoint(tmp_path / "source").config.num_layers == 3
