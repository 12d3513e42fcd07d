"""Both formats of one model score the same under lm-evaluation-harness, each opened by its own library."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from foreign import save
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lightning_dar.checkpoint.convert import Conversion, convert
from lightning_dar.residual import ResidualConfig

pytest.importorskip("lm_eval")
ROOT = Path(__file__).parents[2]


def write_tokenizer(folder):
    """Bytes as tokens, behind an end token: the vocabulary fits any text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({"<eos>": 0, **{char: i + 1 for i, char in enumerate(alphabet)}}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>").save_pretrained(folder)


def test_a_routed_model_scores_the_same_in_both_formats(tmp_path):
    save("llama", tmp_path / "source", vocab_size=257, eos_token_id=0, bos_token_id=None)
    write_tokenizer(tmp_path / "source")
    for form in ("lightning", "hf"):
        residual = ResidualConfig(name="delta-block", options={"num_blocks": 2, "gate": "none"})
        convert(
            Conversion(
                source=str(tmp_path / "source"),
                output=str(tmp_path / form),
                format=form,
                residual=residual,
                allow_disturbance=True,
                verify=False,
            )
        )
    command = [sys.executable, "-m", "benchmarks.harness", *(tmp_path / name for name in ("lightning", "hf", "source"))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    ours, theirs, plain = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    assert (ours.pop("through"), theirs.pop("through")) == ("load_model", "transformers")
    assert ours["acc"] == theirs["acc"] and ours["acc_norm"] == theirs["acc_norm"]
    assert ours["log_likelihood"] == pytest.approx(theirs["log_likelihood"], rel=1e-6)
    assert plain["log_likelihood"] != pytest.approx(ours["log_likelihood"], rel=1e-3), "routing shows in the score"
