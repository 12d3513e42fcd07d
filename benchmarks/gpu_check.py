"""One look at a GPU: every backend against naive, both kinds of sharding against none, then step ratios and peak memory
at two presets.

    python -m benchmarks.gpu_check

Ends within 8 minutes: what does not fit in the time is left out, and said so. Without a GPU it says so and exits 0.
"""

from __future__ import annotations

import copy
import gc
import statistics
import sys
import time

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F

from lightning_dar.errors import UsageError
from lightning_dar.model import Transformer, build_transformer, resolve_config
from lightning_dar.ops import open_history, require_depth_read
from lightning_dar.residual import ResidualConfig
from lightning_dar.training.parallelize import parallelize
from lightning_dar.training.strategies import FSDP, FSDP_PREFIX

BUDGET_S = 420
SEQ_LEN = 2048
BACKENDS = ("naive", "fused", "two_phase", "fla")
STRATEGIES = ("delta-sublayer", "delta-block", "attnres")


def available() -> list[str]:
    found = []
    for backend in BACKENDS:
        try:
            require_depth_read(backend)
        except UsageError as error:
            print(error)
        else:
            found.append(backend)
    return found


def read_all(backend: str, dtype: torch.dtype, rows: int = 24, tokens: int = 512, dim: int = 1024) -> list[Tensor]:
    """The last output and the gradients of queries, gains and first source, of additive reads of every source."""
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*size: int, std: float = 1.0) -> Tensor:
        return (torch.randn(*size, generator=generator, device="cuda") * std).to(dtype).requires_grad_()

    sources, query, gain = [draw(1, tokens, dim) for _ in range(rows)], draw(rows, dim, std=0.05), draw(rows, dim)
    history, total = open_history(query, gain, 1e-6, backend=backend), torch.zeros((), device="cuda")
    for row, source in enumerate(sources):
        history = history.append(source, after=row - 1)
        read = history.read(row, stream=sources[0])
        total = total + (read.float() * torch.linspace(-1, 1, dim, device="cuda")).sum()
    return [read.detach(), *torch.autograd.grad(total, [query, gain, sources[0]])]


def agreement(backends: list[str]) -> None:
    """Relative error against naive in fp32; in bf16 against naive in bf16 too, whose own error stands beside it."""
    print(f"{'backend':10} {'dtype':9} {'output':>9} {'d query':>9} {'d gain':>9} {'d source':>9}")
    truth = {dtype: read_all("naive", dtype) for dtype in (torch.float32, torch.bfloat16)}
    for backend in backends:
        for dtype, wanted in truth.items():
            found = read_all(backend, dtype)
            errors = [
                ((a.double() - b.double()).norm() / b.double().norm()).item()
                for a, b in zip(found, wanted, strict=True)
            ]
            print(f"{backend:10} {str(dtype)[6:]:9} " + " ".join(f"{error:9.1e}" for error in errors))


def gradients(model: Transformer, ids: Tensor) -> dict[str, Tensor]:
    F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
    return {name.replace(FSDP_PREFIX, ""): parameter.grad for name, parameter in model.named_parameters()}


def sharding(device: str = "cuda", backend: str = "nccl") -> None:
    """Largest relative error of a gradient under FSDP and FSDP2, in a group of this one process, with layers computed
    again; in fp32, against the model by itself."""
    config = resolve_config(vocab_size=1024, hidden_size=256, num_layers=8, num_heads=4)
    ids = torch.randint(1024, (2, 257), device=device)
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    for strategy in STRATEGIES:
        torch.manual_seed(0)
        model = build_transformer(config, ResidualConfig(name=strategy, options={"query_init": "normal"})).to(device)
        sharded = {"FSDP": copy.deepcopy(model), "FSDP2": copy.deepcopy(model)}
        wanted = gradients(model, ids)
        for name, copied in sharded.items():
            if name == "FSDP":
                parallelize(copied, "full")
                module = FSDP().wrap(copied, torch.device(device, 0 if device == "cuda" else None))
                found = gradients(module, ids)
            else:
                mesh = init_device_mesh(device, (1, 1), mesh_dim_names=("data_parallel", "tensor_parallel"))
                parallelize(copied, "full", mesh=mesh)
                found = {key: grad.full_tensor() for key, grad in gradients(copied, ids).items()}
            errors = [((found[key].view_as(grad) - grad).norm() / grad.norm()).item() for key, grad in wanted.items()]
            print(f"{strategy:15} {name:6} {max(errors):9.1e}")
    dist.destroy_process_group()


def train(preset: str, strategy: str, backend: str, steps: int = 4) -> tuple[float, float]:
    """Seconds a step (forward and backward in bf16, 2 sequences; median) and peak memory in GB."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = build_transformer(resolve_config(preset), ResidualConfig(name=strategy, depth_read=backend))
    model.bfloat16()
    ids = torch.randint(1000, (2, SEQ_LEN + 1), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(steps + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
        model.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:]), torch.cuda.max_memory_allocated() / 1e9


def main() -> None:
    if not torch.cuda.is_available():
        print("gpu_check: no CUDA GPU found, nothing to check")
        return
    start = time.monotonic()
    print(torch.cuda.get_device_name())
    backends = available()
    agreement(backends)
    sharding()
    columns = f"{'vs standard':>11} {'tokens/s':>9} {'peak GB':>8} {'vs standard':>11}"
    print(f"{'preset':7} {'strategy':15} {'backend':10} {columns}")
    for preset in ("220m", "533m"):
        standard, standard_gb = train(preset, "standard", "auto")
        for strategy in STRATEGIES:
            for backend in reversed(backends):
                if time.monotonic() - start > BUDGET_S:
                    print(f"{preset:7} {strategy:15} {backend:10} left out: the time is up")
                    continue
                try:
                    seconds, gb = train(preset, strategy, backend)
                except torch.OutOfMemoryError:
                    print(f"{preset:7} {strategy:15} {backend:10} does not fit in memory")
                    continue
                print(
                    f"{preset:7} {strategy:15} {backend:10} {standard / seconds:11.3f} {2 * SEQ_LEN / seconds:9.0f} "
                    f"{gb:8.2f} {gb / standard_gb:11.3f}"
                )


if __name__ == "__main__":
    sys.exit(main())
