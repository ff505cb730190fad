# SPDX-License-Identifier: Apache-2.0
"""One rank of bench/pytorch.py: python3 torch_ranks.py RANK RANKS STORE ROUNDS SIZES. Times all_reduce of float32 under
both backends in turn, in the same processes; rank 0 prints a line of JSON for each figure."""
import datetime
import json
import pathlib
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import torch
import torch.distributed as dist

import railyard_torch  # noqa: F401: makes the backend known

rank, n, store, rounds = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
sizes = [int(size) for size in sys.argv[5].split(",")]
SECONDS = 0.25  # of a cell


def once(group, t, calls):
    dist.barrier(group)
    began = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(t, group=group)
    return (time.perf_counter() - began) / calls


def calls_for(group, t):
    """Rank 0 decides, so that all make as many."""
    once(group, t, 3)
    calls = torch.tensor([max(3, min(5000, int(SECONDS / once(group, t, 5))))])
    dist.broadcast(calls, 0, group=group)
    return int(calls)


dist.init_process_group("gloo", rank=rank, world_size=n, timeout=datetime.timedelta(seconds=60),
                        store=dist.FileStore(store, n))
groups = {backend: dist.new_group(backend=backend) for backend in ("gloo", "railyard")}
for r in range(rounds):
    for size in sizes:
        for backend in sorted(groups, reverse=r % 2 == 1):
            t = torch.ones(size // 4)
            calls = calls_for(groups[backend], t)
            seconds = once(groups[backend], t, calls)
            t = torch.full((size // 4,), float(rank + 1))
            dist.all_reduce(t, group=groups[backend])
            right = bool(torch.all(t == n * (n + 1) / 2))
            if rank == 0:
                print(json.dumps({"backend": backend, "size": size, "us": seconds * 1e6, "right": right}), flush=True)
dist.destroy_process_group()
