"""evaluate: downstream tasks through lm-evaluation-harness."""

import json
from dataclasses import asdict
from pathlib import Path

from lightning_dar.errors import UsageError
from lightning_dar.evaluate.tasks import LOCAL_TASK, PAPER, require_harness, task_names
from lightning_dar.run.parser import (
    PlainParser,
    add_device,
    add_plugins,
    add_weights,
    say_weights,
    use_plugins,
)


def make_parser() -> PlainParser:
    parser = PlainParser(
        description="Score checkpoints on downstream tasks, zero-shot, through lm-evaluation-harness "
        "(pip install 'lm_eval[hf]').",
        epilog="A folder that transformers opens is evaluated through transformers, every other checkpoint by this "
        "package.",
    )
    parser.add_argument(
        "--ckpt_path",
        type=str,
        action="append",
        required=True,
        help="Any checkpoint: .ckpt file, sharded, converted or Hugging Face folder. Repeat it for several.",
    )
    parser.add_argument(
        "--tasks",
        type=str,
        nargs="+",
        default=[LOCAL_TASK["task"]],
        help=f"Names of the harness; {PAPER}: the paper's eight; {LOCAL_TASK['task']}: 60 questions that need no "
        "download (default).",
    )
    parser.add_argument("--batch_size", type=int, default=16, help="Texts in a forward.")
    parser.add_argument("--limit", type=int | None, default=None, help="Questions of each task, at most.")
    parser.add_argument("--output", type=str | None, default=None, help="JSON file to write.")
    add_weights(parser)
    add_device(parser)
    add_plugins(parser)
    return parser


def run(args: list[str]) -> None:
    """Runs the command. Raises UsageError or DataError for bad input."""
    options = make_parser().parse_args(args)
    for name in ("batch_size", "limit"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} {value}: must be at least 1")
    output = None if options.output is None else Path(options.output)
    if output is not None and output.exists():
        raise UsageError(f"--output {output}: exists already; choose another place")
    require_harness()
    from lightning_dar.checkpoint.load import open_checkpoint
    from lightning_dar.evaluate.scores import evaluate, scores_table
    from lightning_dar.run.parser import find_device

    use_plugins(options.plugins)
    checkpoints = [open_checkpoint(path, options.weights) for path in options.ckpt_path]
    for checkpoint in checkpoints:
        say_weights(checkpoint)
    device, names = find_device(options.device), task_names(options.tasks)
    found = [evaluate(checkpoint, names, device, options.batch_size, options.limit) for checkpoint in checkpoints]
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps([asdict(each) for each in found], indent=2) + "\n", encoding="utf-8")
    print(scores_table(found))
