"""Fixtures that every test may use."""

import atexit
import os
import random
import shutil
import tempfile
from pathlib import Path

import pytest
import torch

from lightning_dar.callbacks import RoutingSharpness
from lightning_dar.convert import hf_verify
from lightning_dar.residual import registry

torch.set_num_threads(1)  # the models are tiny: threads would only wait for each other
os.environ.setdefault("OMP_NUM_THREADS", "1")  # also in processes that tests start
# A place of this process's own for the code that transformers takes out of exported folders.
os.environ["HF_MODULES_CACHE"] = tempfile.mkdtemp(prefix="modules-")
atexit.register(shutil.rmtree, os.environ["HF_MODULES_CACHE"], ignore_errors=True)


LONG = ("resume", "training", "benchmarks", "study")


def pytest_collection_modifyitems(items):
    """Folders whose files take long come first: at the end one worker would run them while the others wait."""
    items.sort(key=lambda item: item.path.parent.name not in LONG)


@pytest.fixture(autouse=True)
def seeded():
    """Every test starts from the same global random state."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def same_environment():
    """What a test's run has told its processes (Lightning sets LOCAL_RANK) is forgotten after it."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(autouse=True)
def no_other_process(request, monkeypatch):
    """Exported folders are opened in another process, which takes five seconds, only in tests marked for it."""
    if request.node.get_closest_marker("opens_elsewhere") is None:
        monkeypatch.setattr(hf_verify, "verify_opens", lambda *args, **kwargs: "not opened in this test")


@pytest.fixture(autouse=True)
def no_pictures(request, monkeypatch):
    """Runs draw their routing, which takes a third of a tiny one, only in tests marked for it."""
    if request.node.get_closest_marker("draws") is None:
        monkeypatch.setattr(RoutingSharpness, "_draw", lambda *args: None)


@pytest.fixture
def own_registry(monkeypatch):
    """Strategies registered by the test are forgotten after it."""
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory) -> Path:
    """60 documents of made-up sentences, about 60 KB."""
    draw = random.Random(0)
    words = [f"{a}{b}" for a in ("ta", "ko", "ri", "me") for b in ("n", "lo", "s", "vi", "pa")]
    folder = tmp_path_factory.mktemp("text")
    for number in range(60):
        text = " ".join(draw.choice(words) for _ in range(200)) + ".\n"
        (folder / f"{number:02d}.txt").write_text(text)
    return folder
