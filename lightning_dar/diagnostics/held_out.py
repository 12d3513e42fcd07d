"""What is inspected: the models, and the held-out text that they read."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_dar.checkpoint.carried import tokenizer_of
from lightning_dar.checkpoint.load import Checkpoint, load_weights
from lightning_dar.diagnostics.interventions import lays_open
from lightning_dar.diagnostics.statistics import consecutive_ends, target_documents, units
from lightning_dar.errors import DataError, UsageError
from lightning_dar.model import Transformer
from lightning_dar.run.config import origin_of, other_text, saved_config
from lightning_dar.run.state import state_of
from lightning_dar.text import Tokenizer
from lightning_dar.text.bad_text import BadText
from lightning_dar.text.encode import encoded_text
from lightning_dar.text.loading import ValidationSampler, collate
from lightning_dar.text.sources import find_files, fingerprint

MIXED = {"bf16-mixed": torch.bfloat16, "bf16": torch.bfloat16, "16-mixed": torch.float16, "16": torch.float16}
WHOLE = {"bf16-true": torch.bfloat16, "16-true": torch.float16, "64-true": torch.float64, "64": torch.float64}
SAYS_LITTLE = ("last.ckpt", "checkpoints")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An opened model."""

    name: str
    checkpoint: Checkpoint
    model: Transformer
    precision: str  # as the trainer calls it

    @property
    def device(self) -> torch.device:
        return self.model.embed.weight.device

    @property
    def num_sites(self) -> int:
        return len(self.model.sublayers)

    @property
    def routes(self) -> bool:
        """Whether its reads can be laid open."""
        return lays_open(self.model.residual)

    @property
    def can_be_changed(self) -> bool:
        """Whether a read can be replaced by another: separate query, key and value inputs are not one read."""
        return self.model.residual.attention_inputs == 1

    def autocast(self) -> AbstractContextManager:
        """The precision of a forward, as `validate` has it."""
        dtype = MIXED.get(self.precision)
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype=dtype)


def load_subject(checkpoint: Checkpoint, name: str, device: torch.device) -> Subject:
    """The model of a checkpoint, built as `validate` builds it: in fp32, unless trained in another precision, whatever
    the weights are saved in.

    Raises:
        DataError: the tensors do not fit the checkpoint's description.
    """
    precision = str((state_of(checkpoint.content).settings.get("trainer") or {}).get("precision") or "32-true")
    model = checkpoint.build()
    load_weights(model, checkpoint)
    model = model.to(device=device, dtype=WHOLE.get(precision, torch.float32)).eval().requires_grad_(False)
    return Subject(name=name, checkpoint=checkpoint, model=model, precision=precision)


def names_of(paths: Sequence[str]) -> list[str]:
    """A short name for each checkpoint: the part of its path that tells it from the others."""
    split = [Path(path).absolute().parts for path in paths]
    if len(split) == 1:
        telling = [part for part in split[0] if part not in SAYS_LITTLE]
        return [telling[-1].removesuffix(".ckpt")]
    start = _shared(split)
    end = _shared([parts[:start:-1] for parts in split])
    names = ["/".join(parts[start : len(parts) - end]).removesuffix(".ckpt") for parts in split]
    return names if all(names) and len(set(names)) == len(names) else list(paths)


def _shared(split: Sequence[Sequence[str]]) -> int:
    """Parts at the start that all have."""
    count = 0
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        count += 1
    return count


DEFAULT_BATCH_SIZE = 8

