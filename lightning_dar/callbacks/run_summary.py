"""What came out of a run, and where it lies."""

import shlex
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_dar.callbacks.measuring import routes
from lightning_dar.callbacks.routing_sharpness import RoutingSharpness
from lightning_dar.callbacks.sample_text import SampleText
from lightning_dar.residual.registry import is_plugin
from lightning_dar.run.loggers import kind_of, shown


class RunSummary(Callback):
    """Prints a short summary when `fit` ends. Where the sanity check covers all validation batches
    (`num_sanity_val_steps: -1`) its loss is logged as the validation loss before the first step."""

    def __init__(self) -> None:
        self._first_loss: float | None = None

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loss = trainer.callback_metrics.get("val/loss")
        if loss is not None and trainer.num_sanity_val_steps == float("inf"):
            self._first_loss = loss.item()
            for logger in trainer.loggers:
                logger.log_metrics({"val/loss": self._first_loss}, step=trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        return {"first_loss": self._first_loss}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._first_loss = state_dict["first_loss"]

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            rows = [*self._results(trainer, pl_module), *_places(trainer, pl_module)]
            width = max(len(name) for name, _ in rows)
            print("\n" + "\n".join(f"  {name:<{width}}  {value}" for name, value in rows))

    def _results(self, trainer: Trainer, pl_module: LightningModule) -> list[tuple[str, str]]:
        metrics = trainer.callback_metrics
        rows = [("steps", f"{trainer.global_step}")]
        if "val/loss" in metrics:
            first = "" if self._first_loss is None else f" (before training {self._first_loss:.4f})"
            rows.append(("validation loss", f"{metrics['val/loss'].item():.4f}{first}"))
        for name, key, form in (
            ("validation perplexity", "val/perplexity", "{:.6g}"),
            ("bits per byte", "val/bits_per_byte", "{:.4f}"),
            ("sharpness, mean", "val/sharpness", "{:.3f}"),
            ("sharpness, deepest third", "val/sharpness_deep", "{:.3f}"),
            ("tokens per second", "throughput/tokens_per_second", "{:,.0f}"),
            ("share of the GPU's peak", "throughput/mfu", "{:.1%}"),
        ):
            if key in metrics:
                rows.append((name, form.format(metrics[key].item())))
        if not routes(pl_module):
            rows.append(("sharpness", "none: nothing is routed"))
        return rows


def _places(trainer: Trainer, pl_module: LightningModule) -> list[tuple[str, str]]:
    rows = []
    for callback in trainer.callbacks:
        if isinstance(callback, SampleText) and callback.text is not None:
            rows.append(("sample", repr(callback.text[:100])))
    checkpoint: Any = trainer.checkpoint_callback
    saved = getattr(checkpoint, "last_model_path", "") or getattr(checkpoint, "best_model_path", "")
    if saved:
        rows.append(("checkpoint", shown(saved)))
        module = type(pl_module.model.residual).__module__
        plugins = ["--plugins", module] if is_plugin(module) else []
        rows.append(
            ("to validate it", shlex.join(["python", "cli.py", "validate", "--ckpt_path", shown(saved), *plugins]))
        )
    for callback in trainer.callbacks:
        if isinstance(callback, RoutingSharpness):
            rows += [(f"routing {name}", shown(path)) for name, path in callback.pictures.items()]
    for logger in trainer.loggers:
        rows += kind_of(type(logger)).places(logger)
    return rows
