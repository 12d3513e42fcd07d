"""A converted model against transformers' own class, which opens the source's folder with its own reader."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor

from lightning_dar.checkpoint.families import FAMILIES
from lightning_dar.checkpoint.load import CONFIG_FILE, DESCRIPTION_FILE, Checkpoint, load_weights
from lightning_dar.errors import DataError

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
