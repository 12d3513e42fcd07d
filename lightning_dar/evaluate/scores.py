"""Scores of checkpoints on tasks of lm-evaluation-harness."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from lightning_dar.checkpoint.carried import tokenizer_of
from lightning_dar.checkpoint.load import CONFIG_FILE, Checkpoint, load_weights
from lightning_dar.evaluate.tasks import PAPER_TASKS, load_tasks
from lightning_dar.model import Transformer
from lightning_dar.model.generate import generate_tokens
from lightning_dar.run.parser import table
from lightning_dar.text.tokenizer import Tokenizer

DEFAULT_MAX_NEW_TOKENS = 256  # the harness's own


class TransformerLM(TemplateLM):
    """Log-likelihoods and greedy or sampled continuations of texts.

    Args:
        model: in evaluation mode, on its device.
        tokenizer: its own.
        max_length: tokens that the model sees at most; longer texts lose their beginning.
        batch_size: texts in a forward.
        end_ids: ids that end a generated text.
    """

    def __init__(
        self, model: Transformer, tokenizer: Tokenizer, max_length: int, batch_size: int, end_ids: Sequence[int] = ()
    ):
        super().__init__()
        self.model, self.tokens = model, tokenizer
        self.max_length, self.batch_size = max_length, batch_size
        self.end_ids = {tokenizer.end_id, *end_ids}

    @property
    def eot_token_id(self) -> int:
        return self.tokens.end_id

    @property
    def prefix_token_id(self) -> int:
        """What a text without context comes after."""
        return self.tokens.begin_ids[0] if self.tokens.begin_ids else self.tokens.end_id

    @property
    def tokenizer_name(self) -> str:
        return self.tokens.hash

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        ids = self.tokens.encode(string)
        return ids if add_special_tokens is False else self.tokens.document(ids, ends=False)

    def loglikelihood_rolling(self, requests: list, disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of whole texts, in windows of `max_length` that each token is predicted in once."""
        windows, owners = [], []
        for number, request in enumerate(requests):
            for window in get_rolling_token_windows(
                self.tok_encode(request.args[0]), self.prefix_token_id, self.max_length, 1
            ):
                windows.append((None, *make_disjoint_window(window)))
                owners.append(number)
        totals = [0.0] * len(requests)
        for owner, (value, _) in zip(owners, self._loglikelihood_tokens(windows, disable_tqdm), strict=True):
            totals[owner] += value
        return totals

    @torch.no_grad()
    def _loglikelihood_tokens(
        self, requests: list, disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """(log-likelihood, whether it is the greedy one) of each continuation; the longest texts first."""
        order = sorted(range(len(requests)), key=lambda number: -len(requests[number][1]) - len(requests[number][2]))
        scores: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        device = self.model.embed.weight.device
        with tqdm(total=len(requests), desc="Scoring", disable=disable_tqdm) as bar:
            for start in range(0, len(order), self.batch_size):
                chosen = order[start : start + self.batch_size]
                texts = [(requests[n][1] + requests[n][2])[-self.max_length - 1 :] for n in chosen]
                width = max(map(len, texts)) - 1
                inputs = torch.tensor([text[:-1] + [0] * (width + 1 - len(text)) for text in texts], device=device)
                logits = self.model(inputs)  # what pads a text lies behind it, where no earlier token looks
                for number, text, row in zip(chosen, texts, logits, strict=True):
                    length = len(requests[number][2])
                    scores[number] = _score(row[len(text) - 1 - length : len(text) - 1], text[-length:])
                bar.update(len(chosen))
        return scores

    def generate_until(self, requests: list, disable_tqdm: bool = False) -> list[str]:
        """Continuations that end at one of the request's stops, an end token or its `max_gen_toks`."""
        return [self._generate(*request.args) for request in tqdm(requests, desc="Generating", disable=disable_tqdm)]

    def _generate(self, prompt: str, options: dict[str, Any]) -> str:
        stops = options.get("until") or []
        stops = [stops] if isinstance(stops, str) else stops
        most = options.get("max_gen_toks", DEFAULT_MAX_NEW_TOKENS)
        ids = self.tokens.encode_prompt(prompt)[-max(1, self.max_length - most) :]
        sampled = options.get("do_sample", False)
        stream = generate_tokens(
            self.model,
            torch.tensor([ids], device=self.model.embed.weight.device),
            most,
            temperature=options.get("temperature", 1.0) if sampled else 0.0,
        )
        new: list[int] = []
        for token in stream:
            if token.item() in self.end_ids:
                break
            new.append(token.item())
            text = self.tokens.decode(new)
            found = [text.index(stop) for stop in stops if stop in text]
            if found:
                return text[: min(found)]
        return self.tokens.decode(new)


def _score(logits: torch.Tensor, targets: list[int]) -> tuple[float, bool]:
    """The log-probability of `targets` under logits [len(targets), V], and whether they are the likeliest."""
    wanted = torch.tensor(targets, device=logits.device)
    logits = logits.float()
    chosen = logits.log_softmax(-1).gather(1, wanted[:, None]).sum().item()
    return chosen, bool((logits.argmax(-1) == wanted).all())


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
