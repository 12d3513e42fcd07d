"""python sharded_run.py FOLDER: a run sharded over two processes, which are forked once everything is imported."""

import multiprocessing
import os
import sys
from pathlib import Path

import torch
from free_port import free_port

from lightning_dar.training import FSDP2
from runs import measured_run


def rank(number: int, port: int, folder: str) -> None:
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "test",  # so that Lightning starts no processes of its own
    }
    measured_run(Path(folder), strategy=FSDP2(), devices=2)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    port = free_port()
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=rank, args=(number, port, sys.argv[1])) for number in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    sys.exit(max(process.exitcode != 0 for process in ranks))
