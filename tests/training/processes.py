"""Ranks of a gloo group, forked once everything is imported: starting Python anew takes each of them seconds."""

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import wait

import torch
from free_port import free_port
from torch import distributed as dist


def run_ranks(world: int, work: Callable[[], None]) -> None:
    """Runs `work` in each rank; where one fails, ends the others, which would wait for it, and raises."""
    port = free_port()
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=_rank, args=(work, rank, world, port)) for rank in range(world)]
    for process in ranks:
        process.start()
    running = {process.sentinel: process for process in ranks}
    while running:
        for sentinel in wait(list(running)):
            running.pop(sentinel).join()
        if any(process.exitcode for process in ranks if process.exitcode is not None):
            for process in running.values():
                process.kill()
    for process in ranks:
        process.join()
    assert not any(process.exitcode for process in ranks)


def _rank(work: Callable[[], None], rank: int, world: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(world)}
    dist.init_process_group("gloo")
    work()
    dist.destroy_process_group()
