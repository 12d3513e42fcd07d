"""Whole training steps (forward and backward), strategy against strategy in one process.

    python -m benchmarks.step --layers 36 --hidden-size 256 --seq-len 256 --batch-size 2 --rounds 5 \\
        --strategies standard,delta-sublayer,delta-block,attnres --backends naive,fused,two_phase --json

Every round times each entry once, between two steps of `standard`; a ratio is the mean of those two over the entry's
own time, and the median over the rounds is what is printed. Peak memory is that of a process of its own. The
vocabulary is small (1,024) so that the head does not drown what is measured; the loss is the mean cross entropy
of all tokens.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.held import held_bytes
from lightning_dar.model import build_transformer, resolve_config
from lightning_dar.residual import ResidualConfig

STANDARD = "standard"
REFERENCE = "transformers-qwen3"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What every entry shares. Heads are 64 wide (or the whole width, if smaller), the MLP is 4 D."""

    layers: int = 12
    hidden_size: int = 512
    seq_len: int = 256
    batch_size: int = 2
    vocab_size: int = 1024
    dtype: str = "float32"
    device: str = "cpu"

    def sizes(self) -> dict[str, int]:
        return {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_layers": self.layers,
            "num_heads": max(1, self.hidden_size // 64),
            "intermediate_size": 4 * self.hidden_size,
        }


@dataclass(frozen=True)
class Entry:
    """One model to time: a strategy and the backend that reads for it."""

    strategy: str
    backend: str = "auto"
    options: dict[str, object] = field(default_factory=dict)

    def build(self, setting: Setting) -> Callable[[Tensor, Tensor], Tensor]:
        """(input ids, targets) -> loss, of a freshly initialised model; `.model` holds it."""
        torch.manual_seed(0)
        if self.strategy == REFERENCE:
            model, logits = _reference(setting)
        else:
            config = ResidualConfig(
                name=self.strategy,
                options=self.options,
                depth_read="auto" if self.backend == "none" else self.backend,
            )
            model = build_transformer(resolve_config(**setting.sizes()), config)
            logits = model
        model.to(setting.device, getattr(torch, setting.dtype))

        def loss(inputs: Tensor, targets: Tensor) -> Tensor:
            return F.cross_entropy(logits(inputs).flatten(0, 1).float(), targets.flatten())

        loss.model = model
        return loss


def _reference(setting: Setting) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = setting.sizes()
    config = Qwen3Config(
        vocab_size=sizes["vocab_size"],
        hidden_size=sizes["hidden_size"],
        num_hidden_layers=sizes["num_layers"],
        num_attention_heads=sizes["num_heads"],
        num_key_value_heads=sizes["num_heads"],
        head_dim=sizes["hidden_size"] // sizes["num_heads"],
        intermediate_size=sizes["intermediate_size"],
        tie_word_embeddings=True,
        use_cache=False,
        attn_implementation="sdpa",
    )
    model = Qwen3ForCausalLM(config)
    return model, lambda ids: model(input_ids=ids).logits


def batch(setting: Setting) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(setting.vocab_size, (setting.batch_size, setting.seq_len + 1), generator=generator)
    ids = ids.to(setting.device)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def step(loss: Callable[[Tensor, Tensor], Tensor], data: tuple[Tensor, Tensor]) -> float:
    """Seconds of one forward and backward."""
    loss.model.zero_grad(set_to_none=True)
    _synchronize(data[0])
    start = time.perf_counter()
    loss(*data).backward()
    _synchronize(data[0])
    return time.perf_counter() - start


def keep_freed_memory() -> None:
    """Tells glibc not to hand freed memory back to the system. It otherwise does so after some steps and not after
    others, and the page faults of the next forward cost up to a third of a step, for any strategy."""
    _mallopt(-1, -1)  # M_TRIM_THRESHOLD: never
    _mallopt(-4, 0)  # M_MMAP_MAX: no block of its own for a large tensor


def give_back_freed_memory() -> None:
    """Keeps glibc at its first limit, 128 KiB, from which a tensor gets pages of its own that go back when it is freed.
    It otherwise raises the limit as it goes, and what the peak shows is holes in the heap: 10 to 25% more, and other
    ones every time."""
    _mallopt(-3, 1 << 17)  # M_MMAP_THRESHOLD


def _mallopt(option: int, value: int) -> None:
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if hasattr(libc, "mallopt"):
        libc.mallopt(option, value)


def _synchronize(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize()


def measure_throughput(
    entries: list[Entry], setting: Setting, rounds: int, report: Callable[[str], None]
) -> dict[Entry, dict[str, float]]:
    """`throughput_vs_standard` and `tokens_per_second` of each entry, by medians over interleaved rounds."""
    data = batch(setting)
    standard = Entry(STANDARD).build(setting)
    losses = {key(entry): entry.build(setting) for entry in entries}
    ratios: dict[str, list[float]] = {name: [] for name in losses}
    seconds: dict[str, list[float]] = {name: [] for name in losses}
    for loss in 2 * [standard, *losses.values()]:
        step(loss, data)
    for number in range(rounds):
        before = step(standard, data)
        for name, loss in losses.items():
            own = step(loss, data)
            after = step(standard, data)
            ratios[name].append((before + after) / 2 / own)
            seconds[name].append(own)
            before = after
        report(f"round {number + 1} of {rounds}")
    tokens = setting.batch_size * setting.seq_len
    return {
        name: {
            "throughput_vs_standard": round(statistics.median(ratios[name]), 4),
            "tokens_per_second": round(tokens / statistics.median(seconds[name]), 1),
        }
        for name in losses
    }


def key(entry: Entry) -> str:
    return f"{entry.strategy} {entry.backend}"


def measure_held(entry: Entry, setting: Setting) -> int:
    """Bytes held for backward by one forward."""
    loss, data = entry.build(setting), batch(setting)
    return held_bytes(lambda: loss(*data), [*loss.model.parameters(), *data])


def measure_peak_mb(entry: Entry, setting: Setting) -> float:
    """Peak resident memory of a process that trains the entry for three steps."""
    command = [sys.executable, "-m", "benchmarks.step", "--peak-of", json.dumps(asdict(entry))]
    command += ["--setting", json.dumps(asdict(setting))]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _train_and_print_peak(entry: Entry, setting: Setting) -> None:
    give_back_freed_memory()
    loss, data = entry.build(setting), batch(setting)
    for _ in range(3):
        step(loss, data)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def profile(entry: Entry, setting: Setting) -> str:
    """A table of where one step's time goes."""
    loss, data = entry.build(setting), batch(setting)
    step(loss, data)
    with torch.profiler.profile() as recorded:
        step(loss, data)
    return recorded.key_averages().table(sort_by="self_cpu_time_total", row_limit=30, max_name_column_width=50)


def entries_of(strategies: list[str], backends: list[str]) -> list[Entry]:
    """Every strategy with every backend; `standard` and the reference read no depth history."""
    unrouted = (STANDARD, REFERENCE)
    return [
        Entry(strategy, backend)
        for strategy in strategies
        for backend in (["none"] if strategy in unrouted else backends)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in asdict(Setting()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--strategies", default="standard,delta-sublayer,delta-block,attnres")
    parser.add_argument("--backends", default="naive,fused,two_phase")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true", help="one JSON line an entry instead of a table")
    parser.add_argument("--profile", action="store_true", help="print where each entry's time goes, and stop")
    parser.add_argument("--reference-hf", action="store_true", help="add transformers' Qwen3 at the same sizes")
    parser.add_argument("--peak-of", help=argparse.SUPPRESS)
    parser.add_argument("--setting", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.peak_of:
        _train_and_print_peak(Entry(**json.loads(args.peak_of)), Setting(**json.loads(args.setting)))
        return
    setting = Setting(**{name: getattr(args, name) for name in asdict(Setting())})
    entries = entries_of(args.strategies.split(","), args.backends.split(","))
    if args.reference_hf:
        entries.append(Entry(REFERENCE, "none"))
    if args.profile:
        for entry in entries:
            print(f"{key(entry)}\n{profile(entry, setting)}")
        return

    peaks = [measure_peak_mb(entry, setting) for entry in entries]  # first: a child starts at its parent's peak
    keep_freed_memory()
    timed = measure_throughput(entries, setting, args.rounds, lambda text: print(text, file=sys.stderr))
    standard_bytes = measure_held(Entry(STANDARD, "none"), setting)
    for entry, peak in zip(entries, peaks, strict=True):
        row = {
            "strategy": entry.strategy,
            "backend": entry.backend,
            "layers": setting.layers,
            "hidden_size": setting.hidden_size,
            "throughput_vs_standard": timed[key(entry)]["throughput_vs_standard"],
            "held_bytes_vs_standard": round(measure_held(entry, setting) / standard_bytes, 4),
            "peak_rss_mb": round(peak, 1),
            "tokens_per_second": timed[key(entry)]["tokens_per_second"],
        }
        print(json.dumps(row) if args.json else "  ".join(f"{name} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
