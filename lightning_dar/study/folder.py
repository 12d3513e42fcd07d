"""The files of a cell's run, whether it is there or to come.

FOLDER/cell.yaml        its `fit` config: `python cli.py fit --config FOLDER/cell.yaml` is the same run
FOLDER/identity.json    variant, seed and identity, as its result will have them
FOLDER/progress.json    optimizer steps done and seconds spent
FOLDER/fit.log          what its process prints
FOLDER/fit/             the run: TensorBoard events, config.yaml, checkpoints/
"""

import json
from dataclasses import dataclass
from pathlib import Path

RUN = "fit"
NOT_DONE = 75  # exit status of a run that was interrupted and goes on another time


@dataclass(frozen=True)
class CellFolder:
    path: Path

    @property
    def config(self) -> Path:
        return self.path / "cell.yaml"

    @property
    def identity(self) -> Path:
        return self.path / "identity.json"

    @property
    def progress(self) -> Path:
        return self.path / "progress.json"

    @property
    def log(self) -> Path:
        return self.path / "fit.log"

    @property
    def lock(self) -> Path:
        return self.path / ".lock"

    @property
    def run(self) -> Path:
        return self.path / RUN

    @property
    def checkpoints(self) -> Path:
        return self.run / "checkpoints"

    def read_progress(self) -> tuple[int, float]:
        """(optimizer steps done, seconds spent); zeros where a run has not written any."""
        try:
            content = json.loads(self.progress.read_text(encoding="utf-8"))
            return content["step"], content["seconds"]
        except (OSError, ValueError, KeyError):
            return 0, 0.0

    def last_line(self) -> str:
        """What its process said last; the error where it ended by one."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            return ""
        said = [line.strip() for line in lines if line.strip()]
        errors = [line.removeprefix("error: ") for line in said if line.startswith("error: ")]
        return (errors or said or [""])[-1]
