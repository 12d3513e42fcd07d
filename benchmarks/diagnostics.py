"""What the measuring callbacks cost, as shares of a training step, in a run of Lightning's trainer.

    python -m benchmarks.diagnostics --layers 12 --hidden-size 256 --seq-len 128 --batch-size 4 --threads 1

One run per strategy: plain steps alternate with steps that measure, first with the callbacks of the shorter default
cadence (RoutingSharpness, RoutingCollapse), then with all (BranchStrength and SourceRedundancy too). A step is timed
from the start of its batch to the start of the next, logging included. What a measurement costs is its step less the
mean of its two plain neighbours, in plain steps; the median over the rounds is printed, and from it what the callbacks
cost at their default cadences, which must stay under 2%.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
import time
import warnings
from dataclasses import asdict
from inspect import signature
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from torch.utils.data import DataLoader

from benchmarks.step import Setting, batch, keep_freed_memory
from lightning_dar.callbacks import BranchStrength, RoutingCollapse, RoutingSharpness, SourceRedundancy
from lightning_dar.residual import ResidualConfig
from lightning_dar.training import LanguageModel

CYCLE = 4  # plain, some, plain, all
WARMUP_CYCLES = 1


class Clock(L.Callback):
    """Seconds of every step, from batch start to batch start. First in the list, so that it sees the others' work."""

    def __init__(self) -> None:
        self.starts: list[float] = []

    def on_train_batch_start(self, *_: Any) -> None:
        self.starts.append(time.perf_counter())

    @property
    def steps(self) -> list[float]:
        return [end - start for start, end in zip(self.starts, self.starts[1:], strict=False)]


def default_cadence(callback: type[L.Callback]) -> int:
    return signature(callback).parameters["every_n_steps"].default


def measure(strategy: str, setting: Setting, rounds: int) -> dict[str, Any]:
    """Costs in plain steps: of a measurement of each of the two kinds, and a step at the default cadences."""
    steps = (rounds + WARMUP_CYCLES) * CYCLE + 2  # after the last measurement comes a plain step, timed by one more
    ids, targets = batch(setting)
    clock = Clock()
    model = LanguageModel(ResidualConfig(name=strategy), **setting.sizes())
    often = [kind(every_n_steps=CYCLE // 2) for kind in (RoutingSharpness, RoutingCollapse)]
    seldom = [kind(every_n_steps=CYCLE) for kind in (BranchStrength, SourceRedundancy)]
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            accelerator="auto" if setting.device == "cuda" else setting.device,
            devices=1,
            max_steps=steps,
            logger=TensorBoardLogger(folder),
            callbacks=[clock, *often, *seldom],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        data = DataLoader([{"input_ids": ids, "targets": targets}] * steps, batch_size=None)
        trainer.fit(model, data)
    some, everything = costs(clock.steps)
    shorter, longer = default_cadence(RoutingSharpness), default_cadence(BranchStrength)
    return {
        "strategy": strategy,
        "layers": setting.layers,
        "hidden_size": setting.hidden_size,
        "step_seconds": round(statistics.median(clock.steps[CYCLE * WARMUP_CYCLES :: 2]), 4),
        "routing_cost_steps": round(some, 3),
        "all_cost_steps": round(everything, 3),
        "overhead_percent": round(100 * (some / shorter + (everything - some) / longer), 2),
    }


def costs(seconds: list[float]) -> tuple[float, float]:
    """Median cost, in plain steps, of the second and of the fourth step of a cycle."""
    costs: tuple[list[float], list[float]] = ([], [])
    for start in range(CYCLE * WARMUP_CYCLES, len(seconds) - CYCLE, CYCLE):
        for kind, measured in zip(costs, (start + 1, start + 3), strict=True):
            plain = (seconds[measured - 1] + seconds[measured + 1]) / 2
            kind.append(seconds[measured] / plain - 1)
    return statistics.median(costs[0]), statistics.median(costs[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in asdict(Setting()).items():
        if name != "dtype":
            parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--strategies", default="delta-sublayer,delta-block,attnres")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    keep_freed_memory()
    setting = Setting(**{name: getattr(args, name) for name in asdict(Setting()) if name != "dtype"})
    for strategy in args.strategies.split(","):
        print(json.dumps(measure(strategy, setting, args.rounds)), flush=True)


if __name__ == "__main__":
    main()
