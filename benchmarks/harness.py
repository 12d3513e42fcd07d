"""Runs lm-evaluation-harness on a checkpoint of either format, on a small multiple-choice task that lies beside.

    python -m benchmarks.harness CHECKPOINT...

A Hugging Face folder that transformers opens (`convert --format hf`, or a pretrained one) goes through the harness's
own `hf` model, every other checkpoint through `load_model`. One JSON line a checkpoint: `acc` and `acc_norm` (by
length) over 60 questions, and `log_likelihood`, the sum over all 240 choices, by which two formats of one model agree
far beyond the score.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from lm_eval import simple_evaluate
from lm_eval.api.model import TemplateLM
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from lightning_dar import load_model
from lightning_dar.checkpoint.load import CONFIG_FILE, open_checkpoint
from lightning_dar.data import Tokenizer

TASK = {
    "task": "first_facts",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": str(Path(__file__).with_name("first_facts.jsonl"))}},
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "answer",
    "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
}


class CheckpointLM(TemplateLM):
    """The harness's interface to a `Transformer`: log-likelihoods of continuations, which multiple choice needs."""

    def __init__(self, path: str):
        super().__init__()
        self.tokens = Tokenizer(open_checkpoint(path).description["tokenizer"])
        self.model = load_model(path).eval()

    @property
    def eot_token_id(self) -> int:
        return self.tokens.end_id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        return self.tokens.encode(string)

    @torch.no_grad()
    def _loglikelihood_tokens(self, requests: list, **kwargs: Any) -> list[tuple[float, bool]]:
        scores = []
        for _, context, continuation in requests:
            logits = self.model(torch.tensor([context + continuation[:-1]]))[0, -len(continuation) :].float()
            targets = torch.tensor(continuation)
            chosen = logits.log_softmax(-1).gather(1, targets[:, None]).sum()
            scores.append((chosen.item(), bool((logits.argmax(-1) == targets).all())))
        return scores

    def loglikelihood_rolling(self, requests: list, disable_tqdm: bool = False) -> list[float]:
        raise NotImplementedError("multiple choice only")

    def generate_until(self, requests: list, disable_tqdm: bool = False) -> list[str]:
        raise NotImplementedError("multiple choice only")


def evaluate(path: str) -> dict[str, Any]:
    """The task's scores for the checkpoint at `path`."""
    foreign = (Path(path) / CONFIG_FILE).exists()
    model = HFLM(pretrained=path, trust_remote_code=True, device="cpu") if foreign else CheckpointLM(path)
    found = simple_evaluate(model, tasks=[TASK], task_manager=TaskManager(include_defaults=False), bootstrap_iters=0)
    scores, samples = (found[part][TASK["task"]] for part in ("results", "samples"))
    return {
        "checkpoint": path,
        "through": "transformers" if foreign else "load_model",
        **{name: round(scores[f"{name},none"], 4) for name in ("acc", "acc_norm")},
        "log_likelihood": round(sum(choice[0] for sample in samples for choice in sample["filtered_resps"]), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="+")
    for path in parser.parse_args().checkpoints:
        print(json.dumps(evaluate(path)), flush=True)


if __name__ == "__main__":
    main()
