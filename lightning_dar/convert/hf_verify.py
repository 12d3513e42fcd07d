"""Does an exported folder open with transformers, in a process without this package, and compute what it should?"""

import json
import os
import subprocess
import sys
from collections.abc import Collection
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lightning_dar.errors import DataError

PACKAGE = "lightning_dar"
PROGRAM = Path(__file__).with_name("hf_alone.py")
OLDEST = (4, 57)
LIMITS = {torch.float16: 2e-2, torch.bfloat16: 0.15}  # of the distance; five times what 28 layers' rounding makes
LIMIT = 1e-4
TIDY = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


def verify_opens(
    folder: Path, ids: Tensor, expected: Tensor, modules: Collection[str], packages: Collection[str]
) -> str:
    """Compares logits of `folder`, opened elsewhere, with those expected; returns what was found, in words.

    Args:
        folder: what `convert` wrote.
        ids: int [B, T].
        expected: logits [B, T, V] of the model that the folder should hold.
        modules: modules that travelled with it, which the process must not be able to import.
        packages: packages that its code imports.

    Raises:
        DataError: a folder that does not open there, or computes something else.
    """
    try:
        installed = version("transformers")
    except PackageNotFoundError:
        return "not opened with transformers: it is not installed"
    if tuple(map(int, installed.split(".")[:2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return f"not opened with transformers: {installed} is installed, {oldest} is the first release that it is for"
    logits = _logits_elsewhere(folder, ids, modules, packages, installed)
    where = f"with transformers {installed}, in a process of its own without this package"
    if torch.equal(logits, expected):
        return f"verified: opened {where}: logits equal to the last bit"
    distance = torch.dist(logits.double(), expected.double()) / expected.double().norm()
    if not distance <= LIMITS.get(expected.dtype, LIMIT):
        raise DataError(
            f"verification failed: opened {where}, the folder's logits differ by {distance:.2e} of their size"
        )
    return f"verified: opened {where}: logits within {distance:.1e} of their size"


def _logits_elsewhere(
    folder: Path, ids: Tensor, modules: Collection[str], packages: Collection[str], installed: str
) -> Tensor:
    with TemporaryDirectory() as place:
        work = Path(place)
        request = {
            "folder": str(folder.resolve()),
            "ids": str(work / "ids"),
            "logits": str(work / "logits"),
            "blocked": sorted({PACKAGE, *(name.partition(".")[0] for name in modules)}),
            "places": _places({"torch", "transformers", "safetensors", *packages}),
            "threads": torch.get_num_threads(),
        }
        (work / "request").write_text(json.dumps(request), encoding="utf-8")
        save_file({"ids": ids}, work / "ids")
        environment = {**os.environ, **TIDY, "HF_MODULES_CACHE": str(work / "modules")}
        command = [sys.executable, "-I", str(PROGRAM), str(work / "request")]
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, errors="replace")
        if done.returncode != 0:
            lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            ended = f"it was ended by signal {-done.returncode}" if done.returncode < 0 else lines[-1]
            raise DataError(
                f"verification failed: the folder does not open with transformers {installed} where this package is "
                f"not: {ended}"
            )
        return load_file(work / "logits")["logits"]


def _places(packages: Collection[str]) -> list[str]:
    """The folders on this process's path that hold the packages, in their order there."""
    found = set()
    for package in packages:
        spec = find_spec(package)
        if spec is not None and spec.origin is not None:
            origin = Path(spec.origin)
            found.add(origin.parent.parent if spec.submodule_search_locations else origin.parent)
    return [place for place in dict.fromkeys(sys.path) if place and Path(place) in found]
