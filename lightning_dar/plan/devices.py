"""GPUs by name: peak rates of the vendors' data sheets, without sparsity."""

from dataclasses import dataclass

from lightning_dar.errors import UsageError

TERA, GIGA, GIB = 10**12, 10**9, 2**30


@dataclass(frozen=True, kw_only=True)
class Device:
    """One GPU, and how it is linked to others."""

    name: str
    peak_bf16: float
    """FLOP/s of bf16 and fp16 matrix products with fp32 sums."""

    peak_fp32: float
    """FLOP/s of fp32 matrix products outside the tensor cores, PyTorch's default."""

    memory: int
    """Bytes."""

    bandwidth: float
    """Bytes/s between the GPU and its memory."""

    link: float
    """Bytes/s that a GPU sends to the others of its node, one direction."""

    node_network: float
    """Bytes/s between nodes, of all the network cards of a usual node of eight together, one direction."""

    def peak(self, precision: str) -> float:
        """FLOP/s in a precision of the trainer, such as bf16-mixed or 32-true."""
        return self.peak_bf16 if precision.startswith(("bf16", "16", "transformer-engine")) else self.peak_fp32


def _device(name: str, bf16: float, fp32: float, memory: int, bandwidth: int, link: int, network: int) -> Device:
    """TFLOP/s, TFLOP/s, GiB, GB/s, GB/s, GB/s."""
    return Device(
        name=name,
        peak_bf16=bf16 * TERA,
        peak_fp32=fp32 * TERA,
        memory=memory * GIB,
        bandwidth=bandwidth * GIGA,
        link=link * GIGA,
        node_network=network * GIGA,
    )


DEVICES = {
    device.name: device
    for device in (
        _device("b200", 2250, 75, 179, 7700, 900, 400),
        _device("h200", 989, 67, 140, 4800, 450, 400),
        _device("h100", 989, 67, 80, 3350, 450, 400),
        _device("h100-pcie", 756, 51, 80, 2000, 64, 50),
        _device("h20", 148, 44, 96, 4000, 450, 400),
        _device("a100", 312, 19.5, 80, 2039, 300, 200),
        _device("a100-40gb", 312, 19.5, 40, 1555, 300, 200),
        _device("a100-pcie", 312, 19.5, 80, 1935, 32, 25),
        _device("l40s", 362, 91.6, 45, 864, 32, 25),
        _device("l4", 121, 30.3, 22, 300, 32, 12),
        _device("a10", 125, 31.2, 22, 600, 32, 12),
        _device("rtx4090", 165, 82.6, 24, 1008, 32, 3),
        _device("rtx3090", 71, 35.6, 24, 936, 32, 3),
    )
}

_NAMES = (  # words that all occur in what CUDA calls the device -> its entry; the first that fits
    (("laptop",), None),
    (("h100", "pcie"), "h100-pcie"),
    (("h100", "hbm3"), "h100"),
    (("h200", "nvl"), None),  # another clock than any entry's
    (("h200",), "h200"),
    (("b200",), "b200"),
    (("h20",), "h20"),
    (("a100", "40gb"), "a100-40gb"),
    (("a100", "pcie"), "a100-pcie"),
    (("a100", "80gb"), "a100"),
    (("l40s",), "l40s"),
    (("l4",), "l4"),
    (("a10",), "a10"),
    (("geforce", "rtx", "4090"), "rtx4090"),
    (("geforce", "rtx", "3090"), "rtx3090"),
)


def device_by_name(name: str) -> Device:
    """By the name in this table. Raises UsageError for another one."""
    if name.lower() not in DEVICES:
        raise UsageError(f"--gpu {name}: unknown; known: {', '.join(DEVICES)}")
    return DEVICES[name.lower()]


def device_of(cuda_name: str) -> Device | None:
    """By the name CUDA gives it, such as `NVIDIA H100 80GB HBM3`; None for one whose peak is not known."""
    words = set(cuda_name.lower().replace("-", " ").split())
    for needed, entry in _NAMES:
        if words.issuperset(needed):
            return None if entry is None else DEVICES[entry]
    return None