READ_TOKENS = 2**20  # of the text, from its start: the windows are chosen among these


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Windows in batches, and the unit (a document, or a window) of each prediction."""

    windows: Tensor  # int64 [N, T + 1]
    units: Tensor  # int64 [N, T], 0, 1, ...
    unit: str  # "document" or "window"
    batch_size: int
    document_end_id: int | None  # where attention stays inside a document
    about: dict[str, Any]  # what it is, for the report

    def batches(self, batch_size: int | None = None) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        """(batch, units [B, T]), see `collate`; by default those of `validate`."""
        size = batch_size or self.batch_size
        for windows, drawn in zip(self.windows.split(size), self.units.split(size), strict=True):
            yield collate(windows, document_end_id=self.document_end_id), drawn

    @property
    def tokens(self) -> int:
        """Predictions."""
        return self.units.numel()

    @cached_property
    def unit_tokens(self) -> np.ndarray:
        """[units], predictions of each."""
        return np.bincount(self.units.flatten())


def check_same_text(checkpoints: Sequence[Checkpoint]) -> Tokenizer:
    """The tokenizer that all have.

    Raises:
        DataError: a checkpoint without a tokenizer, with another one, or whose vocabulary lacks some of its ids.
    """
    first, *others = checkpoints
    tokenizer = tokenizer_of(first)
    for other in others:
        if tokenizer_of(other).identity != tokenizer.identity:
            raise DataError(
                f"'{other.path}' has another tokenizer than '{first.path}': losses on the same text do not compare; "
                "inspect them one by one"
            )
    for checkpoint in checkpoints:
        if tokenizer.vocab_size > checkpoint.config.vocab_size:
            raise DataError(
                f"'{checkpoint.path}': its tokenizer has {tokenizer.vocab_size} ids, its vocabulary "
                f"{checkpoint.config.vocab_size}; lay the tokenizer.json that it was trained with beside its weights"
            )
    return tokenizer


def text_windows(
    paths: Sequence[str], text_field: str, tokenizer: Tokenizer, checkpoint: Checkpoint, seq_len: int, max_tokens: int
) -> HeldOut:
    """Cuts the files, folders and globs `paths` into windows: at most `max_tokens`, evenly spread, so that many
    documents take part.

    Raises:
        DataError: a file that cannot be read, no text, or text shorter than a window.
    """
    most = _whole_windows(seq_len, max_tokens)
    enough = max(READ_TOKENS, most * (seq_len + 1))
    ids: list[int] = []
    text_bytes = 0
    try:
        files = find_files(paths)
        bad = BadText()
        for run, num_bytes in encoded_text(files, text_field, tokenizer, bad):
            ids += run
            text_bytes += num_bytes
            if len(ids) >= enough:
                break
        source_fingerprint = fingerprint(files)
    except DataError as error:
        raise DataError(
            str(error).replace("data.source", "--text").replace("data.text_field", "--text_field")
        ) from error
    if not ids:
        why = bad.why_nothing_is_left().replace("data.text_field", "--text_field")
        raise DataError(f"--text {' '.join(paths)}: no text in it{why}")
    bad.report()
    count = len(ids) // (seq_len + 1)
    if count == 0:
        raise DataError(
            f"--text {' '.join(paths)}: {len(ids)} tokens, a window has {seq_len + 1}; give more text, or a lower "
            "--seq_len"
        )
    windows = torch.tensor(ids[: count * (seq_len + 1)]).view(count, seq_len + 1)
    chosen = list(ValidationSampler(count, most))
    settings = saved_config(checkpoint).data
    return hold_out(
        windows[chosen],
        consecutive_ends(windows, tokenizer.end_id)[chosen],
        tokenizer,
        settings.get("batch_size", DEFAULT_BATCH_SIZE),
        settings.get("document_mask", False),
        source=list(paths),
        split="text",
        source_fingerprint=source_fingerprint,
        bytes_per_token=text_bytes / len(ids),
    )


def validation_windows(
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    seq_len: int,
    max_tokens: int,
    source: str | list[str] | None = None,
    folder: str | None = None,
) -> HeldOut:
    """The windows that `validate` takes for the checkpoint; where those hold more than `max_tokens`, fewer of them,
    evenly spread.

    Args:
        checkpoint: says what it was trained on, and how that is cut into windows.
        tokenizer: its own.
        seq_len: tokens a window.
        max_tokens: of all windows.
        source: other text or shards than those, as `TextData` takes them.
        folder: for the prepared shards, in place of the usual one.

    Raises:
        UsageError: no source, or one that cannot be.
        DataError: the data are not there, or have another tokenizer than the checkpoint.
    """
    from lightning_dar.text import TextData

    settings = _data_settings(checkpoint, source, folder)
    most = _whole_windows(seq_len, max_tokens)
    limit = settings.get("val_windows")
    data = TextData(**{**settings, "seq_len": seq_len, "val_windows": min(most, limit or most), "num_workers": 0})
    data.prepare_data()
    data.setup()
    if data.tokenizer is not None and data.tokenizer.identity != tokenizer.identity:
        raise DataError(
            f"data.tokenizer: {data.folder} was prepared with another tokenizer than that of '{checkpoint.path}'; "
            "give --text, or another --data.source"
        )
    loader = data.val_dataloader()
    chosen = list(loader.sampler)
    windows = torch.stack([loader.dataset[index] for index in chosen])
    return hold_out(
        windows,
        _ends_before(loader.dataset, chosen, tokenizer.end_id),
        tokenizer,
        data.hparams.batch_size,
        data.hparams.document_mask,
        source=data.folder if data.hparams.mix else data.hparams.source,
        split="validation",
        source_fingerprint=data.manifest["source_fingerprint"] if data.manifest else None,
        bytes_per_token=data.bytes_per_token,
    )


def _data_settings(checkpoint: Checkpoint, source: str | list[str] | None, folder: str | None) -> dict[str, Any]:
    """The settings of the checkpoint's data. Text other than its own is prepared by its tokenizer, into a folder of its
    own."""
    origin = origin_of(checkpoint)
    settings = origin.config.data
    if source is None and not settings:
        raise UsageError(
            f"'{checkpoint.path}' does not say what it was trained on: give --text, files to read, or --data.source"
        )
    if source is not None:
        settings = {**settings, "source": source}
        settings |= other_text(origin, settings)
    return settings if folder is None else {**settings, "dir": folder}


def _whole_windows(seq_len: int, max_tokens: int) -> int:
    if max_tokens < seq_len:
        raise UsageError(f"--max_tokens {max_tokens}: less than one window of {seq_len} tokens; raise it")
    return max_tokens // seq_len


def _ends_before(dataset: Any, chosen: Sequence[int], end_id: int) -> Tensor:
    """End tokens before each chosen window, those in the windows between them included."""
    ends = torch.tensor([int((dataset[index] == end_id).sum()) for index in range(max(chosen) + 1)])
    return (ends.cumsum(0) - ends)[torch.tensor(chosen)]


def hold_out(
    windows: Tensor, ends_before: Tensor, tokenizer: Tokenizer, batch_size: int, document_mask: bool, **about: Any
) -> HeldOut:
    """Windows int64 [N, T + 1] with the end tokens before each, int64 [N]; `about` goes to the report."""
    documents = target_documents(windows, tokenizer.end_id, ends_before)
    drawn, unit = units(documents)
    count, width = windows.shape
    return HeldOut(
        windows=windows,
        units=drawn,
        unit=unit,
        batch_size=batch_size,
        document_end_id=tokenizer.end_id if document_mask else None,
        about={
            **about,
            "tokens": count * (width - 1),
            "windows": count,
            "seq_len": width - 1,
            "documents": int(documents.max()) + 1,
            "bootstrap_unit": unit,
            "bootstrap_units": int(drawn.max()) + 1,
            "fingerprint": hashlib.sha256(windows.numpy().tobytes()).hexdigest(),
            "tokenizer_sha256": tokenizer.hash,
        },
    )
