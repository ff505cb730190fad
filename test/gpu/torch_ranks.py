#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of torch.distributed's NCCL backend, all ranks on GPU 0 (started by ranks.py). Every element of every
result is compared with what arithmetic says; small integers, so that no order of additions rounds. Prints TAP; 77
and a line without torch or GPU.

    torch_ranks.py LIBRARY    a piece of the path of the libnccl that must be in use, and no other
    torch_ranks.py --cpu      with gloo, on the CPU: to try this script where there is no GPU
"""
import ctypes
import datetime
import os
import sys
import traceback

SIZES = (1, 1000, 65536, 1 << 20)  # elements a rank
LIMIT = datetime.timedelta(seconds=40)


CPU = sys.argv[1:] == ["--cpu"]
DEVICE = "cpu" if CPU else "cuda:0"


def number(torch, rank, count, dtype, salt=0):
    """A rank's input: differs from rank to rank and from place to place, at most 50 in size."""
    at = torch.arange(count, device=DEVICE, dtype=torch.int64)
    return ((at * 7 + rank * 13 + salt) % 101 - 50).to(dtype)


def all_reduce(torch, dist, rank, n, count, dtype):
    x = number(torch, rank, count, dtype)
    dist.all_reduce(x)
    return x, sum(number(torch, r, count, dtype) for r in range(n))


def all_gather(torch, dist, rank, n, count, dtype):
    got = torch.zeros(n * count, device=DEVICE, dtype=dtype)
    dist.all_gather_into_tensor(got, number(torch, rank, count, dtype))
    return got, torch.cat([number(torch, r, count, dtype) for r in range(n)])


def reduce_scatter(torch, dist, rank, n, count, dtype):
    got = torch.zeros(count, device=DEVICE, dtype=dtype)
    dist.reduce_scatter_tensor(got, number(torch, rank, n * count, dtype))
    return got, sum(number(torch, r, n * count, dtype) for r in range(n))[rank * count:(rank + 1) * count]


def all_to_all(torch, dist, rank, n, count, dtype):
    got = torch.zeros(n * count, device=DEVICE, dtype=dtype)
    dist.all_to_all_single(got, number(torch, rank, n * count, dtype))
    return got, torch.cat([number(torch, r, n * count, dtype)[rank * count:(rank + 1) * count] for r in range(n)])


def mappings():
    """(first address, address after the last, file) of what is mapped from files."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        lines = [line.split() for line in maps if "/" in line]
    return [(*(int(n, 16) for n in words[0].split("-")), words[-1]) for words in lines]


def in_use():
    """The files whose libnccl torch calls. torch may load its own beside a preloaded one: then the loader's first
    match counts, which is the one that the program's own scope has."""
    try:
        address = ctypes.cast(ctypes.CDLL(None).ncclAllReduce, ctypes.c_void_p).value
    except AttributeError:
        return sorted({name for _, _, name in mappings() if "libnccl.so" in name or "librailyard.so" in name})
    return [name for first, after, name in mappings() if first <= address < after]


def run(torch, dist, wanted):
    rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if not CPU:
        torch.cuda.set_device(0)
    dist.init_process_group("gloo" if CPU else "nccl", rank=rank, world_size=n, timeout=LIMIT)
    cases = failed = 0
    for collective in (all_reduce, all_gather, reduce_scatter, all_to_all):
        for dtype in (torch.float32, torch.int32):
            wrong = 0
            for count in SIZES:
                got, want = collective(torch, dist, rank, n, count, dtype)
                wrong += int((got != want).sum().item())
            cases += 1
            failed += wrong > 0
            result = "not ok" if wrong else "ok"
            print(f"{result} {cases} - rank {rank}: {collective.__name__} of {dtype}, {wrong} wrong", flush=True)
    dist.barrier()
    found = in_use()
    right = CPU or found and all(wanted in name for name in found)
    print(f"{'ok' if right else 'not ok'} {cases + 1} - rank {rank}: the library is {', '.join(found)}", flush=True)
    dist.destroy_process_group()
    return 1 if failed or not right else 0


def main():
    try:
        import torch
        import torch.distributed as dist
    except ImportError as e:
        print(f"torch cannot be imported: {e}")
        return 77
    print(f"# torch {torch.__version__}, CUDA {torch.version.cuda}", flush=True)
    if not CPU and not torch.cuda.is_available() or not dist.is_nccl_available():
        print("torch sees no GPU, or was built without NCCL")
        return 77
    try:
        return run(torch, dist, sys.argv[1])
    except Exception:  # whatever it is, the log should have it, and the other ranks should end
        traceback.print_exc()
        print("not ok 99 - the run came to its end", flush=True)
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
