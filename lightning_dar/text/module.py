"""The LightningDataModule: options, preparation, loaders, and where a resumed run continues."""

import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_dar.errors import DataError, UsageError
from lightning_dar.text.bad_text import OnBadText
from lightning_dar.text.folders import Mix, MixedWindows, TokenFolder, check_mix
from lightning_dar.text.loading import TrainLoader, Windows, collate, is_url, leave_to_the_trainer
from lightning_dar.text.manifest import Request, open_prepared
from lightning_dar.text.pieces import Part
from lightning_dar.text.prepare import merge, prepare
from lightning_dar.text.progress import Position, batches_since_step, leave_out_unfinished_step, resize, settle_epoch
from lightning_dar.text.sources import is_text_url
from lightning_dar.text.tokenizer import Tokenizer, check_spec


def check_options(options: Mapping[str, Any]) -> None:
    """Raises UsageError for the first option whose value cannot work, naming it."""
    for name, least in (("batch_size", 1), ("seq_len", 1), ("num_workers", 0), ("seed", 0)):
        if options[name] < least:
            raise UsageError(f"data.{name}: {options[name]}; it must be at least {least}")
    for name in ("prepare_workers", "val_windows"):
        if options[name] is not None and options[name] < 1:
            raise UsageError(f"data.{name}: {options[name]}; it must be at least 1, or null")
    if options["seed"] >= 2**32:
        raise UsageError(f"data.seed: {options['seed']}; it must be below 2**32")
    if not 0 < options["val_fraction"] < 1:
        raise UsageError(f"data.val_fraction: {options['val_fraction']}; it must lie between 0 and 1")
    if not options["source"]:
        raise UsageError("data.source: empty; it must be stdlib, or name files, folders, globs or a URL")
    if options["bad_text"] not in get_args(OnBadText):
        raise UsageError(f"data.bad_text: {options['bad_text']!r}; it must be {' or '.join(get_args(OnBadText))}")
    check_spec(options["tokenizer"])


def existing_shards(sources: Sequence[str]) -> str | None:
    """The source if it is a folder or URL of token shards, None if it is text.

    Raises:
        UsageError: shards beside another source, or a single split where train/ and val/ are needed.
    """
    for source in sources:
        if is_text_url(source):
            continue
        one_split = Path(source, "index.json").exists() and any(Path(source).glob("chunk-*.bin"))
        if is_url(source) or one_split or Path(source, "train/index.json").exists():
            if len(sources) > 1:
                raise UsageError(f"data.source: {source} holds token shards; it cannot be one of several sources")
            if one_split:
                raise UsageError(f"data.source: {source} is one split; its parent needs train/ and val/, give that")
            return source.rstrip("/")
    return None


def default_dir(sources: Sequence[str], tokenizer: str) -> Path:
    return Path("data", f"{_slug('-'.join(sources))}-{_slug(tokenizer)}")


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60]


