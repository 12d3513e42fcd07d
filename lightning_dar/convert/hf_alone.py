"""A program of its own, run by path: opens a folder with transformers where this package cannot be imported.

    python -I hf_alone.py REQUEST.json

REQUEST.json: folder; ids and logits, files to read and to write; blocked, top-level modules that must not be imported;
places, folders to import packages from; threads.
"""

import json
import sys
from importlib.abc import MetaPathFinder


class Blocked(MetaPathFinder):
    """Modules of these names are not there."""

    def __init__(self, names: list[str]):
        self._names = set(names)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self._names:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return None


def main(request: dict) -> None:
    sys.path[:0] = [place for place in request["places"] if place not in sys.path]
    sys.meta_path.insert(0, Blocked(request["blocked"]))
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(request["threads"])
    model = AutoModelForCausalLM.from_pretrained(
        request["folder"], trust_remote_code=True, local_files_only=True, dtype="auto"
    ).eval()
    with torch.no_grad():
        logits = model(load_file(request["ids"])["ids"]).logits
    save_file({"logits": logits.contiguous()}, request["logits"])


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        main(json.load(file))
