"""Runs the tasks, and brings their scores together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lightning_dar.checkpoint.carried import tokenizer_of
from lightning_dar.checkpoint.load import CONFIG_FILE, Checkpoint, load_weights
from lightning_dar.evaluate.tasks import PAPER_TASKS, load_tasks
from lightning_dar.run.parser import table

MAX_LENGTH = 2048  # where neither the run nor the model's config tells it


@dataclass(frozen=True, kw_only=True)
class TaskScore:
    """One task: accuracy, accuracy with choices weighed by their length, and their standard errors; None where the task
    has no such metric. `metrics` has everything that the harness reports."""

    task: str
    accuracy: float | None
    accuracy_error: float | None
    normalised: float | None
    normalised_error: float | None
    metrics: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Scores of a checkpoint. `average` is the mean accuracy over the tasks, each counted once, as in the paper's table
    of eight; `log_likelihood` the sum over all choices, by which two formats of a model agree far beyond the score."""

    checkpoint: str
    through: str
    tasks: list[TaskScore]
    average: float | None
    paper: bool
    log_likelihood: float | None


def evaluate(
    checkpoint: Checkpoint, names: Sequence[str], device: torch.device, batch_size: int, limit: int | None
) -> Evaluation:
    """Scores a checkpoint: through transformers where its folder is one of theirs, else through our own model.

    Raises:
        UsageError: an unknown task.
        DataError: data sets that cannot be had, or a checkpoint without a tokenizer.
    """
    tasks, manager = load_tasks(names)
    foreign = checkpoint.path.is_dir() and (checkpoint.path / CONFIG_FILE).exists()
    model = _through_transformers(checkpoint, device, batch_size) if foreign else _ours(checkpoint, device, batch_size)
    through = "transformers" if foreign else "lightning_dar"
    found = run_tasks(model, tasks, manager, limit)
    return evaluation(found, names, str(checkpoint.path), through)


def run_tasks(model: Any, tasks: Sequence[Any], manager: Any, limit: int | None) -> dict[str, Any]:
    """The harness's results, zero-shot, of one of its language models; tasks and manager are those of `load_tasks`."""
    from lm_eval import simple_evaluate

    return simple_evaluate(
        model, tasks=list(tasks), task_manager=manager, num_fewshot=0, limit=limit, bootstrap_iters=0
    )


def evaluation(found: dict[str, Any], names: Sequence[str], checkpoint: str, through: str) -> Evaluation:
    """The part of the harness's results that is reported."""
    scores = [_task_score(name, found["results"][name]) for name in names]
    known = [each.accuracy for each in scores if each.accuracy is not None]
    choices = [
        choice[0]
        for samples in found["samples"].values()
        for sample in samples
        for choice in sample["filtered_resps"]
        if isinstance(choice, tuple | list) and isinstance(choice[0], float)
    ]
    return Evaluation(
        checkpoint=checkpoint,
        through=through,
        tasks=scores,
        average=sum(known) / len(known) if known else None,
        paper=set(names) == set(PAPER_TASKS),
        log_likelihood=sum(choices) if choices else None,
    )


def _ours(checkpoint: Checkpoint, device: torch.device, batch_size: int) -> Any:
    from lightning_dar.evaluate.language_model import TransformerLM

    tokenizer = tokenizer_of(checkpoint)
    model = checkpoint.build()
    load_weights(model, checkpoint)
    positions = (checkpoint.description.get("hf_config") or {}).get("max_position_embeddings")
    length = positions or checkpoint.seq_len or MAX_LENGTH
    return TransformerLM(model.eval().to(device), tokenizer, length, batch_size, checkpoint.end_ids)


def _through_transformers(checkpoint: Checkpoint, device: torch.device, batch_size: int) -> Any:
    from lm_eval.models.huggingface import HFLM

    return HFLM(
        pretrained=str(checkpoint.path), trust_remote_code=True, device=str(device), batch_size=batch_size, dtype="auto"
    )


def _task_score(name: str, metrics: dict[str, Any]) -> TaskScore:
    numbers = {key.removesuffix(",none"): value for key, value in metrics.items() if isinstance(value, int | float)}

    def of(metric: str) -> float | None:
        return numbers.get(metric)

    return TaskScore(
        task=name,
        accuracy=of("acc"),
        accuracy_error=of("acc_stderr"),
        normalised=of("acc_norm"),
        normalised_error=of("acc_norm_stderr"),
        metrics=numbers,
    )


def scores_table(found: Sequence[Evaluation]) -> str:
    """One row for each task and one for their average, a column of accuracy and one by length for each checkpoint."""
    head = ["task", *(cell for each in found for cell in (f"{each.checkpoint}: acc", "acc_norm"))]
    rows = [
        [first.task, *(cell for each in found for cell in _cells(each, row))]
        for row, first in enumerate(found[0].tasks)
    ]
    label = "average of the paper's 8" if found[0].paper else "average"
    rows.append([label, *(cell for each in found for cell in (_number(each.average), ""))])
    return table(head, rows)


def _cells(evaluation: Evaluation, row: int) -> tuple[str, str]:
    score = evaluation.tasks[row]
    return _with_error(score.accuracy, score.accuracy_error), _with_error(score.normalised, score.normalised_error)


def _with_error(value: float | None, error: float | None) -> str:
    return _number(value) if error is None else f"{_number(value)} +- {error:.4f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
