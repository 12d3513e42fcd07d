"""Token shards opened: one folder or URL, with what is known of it."""

from pathlib import Path
from typing import Any

from lightning_dar.text.manifest import SPLITS, open_folder, read_tokenizer
from lightning_dar.text.samplers import TrainSampler, ValidationSampler
from lightning_dar.text.tokenizer import bpe_size, load_tokenizer
from lightning_dar.text.windows import Windows, is_url


class TokenFolder:
    """A prepared folder, or shards prepared elsewhere.

    Attributes:
        folder: where the shards are, or a URL.
        manifest: what the folder says about itself; None for shards prepared elsewhere.
        tokenizer: None where it is not known.
        windows: by split.
    """

    def __init__(
        self, folder: str, seq_len: int, *, tokenizer: str = "", checked: dict[str, Any] | None = None
    ) -> None:
        """`checked` is the manifest where the folder was checked already; `tokenizer` the file for shards without one.

        Raises:
            DataError: a folder that is damaged, or has less than a window.
        """
        self.folder = folder
        self.manifest, self.tokenizer = checked, None
        if checked is None and not is_url(folder) and Path(folder, "manifest.json").exists():
            self.manifest = open_folder(Path(folder))
        if self.manifest is not None:
            self.tokenizer = read_tokenizer(Path(folder), self.manifest)
        elif tokenizer and tokenizer != "bytes" and bpe_size(tokenizer) is None:
            self.tokenizer = load_tokenizer(tokenizer)
        self.windows = {split: Windows(f"{folder}/{split}", seq_len) for split in SPLITS}

    def bytes_per_token(self, val_windows: int | None) -> float | None:
        """UTF-8 bytes of text per token of the validation split, whatever its windows; None where unknown."""
        return self.manifest["val"]["text_bytes"] / self.manifest["val"]["tokens"] if self.manifest else None

    def train_sampler(self, batch_size: int, **options: Any) -> TrainSampler:
        return TrainSampler(len(self.windows["train"]), batch_size, **options)

    def val_sampler(self, limit: int | None, **options: Any) -> ValidationSampler:
        return ValidationSampler(len(self.windows["val"]), limit, **options)

    def order_key(self) -> dict[str, Any]:
        """What else than number, length and seed the order of the training windows depends on."""
        return {}
