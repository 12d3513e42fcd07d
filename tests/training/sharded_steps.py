"""python sharded_steps.py WORLD [all]: training steps of WORLD processes against the same steps of one.

Every process computes the single-process step too, on the whole batch, and compares its losses and gradients.
"""

import copy
import itertools
import sys
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from processes import run_ranks
from test_parallelize import BACKENDS, VARIANTS
from tiny import VOCAB, scramble, tiny_config
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from lightning_dar.model import Transformer, build_transformer
from lightning_dar.residual import ResidualConfig
from lightning_dar.training.loss import chunked_cross_entropy
from lightning_dar.training.optimizer import OptimizerConfig, build_optimizer
from lightning_dar.training.parallelize import ActivationCheckpointing, build_deferred, initialise, parallelize
from lightning_dar.training.strategies import FSDP, FSDP_PREFIX

BATCH, LENGTH = 8, 6


@dataclass(frozen=True)
class Case:
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    backend: str = "two_phase"
    checkpointing: ActivationCheckpointing = "none"
    accumulated: int = 1
    strategy: str = "fsdp2"
    tied: bool = True

    def build(self) -> Transformer:
        """All weights random, the same in every process."""
        torch.manual_seed(1)
        config = ResidualConfig(name=self.name, options=self.options, depth_read=self.backend)
        return scramble(build_transformer(tiny_config(tie_embeddings=self.tied), config))

    def wrap(self, model: Transformer, mesh: Any) -> torch.nn.Module:
        if self.strategy == "ddp":
            parallelize(model, self.checkpointing)
            return DistributedDataParallel(model)
        if self.strategy == "fsdp":
            parallelize(model, self.checkpointing)
            return FSDP().wrap(model, torch.device("cpu"))
        parallelize(model, self.checkpointing, mesh=mesh)
        return model


def cases(everything: bool) -> list[Case]:
    variants = [Case(*case.values) for case in VARIANTS]
    if everything:
        product = itertools.product(
            variants, BACKENDS, ("none", "sublayer", "full", 0.5), (1, 2), ("ddp", "fsdp", "fsdp2")
        )
        return [
            replace(case, backend=backend, checkpointing=mode, accumulated=steps, strategy=strategy)
            for case, backend, mode, steps, strategy in product
        ]
    modes = itertools.cycle(("full", "none", "sublayer", 0.5))
    chosen = []
    for case in variants:
        chosen += [replace(case, checkpointing=next(modes)), replace(case, checkpointing=next(modes), accumulated=2)]
    chosen += [
        replace(case, checkpointing=next(modes), strategy="ddp", accumulated=1 + n % 2)
        for n, case in enumerate(variants)
    ]
    for backend, mode in itertools.product(("naive", "fused"), ("sublayer", "full")):
        chosen.append(Case("delta-sublayer", backend=backend, checkpointing=mode, accumulated=2))
    chosen += [Case("delta-sublayer", checkpointing=mode, strategy="fsdp") for mode in ("sublayer", "full")]
    return [*chosen, Case("delta-block", tied=False, checkpointing="full")]


def step(model: torch.nn.Module, ids: Tensor, accumulated: int = 1, share: float = 1.0) -> Tensor:
    """Mean loss a token of `accumulated` parts of the batch; adds up gradients."""
    total = torch.zeros(())
    for part in ids.chunk(accumulated):
        head = partial(chunked_cross_entropy, targets=part[:, 1:])
        loss = model(part[:, :-1], head=head) / (share * BATCH * LENGTH)
        loss.backward()
        total += loss.detach()
    return total


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def batch() -> tuple[Tensor, Tensor]:
    """Of all processes, and this one's part of it."""
    ids = torch.randint(VOCAB, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(2))
    return ids, ids[dist.get_rank() :: dist.get_world_size()]


def check(case: Case, mesh: Any) -> None:
    ids, part = batch()
    alone, world = case.build(), dist.get_world_size()
    wrapped = case.wrap(copy.deepcopy(alone), mesh)
    expected = step(alone, ids, case.accumulated)
    loss = step(wrapped, part, case.accumulated, 1 / world)
    dist.all_reduce(loss)
    torch.testing.assert_close(loss / world, expected, rtol=1e-5, atol=1e-6, msg=lambda m: f"{case}, loss: {m}")
    is_flat = case.strategy == "fsdp"
    with FullyShardedDataParallel.summon_full_params(wrapped, with_grads=True) if is_flat else nullcontext():
        compare(case, wrapped, alone)


def compare(case: Case, wrapped: torch.nn.Module, alone: Transformer) -> None:
    """Names, and every gradient."""
    found = {name.replace(FSDP_PREFIX, "").removeprefix("module."): p for name, p in wrapped.named_parameters()}
    assert list(found) == [name for name, _ in alone.named_parameters()], case
    for name, parameter in alone.named_parameters():
        assert found[name].grad is not None, f"{case}: {name} has no gradient"
        torch.testing.assert_close(
            whole(found[name].grad),
            parameter.grad,
            rtol=1e-5,
            atol=1e-5 * parameter.grad.abs().max().item(),
            msg=lambda m, n=name: f"{case}, {n}: {m}",
        )


