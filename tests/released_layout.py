"""Parameter names of the released checkpoints (those of transformers, plus routing), located in a `Transformer`."""

import torch
from torch import Tensor

from lightning_dar.model import Transformer

ROUTING = {"res_proj": "query", "res_norm": "gain", "res_alpha": "gate", "null_source": "null_source"}


def locate(name: str, num_layers: int) -> tuple[str, int | None]:
    """Our parameter's name, and the row of it where ours is stacked over sites."""
    match name.split("."):
        case ["model", "embed_tokens", "weight"]:
            return "embed.weight", None
        case ["model", "norm", "weight"]:
            return "norm.weight", None
        case ["lm_head", "weight"]:
            return "head.weight", None
        case ["model", "layers", layer, "input_layernorm", "weight"]:
            return f"sublayers.{2 * int(layer)}.norm.weight", None
        case ["model", "layers", layer, "post_attention_layernorm", "weight"]:
            return f"sublayers.{2 * int(layer) + 1}.norm.weight", None
        case ["model", "layers", layer, "self_attn", *rest]:
            return f"sublayers.{2 * int(layer)}.{'.'.join(rest)}", None
        case ["model", "layers", layer, "mlp", *rest]:
            return f"sublayers.{2 * int(layer) + 1}.{'.'.join(rest)}", None
        case ["model", "layers", layer, routing, *_]:
            sublayer, kind = routing.split("_", 1)
            return f"residual.{ROUTING[kind]}", 2 * int(layer) + ["attn", "mlp"].index(sublayer)
        case ["model", final, *_]:
            return f"residual.{ROUTING[final.removeprefix('final_')]}", 2 * num_layers
    raise KeyError(name)


def entry(tensors: dict[str, Tensor], name: str, num_layers: int) -> Tensor:
    """The part of our `tensors` (parameters or gradients, by our names) that `name` stands for."""
    key, row = locate(name, num_layers)
    return tensors[key] if row is None else tensors[key][row]


@torch.no_grad()
def load_released(model: Transformer, released: dict[str, Tensor]) -> None:
    """Copies every released tensor, and leaves none of ours unset."""
    parameters = dict(model.named_parameters())
    for parameter in parameters.values():
        parameter.fill_(torch.nan)
    for name, tensor in released.items():
        target = entry(parameters, name, model.config.num_layers)
        target.copy_(tensor.reshape(target.shape))
    unset = [name for name, parameter in parameters.items() if parameter.isnan().any()]
    assert not unset, f"not in the released weights: {unset}"
