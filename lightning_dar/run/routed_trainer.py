"""Lightning's trainer with the verb `prepare`."""

from typing import Any

from lightning.pytorch import LightningDataModule, Trainer

from lightning_dar.errors import UsageError
from lightning_dar.text.units import parse_part


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
