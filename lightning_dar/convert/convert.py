"""Checkpoint in, checkpoint out: plan, stream one shard at a time, verify, and only then give it its name."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from tqdm import tqdm

from lightning_dar.checkpoint.carried import special_tokens, tokenizer_of, unnamed_end
from lightning_dar.checkpoint.families import Exported
from lightning_dar.checkpoint.hf_config import family_of, write_config
from lightning_dar.checkpoint.hf_fields import hf_name
from lightning_dar.checkpoint.load import (
    CONFIG_FILE,
    DESCRIPTION_FILE,
    Checkpoint,
    WhichWeights,
    check_fits,
    open_checkpoint,
    which_weights,
)
from lightning_dar.checkpoint.tensors import FLOATS, TensorInfo, Tensors, Translated, shard_bytes, write_safetensors
from lightning_dar.convert import hf_verify
from lightning_dar.convert.hf_export import ModelCode, model_code, routed_config
from lightning_dar.convert.rewire import rewire
from lightning_dar.convert.verify import logits_of, measure_disturbance, verify
from lightning_dar.files import check_output, new_folder
from lightning_dar.residual import ResidualConfig
from lightning_dar.run.config import portable_settings
from lightning_dar.text.tokenizer import BYTES_JSON, TOKENIZER_FILE

Format = Literal["lightning", "hf"]
MAX_SHARD_SIZE = "5GB"  # that of huggingface_hub
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in FLOATS[:3]}


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What `convert` is asked for.

    Args:
        source: a Hugging Face folder, a checkpoint of this project, or one in the method authors' layout.
        output: the folder to write.
        format: `lightning` for this project's commands, `hf` for transformers.
        residual: the strategy of the result; default: the source's.
        dtype: of all weights; default: as they are.
        verify: compare the result with its source before it gets its name.
        allow_disturbance: allow strategies that change what the network computes, and measure by how much.
        calibration_text: text for that measurement: stdlib, files, folders or globs.
        max_shard_size: of the tensors in one file, such as 5GB; one shard at a time is in memory.
        overwrite: replace an existing output.
        weights: of a run that averaged its weights, which ones; default: averaged.
    """

    source: str
    output: str
    format: Format = "lightning"
    residual: ResidualConfig | None = None
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    verify: bool = True
    allow_disturbance: bool = False
    calibration_text: Sequence[str] = ("stdlib",)
    max_shard_size: str = MAX_SHARD_SIZE
    overwrite: bool = False
    weights: WhichWeights | None = None


def convert(asked: Conversion) -> list[str]:
    """Writes the folder `asked.output`; returns what was done, line by line.

    Raises:
        UsageError: options that cannot work, or an output that is in the way.
        DataError: a source that cannot be converted, a full disk, or a result that is not what it should be.
    """
    output, dtype = Path(asked.output), DTYPES[asked.dtype] if asked.dtype else None
    max_shard_bytes = shard_bytes(asked.max_shard_size)
    source = open_checkpoint(asked.source, asked.weights)
    check_output(output, Path(asked.source), asked.overwrite)
    check_fits(source.build(), source)
    target = rewire(source, asked.residual, asked.allow_disturbance)
    lines = [_summary(source, target), *source.notes]
    if asked.format == "hf" and target.description["tokenizer"] is not None:
        lines += filter(None, [unnamed_end(target.files, tokenizer_of(target))])
    if source.weights is not None:
        lines.append(which_weights(source.path, source.weights, "--weights "))
    code = model_code(target) if asked.format == "hf" and target.residual.name != "standard" else None
    tensors, files = _layout(target, asked.format, dtype, code)
    dtypes = {name: dtype or info.dtype for name, info in tensors.infos.items()}
    num_bytes = sum(TensorInfo(info.shape, dtypes[name]).num_bytes for name, info in tensors.infos.items())
    with new_folder(output, num_bytes) as folder:
        for name, content in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        with tqdm(total=num_bytes, unit="B", unit_scale=True, desc="Converting", mininterval=0.2) as bar:
            write_safetensors(folder, tensors, dtypes, max_shard_bytes, progress=bar.update)
        lines += _findings(source, target, folder, dtype, asked)
        if asked.verify and asked.format == "hf":
            lines.append(_opened(target, folder, dtype, code))
    if code is not None and code.packages:
        lines.append(f"its code needs {', '.join(code.packages)} besides torch and transformers")
    return [*lines, f"wrote {output} ({num_bytes / 1e6:,.1f} MB of weights)"]


def _summary(source: Checkpoint, target: Checkpoint) -> str:
    parameters = sum(torch.Size(info.shape).numel() for info in source.tensors.infos.values())
    strategies = dict.fromkeys(_named(checkpoint.residual) for checkpoint in (source, target))
    return f"{source.path}: {source.config.num_layers} layers, {parameters:,} parameters; {' -> '.join(strategies)}"


def _named(residual: ResidualConfig) -> str:
    return " ".join([residual.name, *(f"{key}={value}" for key, value in residual.options.items())])


def _layout(
    target: Checkpoint, form: Format, dtype: torch.dtype | None, code: ModelCode | None
) -> tuple[Tensors, dict[str, str | bytes]]:
    """The tensors under the names that the format wants, and the files beside them."""
    files: dict[str, str | bytes] = dict(target.files)
    tokenizer = target.description["tokenizer"]
    if tokenizer is not None:
        files[TOKENIZER_FILE] = tokenizer
    if form == "lightning":
        return target.tensors, {**files, DESCRIPTION_FILE: _description(target)}
    if tokenizer == BYTES_JSON:
        files.pop(TOKENIZER_FILE)
    stored = dtype or target.tensors.infos["embed.weight"].dtype
    if code is None:
        origin = target.description.get("hf_config")
        config = write_config(target.config, origin, target.seq_len)
        tensors = Exported(target.tensors, family_of(target.config, origin), target.config.num_layers)
    else:
        config, tensors = routed_config(target, code), Translated(target.tensors, hf_name)
        files[code.file] = code.text
    config["dtype"] = str(stored).removeprefix("torch.")
    if tokenizer is not None:
        files = {**special_tokens(config, tokenizer_of(target)), **files}
    return tensors, {**files, CONFIG_FILE: json.dumps(config, indent=2)}


def _description(target: Checkpoint) -> str:
    description = {key: value for key, value in target.description.items() if key != "tokenizer"}
    return json.dumps({**description, "settings": portable_settings(target.content)}, indent=2)


def _findings(
    source: Checkpoint, target: Checkpoint, folder: Path, dtype: torch.dtype | None, asked: Conversion
) -> list[str]:
    if not asked.verify:
        return ["not verified (--no-verify)"]
    if asked.allow_disturbance and target.residual != source.residual:
        losses = measure_disturbance(source, folder, dtype, asked.calibration_text)
        if losses is None:
            return ["disturbance not measured: the source has no tokenizer.json to read the calibration text with"]
        before, after = losses
        text = ", ".join(asked.calibration_text)
        return [f"loss on {text}: {before:.6f} before, {after:.6f} after ({after - before:+.6f} nats a token)"]
    return verify(source, folder, dtype)


def _opened(target: Checkpoint, folder: Path, dtype: torch.dtype | None, code: ModelCode | None) -> str:
    input_ids, logits = logits_of(target, dtype)
    modules, packages = (code.modules, code.packages) if code is not None else ((), ())
    return hf_verify.verify_opens(folder, input_ids, logits, modules=modules, packages=packages)
