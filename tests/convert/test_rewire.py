"""A converted model is the original at step 0, or says by how much it is not."""

import re
from pathlib import Path

import pytest
import torch
from foreign import save
from safetensors.torch import load_file, save_file

from lightning_dar import load_model
from lightning_dar.convert import verify
from lightning_dar.convert.convert import Conversion, convert
from lightning_dar.errors import DataError, UsageError
from lightning_dar.residual import Residual, ResidualConfig, register_residual
from lightning_dar.residual.standard import Standard
from lightning_dar.text.tokenizer import BYTES_JSON

IDENTITIES = [
    ResidualConfig(name="delta-sublayer"),
    ResidualConfig(name="delta-sublayer", options={"null_source": True, "query_init": "normal"}),
    ResidualConfig(name="delta-block", options={"num_blocks": 2}),
    ResidualConfig(name="cumulative-additive"),
]
DISTURBANCES = [
    ResidualConfig(name="attnres", options={"num_blocks": 2}),
    ResidualConfig(name="cumulative-replacement"),
    ResidualConfig(name="delta-sublayer", options={"gate": "none"}),
    ResidualConfig(name="delta-block", options={"gate": "none", "null_source": True, "num_blocks": 2}),
]


def ident(residual):
    return " ".join([residual.name, *(f"{key}={value}" for key, value in residual.options.items())])


@pytest.fixture
def source(tmp_path):
    save("llama", tmp_path / "source", shard="20KB")
    return tmp_path / "source"


def run(source, output, **options):
    return convert(Conversion(source=str(source), output=str(output), **options))


@pytest.mark.parametrize("residual", IDENTITIES, ids=ident)
def test_an_additive_strategy_starts_as_the_original(residual, source, tmp_path):
    lines = run(source, tmp_path / "out", residual=residual)
    original, routed = load_model(source), load_model(tmp_path / "out")
    input_ids = torch.randint(97, (2, 33))
    assert torch.equal(routed(input_ids), original(input_ids))
    assert torch.equal(routed(input_ids, residual=Standard(None)), original(input_ids))
    assert routed.residual.gate.eq(0).all()
    routed(input_ids).logsumexp(-1).sum().backward()
    with_gradient = routed.residual.gate.grad.count_nonzero().item()
    expected = 6 if "null_source" in residual.options or residual.name.startswith("cumulative") else 5  # site 0 reads e
    assert with_gradient == expected
    assert f"verified: all {expected} gates that scale a read are zero and have a gradient" in lines
    assert "verified: logits equal the source's to the last bit" in lines


@pytest.mark.parametrize("residual", DISTURBANCES, ids=ident)
def test_other_strategies_need_leave(residual, source, tmp_path):
    with pytest.raises(UsageError, match="--allow-disturbance"):
        run(source, tmp_path / "out", residual=residual)
    assert not (tmp_path / "out").exists()
    lines = run(source, tmp_path / "out", residual=residual, allow_disturbance=True)
    assert any("not measured: the source has no tokenizer.json" in line for line in lines)
    input_ids = torch.randint(97, (2, 9))
    assert not torch.allclose(load_model(tmp_path / "out")(input_ids), load_model(source)(input_ids), atol=1e-3)


def test_a_tokenizer_with_more_ids_than_the_model(source, tmp_path):
    (source / "tokenizer.json").write_text(BYTES_JSON)
    with pytest.raises(DataError, match="the model's vocabulary ends at 96"):
        run(source, tmp_path / "out", residual=DISTURBANCES[0], allow_disturbance=True)


