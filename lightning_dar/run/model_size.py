"""How large the network is, said before it trains."""

from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelSummary

from lightning_dar.run.table import table

LEFT_OUT = ("Mode", "FLOPs")


class ModelSize(ModelSummary):
    """Lightning's summary of the model's parts and parameters, but for the FLOPs: Lightning counts them on an example
    input, which a model that is built in shards cannot be run on, and gives 0 (`plan` and `throughput/mfu` know them).
    """

    @staticmethod
    def summarize(
        summary_data: list[tuple[str, list[str]]], total_parameters: int, trainable_parameters: int, *_: Any, **__: Any
    ) -> None:
        columns = [(name.strip() or "#", values) for name, values in summary_data if name not in LEFT_OUT]
        rows = [[str(cell).strip() for cell in row] for row in zip(*(values for _, values in columns), strict=True)]
        print(table([name for name, _ in columns], rows))
        print(f"{total_parameters:,} parameters, {trainable_parameters:,} of them trained")


def show_size(trainer: Trainer, asked: list[Callback]) -> None:
    """Puts it in the place of Lightning's own summary, if there is one that was not asked for."""
    trainer.callbacks = [
        ModelSize(callback._max_depth) if isinstance(callback, ModelSummary) and callback not in asked else callback
        for callback in trainer.callbacks
    ]
