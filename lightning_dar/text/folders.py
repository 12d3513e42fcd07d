"""Tokens that training reads: those in a folder (`TokenFolder`), and a mix of several folders (`Mix`)."""

import math
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

from lightning_dar.errors import DataError, UsageError
from lightning_dar.text.loading import (
    PADDING,
    MixedTrainSampler,
    MixedValidationSampler,
    TrainSampler,
    ValidationSampler,
    Windows,
    is_url,
)
from lightning_dar.text.manifest import SPLITS, open_folder, read_tokenizer
from lightning_dar.text.tokenizer import bpe_size, load_tokenizer


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


# By name: `source`, a prepared folder, and `weight`, its share of the windows relative to the other weights. Plain
# dicts, as they go into checkpoints.
MixOption = Mapping[str, Mapping[str, str | float]]


def check_mix(mix: MixOption) -> None:
    """Raises UsageError for what no data is needed to refuse, naming it."""
    if not mix:
        raise UsageError("data.mix: empty; it needs sets such as {web: {source: data/web, weight: 0.7}}")
    for name, entry in mix.items():
        if not isinstance(name, str):
            raise UsageError(f"data.mix: the name {name} is no text; put it in quotes")
        if set(entry) != {"source", "weight"}:
            raise UsageError(f"data.mix.{name}: {dict(entry)}; it needs source, a prepared folder, and weight, no more")
        if not (isinstance(entry["weight"], int | float) and 0 < entry["weight"] < math.inf):
            raise UsageError(f"data.mix.{name}.weight: {entry['weight']}; it must be a number above 0")
        if "://" in str(entry["source"]):
            raise UsageError(f"data.mix.{name}.source: {entry['source']}; it must be a prepared folder")


def shares_of(mix: MixOption) -> dict[str, float]:
    """Weights that add up to 1, in the order of the names: the order in a config must not matter."""
    total = sum(entry["weight"] for entry in mix.values())
    return {name: mix[name]["weight"] / total for name in sorted(mix)}


class MixedWindows(Dataset):
    """The windows of one split of every set, one set after the other."""

    def __init__(self, sets: Mapping[str, Windows]) -> None:
        self._sets = list(sets.values())
        self.lengths = {name: len(windows) for name, windows in sets.items()}
        self._ends = list(accumulate(self.lengths.values()))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Tensor:
        """One window, as `Windows` gives it."""
        if index == PADDING:
            return self._sets[0][PADDING]
        number = bisect_right(self._ends, index)
        return self._sets[number][index - self._ends[number] + len(self._sets[number])]


class Mix:
    """The sets of `data.mix` opened; stands where `TokenFolder` does for one.

    Attributes:
        folder: all of them, for messages.
        manifest: None, each set has its own.
        tokenizer: the same for all.
        windows: by split.
    """

    manifest = None

    def __init__(self, mix: MixOption, seq_len: int) -> None:
        """Raises DataError for a folder that was not prepared, is damaged, or has another tokenizer than the first."""
        self.shares = shares_of(mix)
        self.sets = {name: _open_set(name, mix[name]["source"], seq_len) for name in self.shares}
        self.folder = ", ".join(opened.folder for opened in self.sets.values())
        first, *others = self.sets
        self.tokenizer = self.sets[first].tokenizer
        for name in others:
            if self.sets[name].tokenizer.identity != self.tokenizer.identity:
                own, wanted = (self.sets[key].manifest["tokenizer"]["spec"] for key in (name, first))
                raise DataError(
                    f"data.mix.{name}: another tokenizer than that of {first} ({own}, not {wanted}); prepare it anew "
                    f"with data.tokenizer {self.sets[first].folder}/tokenizer.json"
                )
        self.windows = {
            split: MixedWindows({name: opened.windows[split] for name, opened in self.sets.items()}) for split in SPLITS
        }

    def bytes_per_token(self, val_windows: int | None) -> float:
        """UTF-8 bytes per token of the validation text, over the sets' shares of so many validation windows."""
        counts = self.val_sampler(val_windows).counts
        windows = sum(counts.values())
        return sum(counts[name] / windows * opened.bytes_per_token(None) for name, opened in self.sets.items())

    def train_sampler(self, batch_size: int, **options: Any) -> MixedTrainSampler:
        return MixedTrainSampler(self.windows["train"].lengths, self.shares, batch_size, **options)

    def val_sampler(self, limit: int | None, **options: Any) -> MixedValidationSampler:
        return MixedValidationSampler(self.windows["val"].lengths, self.shares, limit, **options)

    def order_key(self) -> dict[str, Any]:
        lengths = self.windows["train"].lengths
        return {"mix": {name: [share, lengths[name]] for name, share in self.shares.items()}}


def _open_set(name: str, source: str, seq_len: int) -> TokenFolder:
    if not Path(source, "manifest.json").is_file():
        raise DataError(f"data.mix.{name}.source: {source} is no prepared folder; `prepare` its text first")
    return TokenFolder(source, seq_len)
