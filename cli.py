"""The command line: fit, validate and prepare on LightningCLI; the others without a trainer of their own.

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

from lightning_dar.commands import PLAIN, plain_command
from lightning_dar.errors import DataError, TrainingError, UsageError

REFUSED_BY_THE_SYSTEM = {  # of files and folders; what else may happen to a file is a bug
    getattr(errno, name)
    for name in ("EACCES", "EPERM", "EROFS", "ENOSPC", "EDQUOT", "EFBIG", "EIO", "ENOTDIR", "EISDIR", "ENAMETOOLONG")
    if hasattr(errno, name)
}


def main(args: Sequence[str] | None = None) -> None:
    """Runs a subcommand; what is wrong ends in one line and status 2 (usage) or 1 (data, training)."""
    args = sys.argv[1:] if args is None else list(args)
    try:
        if args and args[0] in PLAIN:
            plain_command(args[0]).run(args[1:])
        else:
            from lightning_dar.commands import trainer  # Lightning: seconds that the plain commands do without

            trainer.run(args)
    except UsageError as error:
        sys.exit(_say(error, 2))
    except (DataError, TrainingError) as error:
        sys.exit(_say(error, 1))
    except OSError as error:
        if error.errno not in REFUSED_BY_THE_SYSTEM:
            raise
        sys.exit(_say(error, 1))
    except KeyboardInterrupt:
        sys.exit(130)


def _say(error: Exception, status: int) -> int:
    print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
    return status


if __name__ == "__main__":
    main()
