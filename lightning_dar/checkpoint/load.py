"""Opening a checkpoint of any kind: what it says about itself, and its tensors when they are read.

WeightAveraging               the averaged ones in `state_dict`, the others under a key of its own
StochasticWeightAveraging     the others in `state_dict`, the averaged ones in the callback's state

FILE.ckpt                                     Lightning's single file
FOLDER/meta.pt, .metadata, *.distcp           Lightning's sharded folder
FOLDER/lightning_dar.json, model.safetensors  written by `convert`
FOLDER/config.json, *.safetensors             of others: see `families.py`
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lightning_dar.checkpoint.carried import FILES_KEY, end_ids, read_carried, unpacked
from lightning_dar.checkpoint.description import DESCRIPTION_KEY, FORMAT, describe
from lightning_dar.checkpoint.families import Renamed, untied_where_different
from lightning_dar.checkpoint.hf_config import read_config
from lightning_dar.checkpoint.hf_fields import native_name, refuse_contradictions
from lightning_dar.checkpoint.tensors import (
    META_FILE,
    WEIGHTS_PREFIX,
    InMemory,
    SafetensorsFiles,
    ShardedTensors,
    TensorInfo,
    Tensors,
    Translated,
    Unprefixed,
    file_inside,
    read_json_object,
)
from lightning_dar.errors import DataError, UsageError
from lightning_dar.model import Transformer, TransformerConfig, build_transformer
from lightning_dar.model.mlp import mlp_class
from lightning_dar.residual import ResidualConfig
from lightning_dar.text.tokenizer import TOKENIZER_FILE

WhichWeights = Literal["averaged", "current"]
CURRENT_KEY, AVERAGING_KEY = "current_model_state", "averaging_state"  # Lightning's
StateDict = dict[str, Tensor]


def choose_weights(
    content: Mapping[str, Any], wanted: WhichWeights | None, path: Any
) -> tuple[StateDict, WhichWeights | None]:
    """The weights in Lightning's single file, and which they are: averaged unless the others are wanted; None where
    there is one set alone.

    Raises:
        UsageError: averaged ones are wanted, and there are none.
    """
    current, averaged = trained_weights(content), _averaged(content)
    if averaged is None and wanted == "averaged":
        raise UsageError(f"'{path}' holds no averaged weights")
    if averaged is None:
        return current, None
    return (current, "current") if wanted == "current" else (averaged, "averaged")


def which_weights(path: Any, taken: WhichWeights, option: str) -> str:
    """A line for who reads a checkpoint of two sets; `option` is what chooses between them."""
    other = "current" if taken == "averaged" else "averaged"
    return f"'{path}' holds averaged and current weights: taken are the {taken} ones ({option}{other} for the others)"


def trained_weights(content: Mapping[str, Any]) -> StateDict:
    """The weights that the optimizer of a checkpoint goes on with."""
    return content[CURRENT_KEY if CURRENT_KEY in content else "state_dict"]


def _averaged(content: Mapping[str, Any]) -> StateDict | None:
    """None where nothing has been averaged yet: what is kept for it is then the weights at the start of the run."""
    if CURRENT_KEY in content:
        return content["state_dict"] if content.get(AVERAGING_KEY, {}).get("n_averaged", 1) > 0 else None
    for state in content.get("callbacks", {}).values():
        if isinstance(state, Mapping) and state.get("average_model_state") and state.get("n_averaged", 0) > 0:
            return state["average_model_state"]
    return None


MODEL_PREFIX = "model."
DATA_KEY = "datamodule_hyper_parameters"  # Lightning's
HF_DESCRIPTION_KEY = "lightning_dar"  # in config.json
DESCRIPTION_FILE = "lightning_dar.json"
CONFIG_FILE = "config.json"
ADAPTER_FILE = "adapter_config.json"  # of peft; transformers would apply it
DRAWS = ("normal_", "uniform_", "kaiming_uniform_")  # what initialisations fill a tensor by


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """An opened checkpoint. Nothing but its description has been read.

    Attributes:
        path: where it lies.
        description: as `describe` makes it.
        tensors: the parameters of a `Transformer`.
        content: what else Lightning saved in it: hyperparameters, settings of data and trainer.
        files: what goes with the model beside its tokenizer.json (see `carried.py`), content by name.
        notes: what its weights say otherwise than its `config.json`, or hold twice.
        weights: which ones `tensors` are, where the checkpoint holds averaged ones too; else None.
    """

    path: Path
    description: dict[str, Any]
    tensors: Tensors
    content: dict[str, Any] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    weights: WhichWeights | None = None

    @property
    def config(self) -> TransformerConfig:
        return TransformerConfig(**self.description["architecture"])

    @property
    def residual(self) -> ResidualConfig:
        return ResidualConfig(**self.description["residual"])

    @property
    def seq_len(self) -> int | None:
        """Tokens a window in training, where it is known."""
        return self.content.get(DATA_KEY, {}).get("seq_len")

    @property
    def steps(self) -> int:
        """Optimizer steps done."""
        return self.content.get("global_step", 0)

    @property
    def resumable(self) -> bool:
        """Whether training can go on from it, with the optimizer and the position in the data. A run on data of another
        class than TextData has saved no position."""
        return all(self.content.get(key) for key in ("lr_schedulers", "loops", "TextData"))

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Ids that end a text, by the `config.json` and `generation_config.json` that came with the model."""
        return end_ids(self.description.get("hf_config"), self.files)

    def build(self) -> Transformer:
        """The transformer on the meta device: shapes only."""
        mlp_class(self.config.mlp.kind, self.description.get("mlp_plugin"))  # or an error that names the plugin
        return build_on_meta(self.config, self.residual, self.description["plugin"])


