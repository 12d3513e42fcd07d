"""convert: a checkpoint into this project's form, or into transformers'."""

from typing import Any

from jsonargparse import Namespace

from lightning_dar.convert.convert import MAX_SHARD_SIZE, Conversion, convert
from lightning_dar.residual import ResidualConfig
from lightning_dar.run.parser import PlainParser, add_plugins, add_weights, use_plugins


def make_parser() -> PlainParser:
    parser = PlainParser(
        description="Convert a checkpoint, under another residual strategy or not, and verify that it is what it was.",
        epilog="The output is a folder, written beside its place and renamed when it is complete. A strategy that adds "
        "what it reads starts with a gate of zero: the model then computes what it did, to the last bit.",
    )
    parser.add_argument(
        "--source",
        type=str,
        required=True,
        help="Folder of a Qwen3, Qwen2, Llama or Mistral model with safetensors, of one in the method authors' layout, "
        "or any checkpoint of this project: .ckpt file, sharded folder, converted folder.",
    )
    parser.add_argument("--output", type=str, required=True, help="Folder to write.")
    parser.add_argument(
        "--format",
        choices=["lightning", "hf"],
        default="lightning",
        help="lightning: for fit --model.init_from, validate, generate and load_model. hf: for transformers, a plain "
        "folder of its family where nothing is routed, else one that brings its code (trust_remote_code).",
    )
    parser.add_argument(
        "--model.residual.name", type=str, default=None, help="Residual strategy of the result; default: the source's."
    )
    parser.add_argument("--model.residual.options", type=dict[str, Any], default={}, help="Options of that strategy.")
    parser.add_argument(
        "--dtype",
        choices=["float32", "bfloat16", "float16"],
        default=None,
        help="Of the weights; default: as they are.",
    )
    parser.add_argument(
        "--max_shard_size",
        type=str,
        default=MAX_SHARD_SIZE,
        help="Of the weights in one file, such as 5GB or 500MB; larger models get shards and an index. One shard at a "
        "time is in memory.",
    )
    parser.add_argument(
        "--no-verify", action="store_true", help="Leave out the comparison of the result with the source."
    )
    parser.add_argument(
        "--allow-disturbance",
        action="store_true",
        help="Allow a strategy that changes what the network computes, and print by how much its loss changes.",
    )
    parser.add_argument(
        "--calibration-text",
        type=str | list[str],
        default="stdlib",
        help="Text for that loss: stdlib, or files, folders or globs, as for data.source.",
    )
    parser.add_argument("--overwrite", action="store_true", help="Replace an existing output.")
    add_weights(parser)
    add_plugins(parser)
    return parser


def run(args: list[str]) -> None:
    """Runs the command. Raises UsageError or DataError for bad input."""
    options = make_parser().parse_args(args)
    use_plugins(options.plugins)
    print("\n".join(convert(_conversion(options))))


def _conversion(options: Namespace) -> Conversion:
    text = options.calibration_text
    wanted = options.model.residual
    return Conversion(
        source=options.source,
        output=options.output,
        format=options.format,
        residual=None if wanted.name is None else ResidualConfig(name=wanted.name, options=wanted.options),
        dtype=options.dtype,
        verify=not options.no_verify,
        allow_disturbance=options.allow_disturbance,
        calibration_text=[text] if isinstance(text, str) else text,
        max_shard_size=options.max_shard_size,
        overwrite=options.overwrite,
        weights=options.weights,
    )
