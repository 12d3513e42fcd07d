"""The command line, from a clone: `python cli.py fit --config configs/quickstart.yaml`; `--help` lists the commands."""

from lightning_dar.cli import main

if __name__ == "__main__":
    main()