class TextData(L.LightningDataModule):
    """Real text as batches of token windows.

    `source` is text, which is prepared into `dir` once, or shards that exist already. Batches are dicts of
    int64 `[B, T]`: `input_ids`, `targets` (-100 = ignored), and `document_ids` with `document_mask`.

    Attributes:
        id_limit: batches with an id at or above it are refused. The tokenizer's vocabulary; None for shards
            whose tokenizer is unknown, until the owner of the model sets it.

    Args:
        source: What to train on: `stdlib` (the sources of the running Python's own library, about 10 MB), or
            files, folders and globs of .txt .md .py .jsonl .parquet, of .txt and .jsonl also with .gz or .zst,
            one or a list, on disk or behind URLs such as hf://datasets/... and s3://.../*.parquet; or token shards
            that exist: a folder prepared earlier, or a litdata folder or URL with train/ and val/ inside.
        text_field: Field or column that holds the text in .jsonl and .parquet.
        tokenizer: `bytes`, `bpe:N` (N tokens, learnt from the training text), or the path of a
            tokenizer.json. A folder prepared earlier brings its own; for other shards give the path of the
            one that made them.
        dir: Folder for the prepared shards, by default data/<source>-<tokenizer>. Leave unset for shards
            that exist.
        bad_text: Documents that are no text (not UTF-8, empty, null, with NUL characters and the like): `skip` leaves
            them out and counts them by kind, `refuse` ends with the place of the first one.
        val_fraction: Share of the documents for validation, chosen by a hash of their text (long ones piece by piece).
        seq_len: T, the tokens a window feeds to the model.
        batch_size: Windows per device and batch.
        num_workers: Processes that load batches, per device; 0 loads in the training process.
        prepare_workers: Threads that encode text during preparation; by default one per CPU.
        document_mask: Adds `document_ids` to the batches, for attention that stays inside a document.
        val_windows: Validate on this many windows, evenly spread and always the same; by default on all.
        seed: Order of the training windows.
        mix: Train on several prepared folders in place of `source`: {web: {source: data/web, weight: 0.7},
            code: {source: data/code, weight: 0.3}}. Their tokenizers must be the same one. Weights are shares of the
            windows trained on, and a pass has as many windows as the sets together; validation takes windows by the
            same shares, as many as the sets allow.

    Raises:
        UsageError: an option, or a combination of options, that cannot work.
    """

    def __init__(
        self,
        *,
        source: str | list[str] = "stdlib",
        text_field: str = "text",
        tokenizer: str = "bpe:4096",
        dir: str | None = None,
        bad_text: OnBadText = "skip",
        val_fraction: float = 0.05,
        seq_len: int = 256,
        batch_size: int = 8,
        num_workers: int = 0,
        prepare_workers: int | None = None,
        document_mask: bool = False,
        val_windows: int | None = None,
        seed: int = 0,
        mix: dict[str, dict[str, str | float]] | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        check_options(self.hparams)
        sources = (source,) if isinstance(source, str) else tuple(source)
        self._request = Request(
            source=sources, text_field=text_field, tokenizer=tokenizer, val_fraction=val_fraction, bad_text=bad_text
        )
        if mix is not None:
            check_mix(mix)
        self._shards = existing_shards(sources) if mix is None else None
        if self._shards and dir is not None:
            raise UsageError(f"data.dir: {dir!r}; leave it unset, {self._shards} holds token shards already")
        self._dir = Path(dir or default_dir(sources, tokenizer))
        self._tokens: TokenFolder | Mix | None = None
        self._windows: dict[str, Windows | MixedWindows] = {}
        self._checked: dict[str, Any] | None = None  # the manifest, where this process has prepared or checked it
        self._position = Position()
        self.id_limit: int | None = None

    def prepare_data(self) -> None:
        """Prepares the shards, unless they exist. Raises DataError as `prepare` does."""
        if self._is_text:
            self._checked = prepare(self._request, self._dir, self._prepare_workers)

    def prepare_part(self, part: Part) -> dict[str, Any]:
        """Prepares one part below `dir`; returns its manifest. Raises as `prepare` does."""
        self._check_is_text("--shard")
        return prepare(self._request, self._dir, self._prepare_workers, part)

    def merge_parts(self, count: int) -> None:
        """Merges the `count` parts that were prepared. Raises as `merge` does."""
        self._check_is_text("--merge")
        self._checked = merge(self._request, self._dir, count)

    @property
    def _is_text(self) -> bool:
        return not self._shards and self.hparams.mix is None

    def _check_is_text(self, option: str) -> None:
        if not self._is_text:
            raise UsageError(f"{option}: {self._shards or 'data.mix'} holds token shards already")

    @property
    def _prepare_workers(self) -> int:
        return self.hparams.prepare_workers or os.cpu_count() or 1

    def setup(self, stage: str | None = None) -> None:
        """Opens the shards, once. Raises DataError where they do not fit the options or are damaged."""
        if self.trainer and self.trainer.fit_loop.epoch_progress.total.ready == 0:
            self._position = Position()  # a trainer's first run; where it resumes, it has not restored anything yet
        if self._windows:
            return
        self._tokens = self._open()
        if self._tokens.tokenizer is not None:
            self.id_limit = self._tokens.tokenizer.vocab_size
        elif self.hparams.document_mask:
            raise UsageError(f"data.document_mask: needs data.tokenizer, the tokenizer.json that made {self.folder}")
        self._windows = self._tokens.windows

    def _open(self) -> TokenFolder | Mix:
        if self.hparams.mix is not None:
            return Mix(self.hparams.mix, self.hparams.seq_len)
        if self._shards:
            return TokenFolder(self._shards, self.hparams.seq_len, tokenizer=self._request.tokenizer)
        checked = self._checked or open_prepared(self._dir, self._request)
        return TokenFolder(str(self._dir), self.hparams.seq_len, checked=checked)

    @property
    def folder(self) -> str:
        """The folder or URL of the shards."""
        return self._tokens.folder if self._tokens else self._shards or str(self._dir)

    @property
    def manifest(self) -> dict[str, Any] | None:
        """What the prepared folder says about itself; None for shards prepared elsewhere, and for a mix."""
        self.setup()
        return self._tokens.manifest

    @property
    def tokenizer(self) -> Tokenizer | None:
        self.setup()
        return self._tokens.tokenizer

    @property
    def vocab_size(self) -> int | None:
        return self.tokenizer.vocab_size if self.tokenizer else None

    @property
    def bytes_per_token(self) -> float | None:
        """UTF-8 bytes of text per token of the validation split, None where unknown."""
        self.setup()
        return self._tokens.bytes_per_token(self.hparams.val_windows)

    def train_dataloader(self) -> DataLoader:
        """Raises DataError where the training split has less than one batch for all devices."""
        sampler = self._tokens.train_sampler(
            self.hparams.batch_size,
            seed=self.hparams.seed,
            accumulated=self._accumulated,
            consumed=lambda: self._position.windows(self.trainer, self._batch_windows()),
            overfit=self.trainer.overfit_batches if self.trainer else 0,
            **self._replicas(),
        )
        if sampler.pass_windows == 0:
            raise DataError(
                f"{self._batch_in_words()} needs {sampler.step_windows} windows of {self.hparams.seq_len} tokens, the "
                f"training split has {sampler.num_windows}; lower data.batch_size or data.seq_len, or give more text"
            )
        return TrainLoader(self._windows["train"], sampler=sampler, drop_last=True, **self._loader_options())

    def val_dataloader(self) -> DataLoader:
        sampler = self._tokens.val_sampler(self.hparams.val_windows, **self._replicas())
        return DataLoader(self._windows["val"], sampler=sampler, **self._loader_options())

    def on_before_batch_transfer(self, batch: dict[str, Tensor], dataloader_idx: int) -> dict[str, Tensor]:
        """Raises DataError for an id that the vocabulary does not have."""
        largest = max(int(batch["input_ids"].max()), int(batch["targets"].max()))
        if self.id_limit is not None and largest >= self.id_limit:
            raise DataError(f"data.source: the shards hold id {largest}, the vocabulary ends at {self.id_limit - 1}")
        return batch

    def state_dict(self) -> dict[str, Any]:
        """How far training is: pass over the data, windows of that pass trained on (all devices together).

        Raises:
            DataError: the run goes on from a checkpoint, and is to save another before that one is restored.
        """
        batches = self._position.batches(self.trainer)
        unfinished = batches_since_step(self.trainer) if self.trainer else 0
        windows = self._position.windows(self.trainer, self._batch_windows()) - unfinished * self._batch_windows()
        epoch, seen = divmod(windows, self._pass_windows() or 1)
        return {
            "epoch": epoch,
            "windows_seen": seen,
            "batches": batches - unfinished,
            **self._batch_sizes(),
            **self._order_key(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues where `state_dict` was taken.

        Devices, batch size, accumulation and workers may be others, as the order of the windows does not depend on
        them.

        Raises:
            DataError: windows would be skipped or seen twice: they, or their order, are not those of the interrupted
                run, what it has seen is no whole number of the new steps, or windows have been read already.
        """
        if not self.trainer or self.trainer.state.fn != "fit":
            return
        now = self._order_key()
        changed = [
            f"{name} was {state_dict.get(name)}, is {now.get(name)}"
            for name in ("windows_total", "seq_len", "seed", "mix")
            if state_dict.get(name) != now.get(name)
        ]
        if changed:
            raise DataError(f"data: cannot resume on other windows than those trained on so far ({'; '.join(changed)})")
        self._check_batches(state_dict)
        leave_out_unfinished_step(self.trainer, state_dict["batches"])
        settle_epoch(self.trainer)
        windows = state_dict["epoch"] * self._pass_windows() + state_dict["windows_seen"]
        self._position.restore(windows, resize(self.trainer, state_dict, self._batch_sizes()))

    def _check_batches(self, state_dict: dict[str, Any]) -> None:
        """Raises DataError for steps of another size that cannot go on from there."""
        now, before, seen = self._step_windows(), state_dict.get("step_windows"), state_dict["windows_seen"]
        if before in (now, None):
            return
        step = f"{self._batch_in_words()} is {now} windows a step, it was {before}"
        keep = "batch size times devices times accumulated batches"
        if seen % now:
            raise DataError(
                f"{step}: the {seen} windows of this pass trained on so far are no whole number of such steps; choose "
                f"{keep} so that they are"
            )
        if self.trainer.max_steps == -1:
            raise DataError(
                f"{step}: a run that is limited by epochs would change its number of steps; set trainer.max_steps, or "
                f"keep {keep}"
            )

    def _batch_sizes(self) -> dict[str, int]:
        """Windows a batch and an optimizer step have, on all devices together."""
        return {"batch_windows": self._batch_windows(), "step_windows": self._step_windows()}

    def _order_key(self) -> dict[str, Any]:
        return {
            "windows_total": len(self._windows["train"]),
            "seq_len": self.hparams.seq_len,
            "seed": self.hparams.seed,
            **self._tokens.order_key(),
        }

    def _batch_windows(self) -> int:
        return self.hparams.batch_size * self._replicas()["num_replicas"]

    def _step_windows(self) -> int:
        return self._batch_windows() * self._accumulated

    @property
    def _accumulated(self) -> int:
        return self.trainer.accumulate_grad_batches if self.trainer else 1

    def _batch_in_words(self) -> str:
        accumulated = f", {self._accumulated} accumulated," if self._accumulated > 1 else ""
        devices = self._replicas()["num_replicas"]
        return f"data.batch_size: {self.hparams.batch_size} on {devices} device(s){accumulated}"

    def _pass_windows(self) -> int:
        return len(self._windows["train"]) // self._step_windows() * self._step_windows()

    def _replicas(self) -> dict[str, int]:
        kwargs = self.trainer.distributed_sampler_kwargs if self.trainer else None
        return kwargs or {"num_replicas": 1, "rank": 0}

    def _loader_options(self) -> dict[str, Any]:
        end_id = self._tokens.tokenizer.end_id if self.hparams.document_mask else None
        return {
            "batch_size": self.hparams.batch_size,
            "num_workers": self.hparams.num_workers,
            "persistent_workers": self.hparams.num_workers > 0,
            "pin_memory": bool(self.trainer) and self.trainer.strategy.root_device.type == "cuda",
            "collate_fn": partial(collate, document_end_id=end_id),
            "worker_init_fn": leave_to_the_trainer,
            # Its own: a resumed run makes its loaders at other times, which the model's random numbers must not show.
            "generator": torch.Generator().manual_seed(self.hparams.seed),
        }