def open_checkpoint(path: str | Path, weights: WhichWeights | None = None) -> Checkpoint:
    """Opens a checkpoint of any kind.

    Args:
        path: a file or a folder.
        weights: of a run that averaged its weights, which ones; default: averaged.

    Raises:
        UsageError: no such path, a strategy whose plugin is not loaded (named), or no averaged weights where those are
            asked for.
        DataError: no checkpoint, a damaged one, one that could run code, or one that our model cannot express.
    """
    path = Path(path)
    if not path.exists():
        raise UsageError(f"checkpoint '{path}' does not exist")
    if path.is_file():
        return _checked(_lightning_file(path, weights))
    if weights == "averaged":
        raise UsageError(f"'{path}' holds no averaged weights")
    for name, opener in KINDS.items():
        if (path / name).exists():
            return _checked(opener(path))
    raise DataError(f"'{path}' is a folder without {', '.join(KINDS)}: give a model's folder, or the .ckpt file in it")


def load_model(path: str | Path, weights: WhichWeights | None = None) -> Transformer:
    """The model of a checkpoint of any kind, on the CPU, in evaluation mode, in the dtypes that it is saved in.

    Args:
        path: a file or a folder.
        weights: of a run that averaged its weights, which ones; default: averaged, with a warning that there are two.

    Raises:
        UsageError: as `open_checkpoint` does.
        DataError: no checkpoint, a damaged one, one that could run code, or one that our model cannot express.
    """
    checkpoint = open_checkpoint(path, weights)
    if weights is None and checkpoint.weights is not None:
        warnings.warn(which_weights(path, checkpoint.weights, "weights="), stacklevel=2)
    model = checkpoint.build()
    load_weights(model, checkpoint)
    return model.eval()


def load_weights(model: Transformer, checkpoint: Checkpoint) -> None:
    """Fills a model on the meta device; one on a device keeps its dtypes and takes the values.

    Raises:
        DataError: tensors that the model does not have, or the other way round; all of them, at once.
    """
    check_fits(model, checkpoint)
    state = model.state_dict()
    for name in checkpoint.tensors.infos:
        if state[name].is_meta:
            model.load_state_dict({name: checkpoint.tensors.read(name).clone()}, strict=False, assign=True)
        else:
            state[name].copy_(checkpoint.tensors.read(name))


def check_fits(model: Transformer, checkpoint: Checkpoint) -> None:
    """Raises DataError for tensors that the model does not have, or the other way round, or of another shape."""
    state = model.state_dict()
    found, wanted = set(checkpoint.tensors.infos), set(state)
    if found != wanted or checkpoint.tensors.others:
        problems = [
            *(f"missing {n}" for n in sorted(wanted - found)),
            *(f"unknown {n}" for n in sorted({*(found - wanted), *checkpoint.tensors.others})),
        ]
        raise DataError(f"'{checkpoint.path}': the tensors do not fit its description: {'; '.join(problems)}")
    for name, info in checkpoint.tensors.infos.items():
        if tuple(state[name].shape) != info.shape:
            raise DataError(f"'{checkpoint.path}': {name} has shape {info.shape}, not {tuple(state[name].shape)}")


def build_on_meta(config: TransformerConfig, residual: ResidualConfig, plugin: str | None = None) -> Transformer:
    """A transformer of shapes only."""
    with torch.device("meta"), _WithoutDraws():
        return build_transformer(config, residual, plugin)


class _WithoutDraws(TorchFunctionMode):
    """Leaves out drawing random numbers. On the meta device nothing is drawn anyway, but pretending to loads the
    compiler's half of torch: 150 MB and seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in DRAWS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def tensor_infos(model: Transformer) -> dict[str, TensorInfo]:
    return {name: TensorInfo(tuple(tensor.shape), tensor.dtype) for name, tensor in model.state_dict().items()}


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """All of Lightning's single file, its tensors mapped from it and read only when used. Raises DataError."""
    content = _load(Path(path))
    if "state_dict" not in content:
        raise DataError(f"'{path}' holds no weights")
    return content


