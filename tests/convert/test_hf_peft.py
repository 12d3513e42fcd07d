"""Adapters of peft on a routed model: what their names reach, and that merged and reopened ones compute the same."""

import copy

import pytest
import torch
from hf_models import exported, opened
from peft import LoraConfig, PeftModel, PromptTuningConfig, get_peft_model
from tiny import VOCAB, tiny_config

from lightning_dar import load_model

IDS = torch.randint(VOCAB, (2, 7), generator=torch.Generator().manual_seed(6))
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("peft") / "routed-adapted"
    torch.manual_seed(0)
    sizes = tiny_config(tie_embeddings=False, num_layers=2)
    exported(path, "delta-block", sizes, num_blocks=2, gate="alpha", null_source=True)
    return path


def adapted(folder, **options):
    return get_peft_model(opened(folder), LoraConfig(r=2, task_type="CAUSAL_LM", **options))


def trained(model):
    """Three steps of plain descent; the names of what changed, as far as they tell modules apart."""
    before = {name: value.clone() for name, value in model.named_parameters()}
    optimizer = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        model(input_ids=IDS, labels=IDS).loss.backward()
        optimizer.step()
    changed = [name for name, value in model.named_parameters() if not torch.equal(value, before[name])]
    return {part for name in changed for part in name.split(".")}


REACHED = {  # options -> modules that train
    "projections": ({"target_modules": PROJECTIONS}, PROJECTIONS),
    "all linear ones": ({"target_modules": "all-linear"}, PROJECTIONS),
    "a pattern": ({"target_modules": r".*\.(q|v)_proj"}, ["q_proj", "v_proj"]),
    "all routing": ({"modules_to_save": ["residual"]}, ["query", "gain", "gate", "null_source"]),
    "queries": ({"modules_to_save": ["query"]}, ["query"]),
    "gains and gates": ({"modules_to_save": ["gain", "gate"]}, ["gain", "gate"]),
    "null sources": ({"modules_to_save": ["null_source"]}, ["null_source"]),
    "queries by low rank": ({"target_parameters": ["query.weight"]}, ["query"]),
    "embedding and head": ({"modules_to_save": ["embed_tokens", "lm_head"]}, ["embed_tokens", "lm_head"]),
    "norms": ({"modules_to_save": ["norm"]}, ["norm", "q_norm", "k_norm"]),
}
NAMES = {name for _, names in REACHED.values() for name in names}


@pytest.mark.parametrize("case", REACHED)
def test_what_a_name_reaches(folder, case, tmp_path):
    options, names = REACHED[case]
    model = adapted(folder, **{"target_modules": ["q_proj"], **options})
    reached = set(names) | (set() if "target_modules" in options else {"q_proj"})
    assert trained(model) & NAMES == reached
    with torch.no_grad():
        logits = model.eval()(IDS).logits
    assert not torch.allclose(logits, opened(folder)(IDS).logits)

    model.save_pretrained(tmp_path / "adapter")
    again = PeftModel.from_pretrained(opened(folder), tmp_path / "adapter").eval()
    assert torch.equal(again(IDS).logits, logits)
    merged = copy.deepcopy(model).merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    for plain in (merged, opened(tmp_path / "merged")):
        torch.testing.assert_close(plain(IDS).logits, logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(load_model(tmp_path / "merged")(IDS), logits, atol=1e-4, rtol=1e-4)


REFUSED = {
    "misspelt": ({"modules_to_save": ["querry"]}, "modules_to_save: .* nothing named 'querry'; did you mean 'query'"),
    "a path that is not there": ({"modules_to_save": ["residual.query"]}, "'residual.query'; did you mean"),
    "of other models": ({"modules_to_save": ["score"]}, "nothing named 'score'; it has .*residual"),
    "one of several": ({"target_modules": ["q_proj", "query_key_value"]}, "target_modules: .* 'query_key_value'"),
    "a parameter without its own name": ({"target_parameters": ["query"]}, "target_parameters: .* 'query.weight'"),
    "a parameter by a module's rule": ({"target_modules": ["q_proj", "query"]}, "RoutingParameter.* is not supported"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_name_that_reaches_nothing_is_refused(folder, case):
    options, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        adapted(folder, **{"target_modules": ["q_proj"], **options})


def test_a_gate_that_the_model_does_not_have(tmp_path):
    exported(tmp_path / "routed-ungated", "delta-sublayer")
    with pytest.raises(ValueError, match="nothing named 'gate'"):
        adapted(tmp_path / "routed-ungated", target_modules=["q_proj"], modules_to_save=["gate"])


def test_with_gradient_checkpointing(folder):
    model = adapted(folder, target_modules=["q_proj"], modules_to_save=["residual"])
    model.train()(input_ids=IDS, labels=IDS).loss.backward()
    plain = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    model.zero_grad()
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()
    model(input_ids=IDS, labels=IDS).loss.backward()
    for name, gradient in plain.items():
        assert torch.equal(model.get_parameter(name).grad, gradient), name


def test_virtual_tokens(folder):
    model = get_peft_model(opened(folder), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)).eval()
    embeddings = opened(folder).get_input_embeddings()
    prompt = model.get_prompt(batch_size=2)
    wanted = opened(folder)(inputs_embeds=torch.cat([prompt, embeddings(IDS)], 1)).logits
    assert torch.equal(model(input_ids=IDS).logits, wanted)
