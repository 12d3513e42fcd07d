"""Folders of routed models under transformers' own operations: resizing, saving, dtypes, kernels, edited configs."""

import json
import shutil

import pytest
import torch
from hf_models import exported, opened, standard_config
from safetensors.torch import load_file
from tiny import VOCAB, tiny_config
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from lightning_dar import load_model
from lightning_dar.convert.convert import Conversion, convert
from lightning_dar.convert.hf_modeling import RoutedForCausalLM
from lightning_dar.errors import DataError

IDS = torch.randint(20, (2, 7), generator=torch.Generator().manual_seed(4))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Both ways of the head, by whether it is tied: a folder and the model that it was written from."""
    torch.manual_seed(0)
    parent = tmp_path_factory.mktemp("folders")
    options = {"gate": "alpha", "null_source": True}
    return {
        tied: (path, exported(path, "delta-sublayer", tiny_config(tie_embeddings=tied), **options))
        for tied, path in ((True, parent / "routed-tied"), (False, parent / "routed-untied"))
    }


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def folder(request, folders):
    return folders[request.param][0]


@pytest.fixture
def untied(folders):
    return folders[False]


RESIZED = {
    "grown": {"new_num_tokens": 40},
    "shrunk": {"new_num_tokens": 20},
    "to a multiple": {"new_num_tokens": 33, "pad_to_multiple_of": 8},
    "only to a multiple": {"pad_to_multiple_of": 16},
    "as it is": {"new_num_tokens": VOCAB},
    "not by the mean": {"new_num_tokens": 36, "mean_resizing": False},
}


@pytest.mark.parametrize("case", RESIZED)
def test_resized_embeddings(folder, case, tmp_path):
    model, before = opened(folder), opened(folder)(IDS).logits
    model.resize_token_embeddings(**RESIZED[case])
    qwen = Qwen3ForCausalLM(Qwen3Config(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=1))
    qwen.resize_token_embeddings(**RESIZED[case])
    size = qwen.config.vocab_size
    assert model.config.vocab_size == model.config.lightning_dar["architecture"]["vocab_size"] == size
    assert model.get_input_embeddings().weight.shape[0] == model.get_output_embeddings().weight.shape[0] == size
    logits = model(IDS, labels=IDS).logits
    kept = min(size, VOCAB)
    assert torch.equal(logits[..., :kept], before[..., :kept]), "the tokens that were there mean what they did"

    model.save_pretrained(tmp_path / "resized")
    again, ours = opened(tmp_path / "resized"), load_model(tmp_path / "resized")
    assert torch.equal(again(IDS).logits, logits) and torch.equal(ours(IDS), logits)
    assert ours.config.vocab_size == size and again.config.vocab_size == size
    convert(Conversion(source=str(tmp_path / "resized"), output=str(tmp_path / "ours")))
    assert torch.equal(load_model(tmp_path / "ours")(IDS), logits)


def test_the_head_is_tied_or_not(folder, folders):
    model = opened(folder)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == (folder == folders[True][0])
    assert model.get_output_embeddings() is model.lm_head
    new = torch.nn.Embedding(VOCAB, 16)
    model.set_input_embeddings(new)
    assert model.get_input_embeddings() is new and not torch.equal(model(IDS).logits, opened(folder)(IDS).logits)


@pytest.mark.parametrize("size", ["5KB", "1GB"])
def test_saved_again_in_one_file_or_many(untied, tmp_path, size):
    opened(untied[0]).save_pretrained(tmp_path / "again", max_shard_size=size)
    assert len(list((tmp_path / "again").glob("*.safetensors"))) > (size == "5KB")
    assert torch.equal(opened(tmp_path / "again")(IDS).logits, untied[1](IDS))
    assert torch.equal(load_model(tmp_path / "again")(IDS), untied[1](IDS))


def test_trained_weights_come_back(folder, tmp_path):
    model = opened(folder).train()
    model(IDS, labels=IDS).loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter -= 0.1 * parameter.grad
    logits = model.eval()(IDS).logits
    model.save_pretrained(tmp_path / "trained")
    assert torch.equal(load_model(tmp_path / "trained")(IDS), logits)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dtypes(untied, dtype):
    for model in (opened(untied[0], dtype=dtype), opened(untied[0]).to(dtype)):
        assert {parameter.dtype for parameter in model.parameters()} == {dtype}
        logits = model(IDS).logits
        assert logits.dtype == dtype
        exact = untied[1](IDS)
        assert (logits.float() - exact).abs().max() < 0.1 * exact.abs().max()


@pytest.mark.parametrize("device_map", ["auto", {"": "cpu"}, {"model": "disk", "lm_head": "cpu"}])
def test_device_maps(untied, device_map, tmp_path):
    model = opened(untied[0], device_map=device_map, offload_folder=tmp_path)
    assert torch.equal(model(IDS).logits, untied[1](IDS))


def test_attention_by_name(untied):
    eager = opened(untied[0], attn_implementation="eager")
    assert eager.config._attn_implementation == "eager"
    torch.testing.assert_close(eager(IDS).logits, untied[1](IDS), atol=1e-4, rtol=1e-4)
    with pytest.raises(ImportError, match=r"flash_attn|FlashAttention2"):
        opened(untied[0], attn_implementation="flash_attention_2")
    with pytest.raises(ValueError, match='attn_implementation="nonsense"'):
        opened(untied[0], attn_implementation="nonsense")


@pytest.mark.slow  # its kernel is compiled
@torch.no_grad()
def test_flex_attention(untied):
    flex = opened(untied[0], attn_implementation="flex_attention")
    torch.testing.assert_close(flex(IDS).logits, untied[1](IDS), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("auto", [pytest.param(AutoModel, marks=pytest.mark.slow), AutoModelForSequenceClassification])
def test_other_heads_are_not_offered(untied, auto):
    with pytest.raises(ValueError, match="Unrecognized configuration class"):
        auto.from_pretrained(untied[0], trust_remote_code=True)


def test_from_the_config_alone(untied):
    """Not a value of it is left as the memory was."""
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(untied[0], trust_remote_code=True)
    model = AutoModelForCausalLM.from_config(config, trust_remote_code=True)
    for name, parameter in model.named_parameters():
        kind = name.split(".")[-2]
        if kind in ("query", "gate", "null_source"):
            assert not parameter.any(), name
        elif "norm" in kind or kind == "gain":
            assert (parameter == 1).all(), name
        else:
            outputs = (2 * config.num_hidden_layers) ** -0.5 if kind in ("o_proj", "down_proj") else 1.0
            assert parameter.std().item() == pytest.approx(config.hidden_size**-0.5 * outputs, rel=0.15), name


def test_hidden_states_of_a_routed_model(untied):
    """What the attention of each layer reads, then what the head reads."""
    model, ours, read = opened(untied[0]), untied[1], []
    hooks = [a.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0])) for a in ours.sublayers[::2]]
    hidden = ours(IDS, head=lambda states, weight: states)
    for hook in hooks:
        hook.remove()
    states = model(IDS, output_hidden_states=True).hidden_states
    assert len(states) == 5
    for found, wanted in zip(states, [*read, hidden], strict=True):
        assert torch.equal(found, wanted)


EDITED = {
    "vocab_size": (40, "vocab_size=40, but lightning_dar.architecture.vocab_size=31"),
    "num_hidden_layers": (2, "num_hidden_layers=2, but lightning_dar.architecture.num_layers=4"),
    "tie_word_embeddings": (True, "tie_word_embeddings=True, but lightning_dar.architecture.tie_embeddings=False"),
    "rope_theta": (5.0, "rope_theta=5.0"),
    "rope_parameters": ({"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}, "rope_type='yarn'"),
    "rope_scaling": ({"rope_type": "linear", "factor": 2.0}, "rope_type='linear'"),
    "hidden_act": ("gelu", "hidden_act='gelu' is not what it does"),
    "sliding_window": (4, "sliding_window=4 is not what it does"),
    "attention_dropout": (0.1, "attention_dropout=0.1 is not what it does"),
}


@pytest.mark.parametrize("field", EDITED)
def test_an_edited_config_is_refused_where_it_contradicts(untied, field, tmp_path):
    value, message = EDITED[field]
    shutil.copytree(untied[0], tmp_path / f"edited-{field}")
    path = tmp_path / f"edited-{field}" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        opened(path.parent)
    with pytest.raises(DataError, match=message.replace(".", r"\.")):
        load_model(path.parent)


def test_a_field_that_is_set_is_the_models(tmp_path):
    """As with Qwen3: before the model is built, the sizes are the config's."""
    config = standard_config()
    config.num_hidden_layers, config.vocab_size, config.tie_word_embeddings = 2, 50, False
    model = RoutedForCausalLM(config)
    assert len(model.model.sublayers) == 4 and model.lm_head.weight.shape == (50, 16)
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    model.save_pretrained(tmp_path / "set")
    described = json.loads((tmp_path / "set/config.json").read_text())["lightning_dar"]["architecture"]
    assert (described["num_layers"], described["vocab_size"], described["tie_embeddings"]) == (2, 50, False)
    assert "lm_head.weight" in load_file(tmp_path / "set/model.safetensors")


@pytest.mark.parametrize("field, value", [("num_layers", 2), ("rope_theta", 5.0)])
def test_a_description_edited_alone_is_refused(field, value):
    config = standard_config(rope_theta=10_000.0)
    config.lightning_dar["architecture"][field] = value
    with pytest.raises(ValueError, match="the model's config contradicts its description"):
        RoutedForCausalLM(config)


def test_rotary_embeddings_edited_in_place_are_refused():
    config = standard_config(rope_parameters={"rope_type": "default", "rope_theta": 10_000.0})
    config.rope_parameters["rope_theta"] = 5.0
    with pytest.raises(ValueError, match=r"rope_theta=5\.0, but lightning_dar\.architecture has 10000\.0"):
        RoutedForCausalLM(config)
