"""inspect: how checkpoints route on held-out text, and what it is worth; as numbers, charts and one page."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace

from lightning_dar.errors import UsageError
from lightning_dar.run.parser import (
    PlainParser,
    add_device,
    add_plugins,
    add_weights,
    say_weights,
    use_plugins,
)

if TYPE_CHECKING:
    from lightning_dar.checkpoint.load import Checkpoint
    from lightning_dar.diagnostics.held_out import HeldOut
    from lightning_dar.diagnostics.results import Inspected, Report

MAX_TOKENS, QUICK_TOKENS = 32_768, 2048
DEFAULT_SEQ_LEN = 256  # where the first checkpoint does not say how it was trained
REPORT = "report.json"
OUTPUT_BYTES = 50_000_000  # asked of the disk before work starts
HEAD = ("checkpoint", "strategy", "loss", "sharpness", "deep", "uniform", "uniform weights cost", "mass~importance")


def make_parser() -> PlainParser:
    parser = PlainParser(
        description="Measure how checkpoints route on held-out text, and what it is worth: knock-outs, strength of the "
        "branch, other weights in place of the learned ones.",
        epilog="OUTPUT gets report.html, report.json, and a CSV and a PNG of each chart. All checkpoints "
        "read the same text; they must share a tokenizer.",
    )
    parser.add_argument(
        "--ckpt_path",
        type=str,
        action="append",
        required=True,
        help="Any checkpoint: .ckpt file, sharded, converted or foreign folder. Repeat it to set several side by side.",
    )
    parser.add_argument(
        "--text",
        type=str,
        nargs="+",
        default=None,
        help="Files, folders or globs of text that no checkpoint was trained on; default: the windows that validate "
        "takes for the first checkpoint.",
    )
    parser.add_argument(
        "--data.source",
        type=str | list[str] | None,
        default=None,
        help="In place of --text: the windows that validate takes for this source, such as the validation part of "
        "token shards, or of text, which is prepared by the checkpoints' tokenizer.",
    )
    parser.add_argument(
        "--data.dir",
        type=str | None,
        default=None,
        help="Folder for the shards that the source is prepared into, as validate has it.",
    )
    parser.add_argument("--text_field", type=str, default="text", help="Of .jsonl, .jsonl.gz and .parquet.")
    parser.add_argument("--output", type=str, required=True, help="Folder to write.")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"Read {QUICK_TOKENS} tokens, or as many windows as intervals need: enough for a look.",
    )
    parser.add_argument(
        "--max_tokens",
        type=int | None,
        default=None,
        help=f"Tokens to read, at most; default: {MAX_TOKENS}. The time grows with them and with sites x sources.",
    )
    parser.add_argument(
        "--seq_len", type=int | None, default=None, help="Tokens a window; default: the first checkpoint's."
    )
    add_weights(parser)
    add_device(parser)
    parser.add_argument("--overwrite", action="store_true", help="Replace an existing report.")
    add_plugins(parser)
    return parser


def run(args: list[str]) -> None:
    """Runs the command. Raises UsageError or DataError for bad input."""
    options = make_parser().parse_args(args)
    _check(options)
    from lightning_dar.charts.page import check_drawing
    from lightning_dar.checkpoint.load import open_checkpoint
    from lightning_dar.files import check_output, new_folder
    from lightning_dar.run.parser import find_device

    check_drawing()
    use_plugins(options.plugins)
    checkpoints = [open_checkpoint(path, options.weights) for path in options.ckpt_path]
    for checkpoint in checkpoints:
        say_weights(checkpoint)
    output = Path(options.output)
    for checkpoint in checkpoints:
        check_output(output, checkpoint.path, options.overwrite, marks=(REPORT,), kind="report")
    device = find_device(options.device)
    limits = _limits(options, checkpoints[0])
    held_out = _held_out(options, checkpoints, **limits)
    with new_folder(output, OUTPUT_BYTES) as folder:  # a disk that cannot be written is found before the work
        report = _report(options, checkpoints, held_out, device, limits)
        _write(folder, report)
    print("\n".join(_summary(report, output)))


def _check(options: Namespace) -> None:
    for name in ("max_tokens", "seq_len"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} {value}: must be at least 1")
    for number, path in enumerate(options.ckpt_path):
        if Path(path).resolve() in (Path(other).resolve() for other in options.ckpt_path[:number]):
            raise UsageError(f"--ckpt_path {path}: given twice")
    asked = [f"--data.{name}" for name in ("source", "dir") if options.data[name] is not None]
    if asked and options.text is not None:
        raise UsageError(f"--text and {asked[0]}: two texts to read; give one of them")


def _limits(options: Namespace, first: "Checkpoint") -> dict[str, int]:
    """Tokens a window, and in all: windows enough for intervals, unless the user wants fewer."""
    from lightning_dar.diagnostics.statistics import MIN_UNITS

    seq_len = options.seq_len or first.seq_len or DEFAULT_SEQ_LEN
    usual = QUICK_TOKENS if options.quick else MAX_TOKENS
    return {"seq_len": seq_len, "max_tokens": options.max_tokens or max(usual, MIN_UNITS * seq_len)}


def _held_out(options: Namespace, checkpoints: Sequence["Checkpoint"], **limits: int) -> "HeldOut":
    """The text, in ids that every checkpoint knows. Raises DataError where one does not."""
    from lightning_dar.diagnostics.held_out import check_same_text, text_windows, validation_windows

    tokenizer = check_same_text(checkpoints)
    if options.text is None:
        source, folder = options.data.source, options.data.dir
        return validation_windows(checkpoints[0], tokenizer, source=source, folder=folder, **limits)
    return text_windows(options.text, options.text_field, tokenizer, checkpoints[0], **limits)


def _report(
    options: Namespace, checkpoints: Sequence["Checkpoint"], held_out: "HeldOut", device: Any, limits: dict[str, int]
) -> "Report":
    # Imported when all is known to be there: they bring in Lightning.
    from lightning_dar.diagnostics.held_out import names_of
    from lightning_dar.inspect.report import make_report

    settings = {"quick": options.quick, "text": options.text, "data": vars(options.data), **limits}
    return make_report(checkpoints, names_of(options.ckpt_path), held_out, device, settings)


def _write(folder: Path, report: "Report") -> None:
    from lightning_dar.charts.page import write_report
    from lightning_dar.inspect.charts import lead_of, sections_of

    lead = lead_of(report)
    content = {"lead": lead, **asdict(report)}
    (folder / REPORT).write_text(json.dumps(content, indent=2, allow_nan=False), encoding="utf-8")
    title = "Routing of " + ", ".join(found.name for found in report.checkpoints)
    write_report(folder, title, lead, sections_of(report), content)


def _summary(report: "Report", output: Path) -> Iterator[str]:
    from lightning_dar.run.parser import table

    yield table(list(HEAD), [_row(found) for found in report.checkpoints])
    for found in report.checkpoints:
        if found.routing is None:
            yield f"{found.name}: strategy '{found.strategy.name}' shows no routing"
        elif found.causal is None:
            yield f"{found.name}: its reads cannot be changed: query, key and value are read separately"
        else:
            kinds = found.causal.rank_correlation.within_sites.items()
            values = ", ".join(f"{kind} {_with_interval(w.value, w.low, w.high, '.2f')}" for kind, w in kinds)
            yield f"{found.name}: rank correlation of mass and importance within sites: {values}"
    yield f"report  {output / 'report.html'}"


def _row(found: "Inspected") -> list[str]:
    row = [found.name, found.strategy.name, f"{found.loss.loss:.4f}"]
    if found.routing is None:
        return row + ["-"] * (len(HEAD) - len(row))
    means, deep = found.routing.means, found.routing.means_deep
    row += [_number(value, ".3f") for value in (means.sharpness, deep.sharpness, deep.uniform_sharpness)]
    if found.causal is None:
        return row + ["-"] * (len(HEAD) - len(row))
    within, uniform = found.causal.rank_correlation.within_sites["renormalised"], found.causal.selection.uniform
    cost = _with_interval(uniform.difference, uniform.low, uniform.high, "+.4f")
    return [*row, cost, _number(within.value, ".2f")]


def _with_interval(value: float | None, low: float | None, high: float | None, form: str) -> str:
    """`-` for what is not known."""
    return f"{_number(value, form)} " + ("(-)" if low is None else f"({low:{form}} to {high:{form}})")


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
