import random

import pytest


@pytest.fixture
def draw() -> random.Random:
    return random.Random(0)