def test_the_measured_loss_is_the_models_own(tmp_path, capsys):
    save("llama", tmp_path / "source", vocab_size=257)
    (tmp_path / "source/tokenizer.json").write_text(BYTES_JSON)
    text = "some text to read aloud, " * 40
    (tmp_path / "text.txt").write_text(text)
    residual = ResidualConfig(name="delta-sublayer", options={"gate": "none"})
    (tmp_path / "other.txt").write_text(text, encoding="utf-16")
    calibration = {"allow_disturbance": True, "calibration_text": [str(tmp_path / "*.txt")]}
    lines = run(tmp_path / "source", tmp_path / "out", residual=residual, **calibration)
    assert "left out 1 document(s) that are no text: 1 in UTF-16" in capsys.readouterr().err
    (line,) = [line for line in lines if line.startswith("loss on")]
    printed = [float(number) for number in re.findall(r"([\d.]+) (?:before|after)", line)]
    windows = torch.tensor(list(text.encode())[: 3 * 257]).view(3, 257)
    for path, loss in zip(("source", "out"), printed, strict=True):
        logits = load_model(tmp_path / path)(windows[:, :-1])
        expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        assert loss == pytest.approx(expected.item(), abs=1e-5)
    assert printed[0] != printed[1]


def test_back_to_standard_while_every_gate_is_zero(source, tmp_path):
    run(source, tmp_path / "routed", residual=ResidualConfig(name="delta-sublayer"))
    run(tmp_path / "routed", tmp_path / "back", residual=ResidualConfig(name="standard"))
    input_ids = torch.randint(97, (2, 9))
    assert torch.equal(load_model(tmp_path / "back")(input_ids), load_model(source)(input_ids))
    weights = tmp_path / "routed/model.safetensors"
    tensors = load_file(weights)
    tensors["residual.gate"][3] = 1e-9
    save_file(tensors, weights)
    with pytest.raises(UsageError, match="has 1 gates that are not zero"):
        run(tmp_path / "routed", tmp_path / "again", residual=ResidualConfig(name="standard"))


def test_from_one_routing_to_another_is_refused(source, tmp_path):
    run(source, tmp_path / "routed", residual=ResidualConfig(name="delta-sublayer"))
    with pytest.raises(UsageError, match="is routed by delta-sublayer already"):
        run(tmp_path / "routed", tmp_path / "out", residual=ResidualConfig(name="delta-block"))


def test_a_plugin_that_changes_the_network_is_found_out(source, tmp_path, own_registry):
    @register_residual("halved")
    class Halved(Standard):
        def write(self, state, y, site):
            return state + 0.5 * y

    with pytest.raises(DataError, match="logits are not the source's.*--allow-disturbance"):
        run(source, tmp_path / "out", residual=ResidualConfig(name="halved"))
    assert not (tmp_path / "out").exists()


def test_a_plugin_with_other_sublayers_is_refused(source, tmp_path, own_registry):
    @register_residual("three-inputs")
    class Three(Residual):
        attention_inputs = 3

    with pytest.raises(DataError, match="it needs sublayers.0.key_norm.weight"):
        run(source, tmp_path / "out", residual=ResidualConfig(name="three-inputs"))


@pytest.mark.parametrize("damage", ["tensor", "gate"])
def test_verification_finds_what_went_wrong(damage, source, tmp_path, monkeypatch):
    real = verify.open_checkpoint

    def damaged(path):
        weights = Path(path) / "model.safetensors"
        tensors = load_file(weights)
        if damage == "tensor":
            tensors["sublayers.3.up_proj.weight"][1, 2] *= 1.001
        else:
            tensors["residual.gain"][4] = 0.0  # keys vanish, but not the read
            tensors["residual.gate"] = torch.full_like(tensors["residual.gate"], 1e-3)
        save_file(tensors, weights)
        return real(path)

    monkeypatch.setattr(verify, "open_checkpoint", damaged)
    with pytest.raises(DataError, match="sublayers.3.up_proj" if damage == "tensor" else "logits are not the source's"):
        run(source, tmp_path / "out", residual=ResidualConfig(name="delta-sublayer"))
    assert not (tmp_path / "out").exists()


def test_no_verify_says_so(source, tmp_path):
    assert "not verified (--no-verify)" in run(source, tmp_path / "out", verify=False)
