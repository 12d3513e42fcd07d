"""Fixtures that every test may use."""

import pytest
import torch

from lightning_dar.residual import registry

torch.set_num_threads(1)  # the models are tiny: threads would only wait for each other


@pytest.fixture(autouse=True)
def seeded():
    """Every test starts from the same global random state."""
    torch.manual_seed(0)


@pytest.fixture
def own_registry(monkeypatch):
    """Strategies registered by the test are forgotten after it."""
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