def check_mixed_precision(mesh: Any) -> None:
    """Weights gathered in bf16 cost no more precision than autocast, and the depth read sees its own in fp32."""
    case, (ids, part) = Case("delta-sublayer", checkpointing="sublayer"), batch()
    exact, mixed, wrapped = case.build(), case.build(), case.build()
    parallelize(wrapped, "sublayer", mesh=mesh, compute_dtype=torch.bfloat16)
    seen: dict[str, torch.dtype] = {}
    wrapped.sublayers[1].up_proj.register_forward_pre_hook(
        lambda linear, _: seen.update(up_proj=linear.weight.dtype),
    )
    open_history = wrapped.residual.open_history
    wrapped.residual.open_history = lambda: seen.update(query=wrapped.residual.query.dtype) or open_history()

    step(exact, ids)
    with torch.autocast("cpu", torch.bfloat16):
        step(mixed, ids)
        step(wrapped, part, share=1 / dist.get_world_size())
    assert seen == {"up_proj": torch.bfloat16, "query": torch.float32}
    wanted = gradient(exact)
    allowed, error = ((gradient(model) - wanted).norm() / wanted.norm() for model in (mixed, wrapped))
    assert error < 2 * allowed, f"relative error {error:.4f} instead of {allowed:.4f}"


def gradient(model: torch.nn.Module) -> Tensor:
    return torch.cat([whole(parameter.grad).flatten() for parameter in model.parameters()])


def check_initial_weights(mesh: Any) -> None:
    """Bit for bit those of `build_transformer`, with little more than its share in any process on the way."""
    config = tiny_config(tie_embeddings=False, qkv_bias=True, hidden_size=32, num_layers=12)
    residual = ResidualConfig(name="delta-sublayer", options={"gate": "alpha", "query_init": "normal"})
    torch.manual_seed(3)
    eager, after = build_transformer(config, residual), torch.get_rng_state()
    torch.manual_seed(3)
    model, peak = build_deferred(config, residual), 0
    give = initialise(model)

    def fill(name: str, part: torch.nn.Module) -> None:
        nonlocal peak
        give(name, part)
        peak = max(peak, sum(local(p).numel() for p in model.parameters() if not p.is_meta))

    parallelize(model, mesh=mesh, fill=fill)
    assert torch.equal(torch.get_rng_state(), after), "the draws are not those of the eager build"
    for name, parameter in eager.named_parameters():
        assert whole(model.get_parameter(name)).equal(parameter), name

    sizes = {name: sum(p.numel() for p in part.parameters()) for name, part in eager.parts()}
    sublayers = [size for name, size in sizes.items() if name.startswith("sublayers")]
    shares = -(-sum(sublayers) // dist.get_world_size())
    assert peak <= 1.05 * shares + max(sublayers) + sum(sizes.values()) - sum(sublayers)


def check_muon(mesh: Any) -> None:
    """Steps on shards are those of one process, and each rank keeps its shard of the momentum alone."""
    torch.manual_seed(4)
    # 11, 7 and 2 rows do not divide by the ranks, or are fewer than they.
    config = tiny_config(hidden_size=12, head_dim=2, num_heads=1, num_kv_heads=1, intermediate_size=11)
    alone = scramble(build_transformer(config, ResidualConfig(name="delta-sublayer")))
    sharded = copy.deepcopy(alone)
    parallelize(sharded, mesh=mesh)
    settings = OptimizerConfig(name="muon", lr=0.05, weight_decay=0.5)
    optimizers = [build_optimizer(model.named_parameters(), settings) for model in (alone, sharded)]
    draw = torch.Generator().manual_seed(5)
    for _ in range(3):
        for one, other in zip(alone.parameters(), sharded.parameters(), strict=True):
            one.grad = torch.randn(one.shape, generator=draw)
            other.grad = distribute_tensor(one.grad, other.device_mesh, other.placements, src_data_rank=None)
        for optimizer in optimizers:
            optimizer.step()
    for name, parameter in alone.named_parameters():
        found = sharded.get_parameter(name)
        torch.testing.assert_close(whole(found), parameter, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
        for state in optimizers[1].state[found].values():
            assert state.ndim == 0 or local(state).shape == local(found).shape, name


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def check_all(everything: bool) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("data_parallel", "tensor_parallel"))
    check_initial_weights(mesh)
    for case in cases(everything):
        check(case, mesh)
    check_mixed_precision(mesh)
    check_muon(mesh)


if __name__ == "__main__":
    run_ranks(int(sys.argv[1]), partial(check_all, "all" in sys.argv[2:]))
