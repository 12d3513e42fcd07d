"""Lightning's trainer with the verb `prepare`, and the table of the model that it prints."""

from typing import Any

from lightning.pytorch import Callback, LightningDataModule, Trainer
from lightning.pytorch.callbacks import ModelSummary

from lightning_dar.errors import UsageError
from lightning_dar.run.parser import table
from lightning_dar.text.pieces import parse_part

LEFT_OUT = ("Mode", "FLOPs")


class RoutedTrainer(Trainer):
    """Lightning's trainer, and the one verb that the data adds to it."""

    def prepare(
        self, model: None, datamodule: LightningDataModule, shard: str | None = None, merge: int | None = None
    ) -> None:
        """Prepares the data that a config names: text to token shards. `fit` does it too, where it is missing.

        Args:
            shard: `i/n`: only the i-th of n parts, which may be prepared at the same time, on any machines that share
                the folder; then merge them.
            merge: n: merges the n parts that were prepared by --shard.
        """
        if shard is not None and merge is not None:
            raise UsageError("--shard and --merge: one after the other, the merge when all parts are there")
        if shard is not None:
            part = parse_part(shard)
            print(f"{datamodule.folder}, part {shard}: {_counts(datamodule.prepare_part(part))}")
            return
        if merge is None:
            datamodule.prepare_data()
        else:
            datamodule.merge_parts(merge)
        if datamodule.manifest is not None:
            print(f"{datamodule.folder}: {_counts(datamodule.manifest)}")


def _counts(manifest: dict[str, Any]) -> str:
    tokens = ", ".join(f"{manifest[split]['tokens']:,} {split} tokens" for split in ("train", "val"))
    return f"{tokens}, {manifest['vocab_size']:,} ids"


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
