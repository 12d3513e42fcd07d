"""The command line: fit, validate and prepare on LightningCLI; the tools without a trainer of their own.

python cli.py fit --config configs/quickstart.yaml
python cli.py fit --config configs/quickstart.yaml --model.residual.name delta-block
python cli.py validate --ckpt_path runs/quickstart/version_0/checkpoints/last.ckpt
python cli.py prepare --config configs/delta_1b.yaml
python cli.py convert --source models/Qwen3-0.6B --output models/routed --model.residual.name delta-block
python cli.py generate --ckpt_path models/routed --prompt "Once upon a time"
python cli.py inspect --ckpt_path runs/quickstart/version_0/checkpoints/last.ckpt --output reports/quickstart
python cli.py plan --config configs/delta_8b.yaml --gpus 64 --gpu h100
python cli.py study --config configs/study/small.yaml --jobs 2
python cli.py evaluate --ckpt_path models/routed --tasks paper
"""

import errno
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from lightning_dar.errors import DataError, TrainingError, UsageError

TOOLS = {  # commands without a trainer, each a module with make_parser() and run(args), imported when it is needed
    "convert": "lightning_dar.convert.command",
    "evaluate": "lightning_dar.evaluate.command",
    "generate": "lightning_dar.generate",
    "inspect": "lightning_dar.inspect.command",
    "plan": "lightning_dar.plan.command",
    "study": "lightning_dar.study.command",
}
REFUSED_BY_THE_SYSTEM = {  # errors of files and folders; anything else that happens to a file is a bug
    getattr(errno, name)
    for name in ("EACCES", "EPERM", "EROFS", "ENOSPC", "EDQUOT", "EFBIG", "EIO", "ENOTDIR", "EISDIR", "ENAMETOOLONG")
    if hasattr(errno, name)
}


def main(args: Sequence[str] | None = None) -> None:
    """Runs a command. Bad input ends in one line on stderr and status 2 (usage) or 1 (data, training)."""
    args = sys.argv[1:] if args is None else list(args)
    try:
        if args and args[0] in TOOLS:
            tool(args[0]).run(args[1:])
        else:
            from lightning_dar.fit import lightning_cli  # imports Lightning, which takes seconds

            lightning_cli.run(args, tools={name: lambda name=name: tool(name).make_parser() for name in TOOLS})
    except UsageError as error:
        sys.exit(_report(error, 2))
    except (DataError, TrainingError) as error:
        sys.exit(_report(error, 1))
    except OSError as error:
        if error.errno not in REFUSED_BY_THE_SYSTEM:
            raise
        sys.exit(_report(error, 1))
    except KeyboardInterrupt:
        sys.exit(130)


def tool(name: str) -> ModuleType:
    """The module of a tool, by the name of its command."""
    return import_module(TOOLS[name])


def _report(error: Exception, status: int) -> int:
    print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
    return status
