"""A place for the code that transformers takes out of exported folders."""

import pytest
from transformers import dynamic_module_utils


@pytest.fixture(scope="session", autouse=True)
def modules_of_folders(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("modules"))
    patch = pytest.MonkeyPatch()
    patch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", folder)
    patch.syspath_prepend(folder)
    yield
    patch.undo()
