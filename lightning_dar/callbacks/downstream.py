"""Downstream tasks at the end of a run."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_dar.errors import UsageError
from lightning_dar.evaluate.tasks import require_harness, task_names


class Downstream(Callback):
    """Scores the model on tasks of lm-evaluation-harness when `fit` ends: prints a table, logs `downstream/<task>`, and
    writes `downstream.json` beside the logs. On the first process alone, which must hold the whole model.

    Args:
        tasks: names, as `python cli.py evaluate --tasks` takes them.
        batch_size: texts in a forward.
        limit: questions of each task, at most.

    Raises:
        UsageError: no harness, or a run whose model is sharded.
    """

    def __init__(self, tasks: Sequence[str] = ("first_facts",), batch_size: int = 16, limit: int | None = None):
        require_harness()
        self.names, self.batch_size, self.limit = task_names(tasks), batch_size, limit

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and pl_module.device_mesh is not None:
            raise UsageError("callbacks.Downstream: the model is sharded; evaluate its checkpoint by cli.py evaluate")

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        log_dir = trainer.log_dir  # asks all ranks
        if not trainer.is_global_zero:
            return
        from lightning_dar.evaluate.scores import TransformerLM, evaluation, run_tasks, scores_table
        from lightning_dar.evaluate.tasks import load_tasks

        model = pl_module.model
        training = model.training
        seen = TransformerLM(model.eval(), pl_module.tokenizer, trainer.datamodule.hparams.seq_len, self.batch_size)
        found = evaluation(
            run_tasks(seen, *load_tasks(self.names), self.limit), self.names, "this run", "lightning_dar"
        )
        model.train(training)
        print(scores_table([found]))
        for logger in trainer.loggers:
            values = {f"downstream/{task.task}": task.accuracy for task in found.tasks if task.accuracy is not None}
            logger.log_metrics(values, step=trainer.global_step)
        if log_dir is not None:
            Path(log_dir, "downstream.json").write_text(json.dumps(asdict(found), indent=2) + "\n", encoding="utf-8")
