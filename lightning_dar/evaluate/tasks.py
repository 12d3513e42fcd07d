"""The tasks by name: the paper's eight, one that lies beside this file, and all that the harness knows."""

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

from lightning_dar.errors import DataError, UsageError

PAPER = "paper"
PAPER_TASKS = ("hellaswag", "arc_easy", "arc_challenge", "piqa", "winogrande", "boolq", "mmlu", "lambada_openai")
LOCAL_TASK = {
    "task": "first_facts",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": str(files(__package__) / "first_facts.jsonl")}},
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "answer",
    "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
}


def task_names(asked: Sequence[str]) -> list[str]:
    """The names without repetition, `paper` spelled out as its eight tasks."""
    spelled = [name for given in asked for name in (PAPER_TASKS if given == PAPER else (given,))]
    return list(dict.fromkeys(spelled))


def require_harness() -> None:
    """Raises UsageError where lm-evaluation-harness is not installed."""
    if find_spec("lm_eval") is None:
        raise UsageError("evaluate: lm-evaluation-harness is not installed; pip install 'lm_eval[hf]'")


def load_tasks(names: Sequence[str]) -> tuple[list[Any], Any]:
    """The harness's tasks, their data sets at hand, and the manager that knows them.

    Raises:
        UsageError: a name that the harness does not know.
        DataError: data sets that cannot be had, all of them named.
    """
    manager = _manager(any(name != LOCAL_TASK["task"] for name in names))
    loaded, missing = [], {}
    for name in names:
        if name == LOCAL_TASK["task"]:
            loaded.append(LOCAL_TASK)
            continue
        if name not in manager.all_tasks:
            raise UsageError(
                f"--tasks {name}: unknown; there are {PAPER}, {LOCAL_TASK['task']} and what `lm-eval ls tasks` lists"
            )
        try:
            manager.load([name])
            loaded.append(name)
        except (OSError, ConnectionError, ValueError) as error:
            missing[name] = " ".join(str(error).split())
    if missing:
        first = next(iter(missing.values()))
        raise DataError(f"--tasks: the data sets of {', '.join(missing)} cannot be had ({first[:160]})")
    return loaded, manager


@cache
def _manager(with_defaults: bool) -> Any:
    """The harness's index of tasks, which takes seconds to build; without its own tasks, none."""
    from lm_eval.tasks import TaskManager

    return TaskManager(include_defaults=with_defaults)
