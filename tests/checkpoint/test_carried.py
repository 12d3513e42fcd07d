"""Files of a model inside a checkpoint, which may be anyone's."""

import pytest
import torch
from tiny import tiny_model

from lightning_dar.checkpoint.carried import FILES_KEY, packed, unpacked
from lightning_dar.checkpoint.description import describe
from lightning_dar.checkpoint.load import open_checkpoint
from lightning_dar.errors import DataError
from lightning_dar.residual import ResidualConfig

FILES = {
    "tokenizer.model": bytes(range(256)),
    "chat_template.jinja": "ü\r\n\ufeff".encode(),
    "additional_chat_templates/tools.jinja": b"",
}


def write(files, path):
    model = tiny_model("standard")
    description = describe(model.config, model.residual, ResidualConfig(name="standard"))
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save({"lightning_dar": description, "state_dict": weights, FILES_KEY: files}, path)
    return path


def test_any_bytes_survive(tmp_path):
    assert unpacked(packed(FILES)) == FILES
    assert open_checkpoint(write(packed(FILES), tmp_path / "a.ckpt")).files == FILES


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"../evil.jinja": "x"}, "holds '../evil.jinja', which is no file of a model"),
        ({"additional_chat_templates/../../evil.jinja": "x"}, "evil.jinja', which is no file of a model"),
        ({"additional_chat_templates/..": "x"}, "which is no file of a model"),
        ({"/etc/merges.txt": "x"}, "which is no file of a model"),
        ({"config.json": "{}"}, "holds 'config.json', which is no file of a model"),
        ({"merges.txt": "\u20ac"}, "is damaged"),
        ({"merges.txt": 3}, "holds 'merges.txt', which is no file of a model"),
        (["merges.txt"], "is damaged: names and contents are needed"),
    ],
)
def test_what_is_no_file_of_a_model_is_refused(files, says, tmp_path):
    with pytest.raises(DataError, match=rf"a\.ckpt': its 'lightning_dar_files' .*{says}"):
        open_checkpoint(write(files, tmp_path / "a.ckpt"))
