"""Bytes that a GPU sends in an optimizer step, and the time they take.

    ddp           gradients summed over all GPUs once: 2 (g-1)/g N, by rings
    fsdp, fsdp2   every micro-batch: weights gathered in the forward and again in the backward, gradients summed and
                  scattered: (g-1)/g N each. The root (embedding, head, routing) is gathered once. Muon gathers its
                  updates, once a step.

Rings run within nodes over the GPUs' links, between nodes over all network cards of a node together: the slower of the
two sets the rate.
"""

from dataclasses import dataclass

from lightning_dar.plan.activations import FP32
from lightning_dar.plan.parameters import Parameters
from lightning_dar.plan.setting import Setting


@dataclass(frozen=True, kw_only=True)
class Communication:
    """Of one optimizer step, a GPU."""

    bytes: int
    seconds: float


def communication(setting: Setting, parameters: Parameters) -> Communication:
    """Of one optimizer step, without what computing hides."""
    sent = _volume(setting, parameters) * (setting.gpus - 1) / setting.gpus
    return Communication(bytes=int(sent), seconds=sent / ring_rate(setting))


def ring_rate(setting: Setting) -> float:
    """Bytes/s that each GPU passes on."""
    device = setting.device
    if setting.gpus <= setting.gpus_per_node:
        return device.link
    return min(device.link, device.node_network)


def _volume(setting: Setting, parameters: Parameters) -> float:
    weights, compute = setting.dtypes.weights.itemsize, setting.dtypes.compute.itemsize
    if setting.strategy == "ddp":
        return 2 * parameters.total * weights
    if not setting.sharded:
        return 0
    sublayers = parameters.total - parameters.root
    gradients = FP32 if setting.dtypes.autocast else weights
    batch = sublayers * (2 * compute + gradients) + parameters.root * (weights + gradients)
    updates = parameters.linear * weights if setting.optimizer == "muon" else 0
    return batch * setting.accumulate + updates