def _checked(checkpoint: Checkpoint) -> Checkpoint:
    try:
        num_layers = checkpoint.config.num_layers
        checkpoint.residual, checkpoint.description["plugin"], checkpoint.description["tokenizer"]
    except (TypeError, ValueError, KeyError) as error:
        raise DataError(f"'{checkpoint.path}': its description is damaged ({error})") from error
    if num_layers > len(checkpoint.tensors.infos):
        raise DataError(f"'{checkpoint.path}': {num_layers} layers, but {len(checkpoint.tensors.infos)} tensors")
    return checkpoint


def _load(path: Path) -> dict[str, Any]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, UnpicklingError, EOFError, ValueError, KeyError, OSError) as error:
        raise DataError(f"'{path}' is no checkpoint, or a damaged one: give a .ckpt file of a finished save") from error
    if not isinstance(content, dict) or DESCRIPTION_KEY not in content:
        raise DataError(f"'{path}' was not written by lightning_dar: it has no '{DESCRIPTION_KEY}' entry")
    _check_format(path, content[DESCRIPTION_KEY])
    return content


def _check_format(path: Path, description: Mapping[str, Any]) -> None:
    if description.get("format", FORMAT + 1) > FORMAT:
        raise DataError(f"'{path}' was written by a later lightning_dar ({description.get('version')})")


def _lightning_file(path: Path, wanted: WhichWeights | None) -> Checkpoint:
    content = read_checkpoint(path)
    state, weights = choose_weights(content, wanted, path)
    del content["state_dict"]
    return replace(_lightning(path, content, Unprefixed(InMemory(state), MODEL_PREFIX)), weights=weights)


def _sharded_folder(folder: Path) -> Checkpoint:
    content = _load(file_inside(folder, META_FILE))
    return _lightning(folder, content, ShardedTensors(folder, f"{WEIGHTS_PREFIX}{MODEL_PREFIX}"))


def _lightning(path: Path, content: dict[str, Any], tensors: Tensors) -> Checkpoint:
    try:
        files = unpacked(content.pop(FILES_KEY, {}))
    except DataError as error:
        raise DataError(f"'{path}': {error}") from error
    return Checkpoint(path=path, description=content[DESCRIPTION_KEY], tensors=tensors, content=content, files=files)


def _converted_folder(folder: Path) -> Checkpoint:
    description = read_json_object(file_inside(folder, DESCRIPTION_FILE))
    _check_format(folder, description)
    description["tokenizer"], files = _tokenizer(folder), read_carried(folder)
    content, tensors = description.pop("settings", {}), SafetensorsFiles(folder)
    return Checkpoint(path=folder, description=description, tensors=tensors, content=content, files=files)


def _foreign_folder(folder: Path) -> Checkpoint:
    hf = read_json_object(file_inside(folder, CONFIG_FILE))
    if (folder / ADAPTER_FILE).exists():
        raise DataError(f"{folder}: {ADAPTER_FILE}: merge the adapter into the model first (peft: merge_and_unload)")
    if HF_DESCRIPTION_KEY in hf:
        return _own_hf_folder(folder, hf)
    with _named(folder):
        config, residual = read_config(hf)
    theirs, files = SafetensorsFiles(folder), read_carried(folder)
    with _named(folder):
        config, notes = untied_where_different(config, theirs)
        model = build_on_meta(config, residual)
        tensors = Renamed(theirs, hf["model_type"], config, tensor_infos(model))
    hf = {**hf, "tie_word_embeddings": config.tie_embeddings}
    description = describe(config, model.residual, residual, _tokenizer(folder), hf)
    return Checkpoint(path=folder, description=description, tensors=tensors, files=files, notes=notes)


@contextmanager
def _named(folder: Path) -> Iterator[None]:
    """Errors of the block name the folder."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{folder}: {error}") from error


def _own_hf_folder(folder: Path, hf: dict[str, Any]) -> Checkpoint:
    """A routed model that `convert` wrote for transformers."""
    description, files = hf[HF_DESCRIPTION_KEY], read_carried(folder)
    _check_format(folder, description)
    if isinstance(description.get("architecture"), dict):  # else it is found damaged below
        try:
            refuse_contradictions(hf, description["architecture"])
        except ValueError as error:
            raise DataError(f"'{folder}': {error}") from error
    description = {**description, "tokenizer": _tokenizer(folder), "hf_config": hf}
    description.pop("code", None)  # of the folder's modeling file
    tensors = Translated(SafetensorsFiles(folder), native_name)
    return Checkpoint(path=folder, description=description, tensors=tensors, files=files)


KINDS = {META_FILE: _sharded_folder, DESCRIPTION_FILE: _converted_folder, CONFIG_FILE: _foreign_folder}


def _tokenizer(folder: Path) -> str | None:
    """The text of its tokenizer.json, to the byte."""
    if not (folder / TOKENIZER_FILE).exists():
        return None
    path = file_inside(folder, TOKENIZER_FILE)
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 ({error})") from error
