"""Whether a converted model computes what its source does, also by transformers' own model."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_dar.checkpoint.carried import tokenizer_of
from lightning_dar.checkpoint.families import FAMILIES, Renamed
from lightning_dar.checkpoint.hf_fields import native_name
from lightning_dar.checkpoint.load import CONFIG_FILE, DESCRIPTION_FILE, Checkpoint, load_weights, open_checkpoint
from lightning_dar.checkpoint.stored import compare_stored, stored_tensors
from lightning_dar.convert.rewire import shape_of
from lightning_dar.diagnostics.interventions import Watched
from lightning_dar.errors import DataError
from lightning_dar.model import Transformer
from lightning_dar.residual import ResidualConfig, build_residual
from lightning_dar.residual.base import DepthRouting
from lightning_dar.text.tokenizer import Tokenizer

OLDEST = 5  # since it, `rope_parameters` and a stored head count
TOKENS = 128
TOLERANCE = 1e-3  # of the largest logit: a deep network in fp32, summed in another order, differs by 5e-5


def compare_with_transformers(source: Checkpoint, converted: Checkpoint, dtype: torch.dtype | None) -> list[str]:
    """Compares logits in fp32, on random tokens, where the source is of a family that transformers has.

    Returns:
        What was compared, or why not; nothing for a source of another kind.

    Raises:
        DataError: logits that are not those of transformers.
    """
    name = _class_name(source)
    if name is None:
        return []
    if reason := _unusable():
        return [f"not compared with transformers' own model of the source: {reason}"]
    input_ids = torch.randint(source.config.vocab_size, (1, TOKENS), generator=torch.Generator().manual_seed(1))
    try:
        expected = _theirs(source, name, dtype, input_ids)
    except Exception as error:  # whatever it raises, it computes nothing to compare with
        return [f"not compared with transformers' own model of the source, which it cannot open: {_line(error)}"]
    found = _ours(converted, input_ids)
    difference = ((found - expected).abs().max() / expected.abs().max()).item()
    if not difference < TOLERANCE:
        raise DataError(
            f"verification failed: the converted model's logits differ from those of transformers' {name} opened from "
            f"{source.path} by {difference:.1e} of the largest"
        )
    return [
        f"verified: logits are those of transformers' {name} opened from {source.path}, on {TOKENS} random tokens in "
        f"float32: they differ by {difference:.1e} of the largest"
    ]


def _unusable() -> str | None:
    try:
        installed = version("transformers")
    except PackageNotFoundError:
        return "transformers is not installed"
    if int(installed.partition(".")[0]) < OLDEST:
        return f"transformers {installed} reads config.json otherwise; it takes version {OLDEST}"
    return None


def _class_name(source: Checkpoint) -> str | None:
    """transformers' class for a folder in its own layout; none for one that brings its code, which is not run."""
    if not (source.path / CONFIG_FILE).is_file() or (source.path / DESCRIPTION_FILE).exists():
        return None
    family = FAMILIES.get((source.description["hf_config"] or {}).get("model_type"))
    return family and family.architecture


@torch.no_grad()
def _theirs(source: Checkpoint, name: str, dtype: torch.dtype | None, input_ids: Tensor) -> Tensor:
    import transformers

    with _quiet(transformers):
        model = getattr(transformers, name).from_pretrained(
            source.path, dtype=torch.float32, local_files_only=True, use_safetensors=True
        )
    for parameter in model.parameters():
        if dtype is not None:
            parameter.data = parameter.data.to(dtype).float()
    return model.eval()(input_ids, use_cache=False).logits


@torch.no_grad()
def _ours(converted: Checkpoint, input_ids: Tensor) -> Tensor:
    model = converted.build()
    load_weights(model, converted)
    return model.float().eval()(input_ids)


@contextmanager
def _quiet(transformers: object) -> Iterator[None]:
    """Without the progress bar and the load report of transformers."""
    log = transformers.utils.logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


CALIBRATION_TOKENS = 256
CALIBRATION_WINDOWS = 16


def verify(source: Checkpoint, written: Path, dtype: torch.dtype | None) -> list[str]:
    """Compares the folder `written` with its source; returns a line for each thing that was compared.

    Raises:
        DataError: a tensor, or a logit on a fixed batch, that differs in a bit; logits that are not those of
            transformers; a gate without a gradient.
    """
    converted = open_checkpoint(written)
    lines = [compare_stored(source, converted, dtype)]
    input_ids = _fixed_batch(source)
    expected = _logits(_load_source(source, dtype), input_ids)
    model = _load(converted)
    if not expected.isfinite().all() or not torch.equal(_logits(model, input_ids), expected):
        raise DataError(
            "verification failed: the converted model's logits are not the source's; a strategy that changes what the "
            "network computes needs --allow-disturbance"
        )
    lines.append("verified: logits equal the source's to the last bit")
    if source.residual.name == "standard" and converted.residual.name != "standard":
        plain = build_residual(ResidualConfig(name="standard"), shape_of(source))
        if not torch.equal(_logits(model, input_ids, residual=plain), expected):
            raise DataError("verification failed: the converted sublayers are not the source's")
        gates = _gates_with_gradient(model, input_ids)
        if gates:
            lines.append(f"verified: all {gates} gates that scale a read are zero and have a gradient")
    del expected, model
    return lines + compare_with_transformers(source, converted, dtype)


def logits_of(checkpoint: Checkpoint, dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """A fixed batch [B, T], and the logits [B, T, V] of the model with its weights in `dtype`."""
    input_ids = _fixed_batch(checkpoint)
    return input_ids, _logits(_load(checkpoint, dtype), input_ids)


def measure_disturbance(
    source: Checkpoint, written: Path, dtype: torch.dtype | None, text: Sequence[str]
) -> tuple[float, float] | None:
    """Mean loss in nats a token on the calibration text, of the source and of the converted model; None without a
    tokenizer. Raises DataError where the text cannot be read or is too short."""
    if source.description["tokenizer"] is None:
        return None
    windows = _calibration_windows(tokenizer_of(source), text)
    if windows.max() >= source.config.vocab_size:
        raise DataError(
            f"tokenizer.json has id {windows.max()}, the model's vocabulary ends at {source.config.vocab_size - 1}"
        )
    return _loss(_load(source, dtype), windows), _loss(_load(open_checkpoint(written)), windows)


def _load(checkpoint: Checkpoint, dtype: torch.dtype | None = None) -> Transformer:
    model = checkpoint.build()
    load_weights(model, checkpoint)
    return model.to(dtype).eval()


def _load_source(source: Checkpoint, dtype: torch.dtype | None) -> Transformer:
    """Loads a source from its files, without our reader, where their tensors have our names."""
    if isinstance(source.tensors, Renamed):
        return _load(source, dtype)
    model = source.build()
    weights = {native_name(name): tensor for name, tensor in stored_tensors(source.path, source.weights)}
    model.load_state_dict(weights, assign=True)
    return model.to(dtype).eval()


def _fixed_batch(checkpoint: Checkpoint) -> Tensor:
    return torch.randint(checkpoint.config.vocab_size, (2, 16), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def _logits(model: Transformer, input_ids: Tensor, **kwargs: Any) -> Tensor:
    return model(input_ids, **kwargs)


def _gates_with_gradient(model: Transformer, input_ids: Tensor) -> int:
    """How many gates scale a read; 0 for a strategy without gates. Raises DataError where one gets no gradient."""
    gate = getattr(model.residual, "gate", None)
    if not isinstance(gate, Tensor):
        return 0
    watched = _ReadSites(model.residual, len(model.sublayers))
    model.requires_grad_(False)
    gate.requires_grad_(True)
    logits = model(input_ids, residual=watched).float()
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), input_ids[:, 1:].flatten())
    (gradient,) = torch.autograd.grad(loss, gate)
    dead = [site for site in watched.sites if gradient[site] == 0]
    if dead:
        raise DataError(f"verification failed: the gates of sites {', '.join(map(str, dead))} get no gradient")
    return len(watched.sites)


class _ReadSites(Watched):
    """Notes which sites read from the depth history."""

    def __init__(self, residual: Any, num_sites: int):
        super().__init__(residual, num_sites)
        self.sites: list[int] = []

    def seen(self, site: int, routing: DepthRouting) -> None:
        self.sites.append(site)


def _calibration_windows(tokenizer: Tokenizer, text: Sequence[str]) -> Tensor:
    from lightning_dar.text.bad_text import BadText
    from lightning_dar.text.encode import encoded_text
    from lightning_dar.text.sources import find_files

    ids, wanted, bad = [], CALIBRATION_WINDOWS * (CALIBRATION_TOKENS + 1), BadText()
    try:
        for run, _ in encoded_text(find_files(text), "text", tokenizer, bad):
            ids += run
            if len(ids) >= wanted:
                break
    except DataError as error:
        raise DataError(str(error).replace("data.source", "--calibration-text")) from error
    bad.report()
    ids = ids[:wanted]
    whole = len(ids) // (CALIBRATION_TOKENS + 1)
    if whole == 0:
        raise DataError(f"--calibration-text: {len(ids)} tokens, at least {CALIBRATION_TOKENS + 1} are needed")
    return torch.tensor(ids[: whole * (CALIBRATION_TOKENS + 1)]).view(whole, -1)


@torch.no_grad()
def _loss(model: Transformer, windows: Tensor) -> float:
    losses = [model(window[None, :-1], head=partial(_cross_entropy, targets=window[1:])).item() for window in windows]
    return sum(losses) / len(losses)


def _cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy((hidden[0] @ weight.T).float(), targets)
