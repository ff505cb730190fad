#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench-pytorch: all_reduce of torch.distributed on CPU tensors, backend railyard beside Gloo.

Both run in the same processes, cell by cell in turn: railyard over shared memory and, with NCCL_SHM_DISABLE=1, over
TCP; Gloo has TCP only. Loopback."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

import machine
from congestion import controls
from report import size_name, text_table

# The system's Python, for which Debian packages torch; RAIL_TEST_PYTHON names another.
PYTHON = os.environ.get("RAIL_TEST_PYTHON", "/usr/bin/python3")
RANKS = pathlib.Path(__file__).with_name("torch_ranks.py")
ROOT = pathlib.Path(__file__).resolve().parents[1]


def run(build, n, rounds, sizes, congestion, **variables):
    """{(backend, size): [us, one a round]}"""
    with tempfile.TemporaryDirectory() as scratch:
        env = {**os.environ, "RAIL_LIBRARY": str(build / "lib" / "librailyard.so.0"), "OMP_NUM_THREADS": "1",
               "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo", **variables,
               **congestion.environment(pathlib.Path(scratch, "congestion"))}
        argv = [[PYTHON, str(RANKS), str(rank), str(n), f"{scratch}/store", str(rounds), sizes] for rank in range(n)]
        ranks = [subprocess.Popen(argv[rank], env=env, text=True, stdout=subprocess.PIPE if rank == 0 else None)
                 for rank in range(n)]
        out, _ = ranks[0].communicate()
        if any(rank.wait() for rank in ranks):
            raise SystemExit("bench-pytorch: a rank failed")
    times = {}
    for line in map(json.loads, out.splitlines()):
        if not line["right"]:
            raise SystemExit(f"bench-pytorch: {line['backend']} at {line['size']} bytes: a wrong element")
        times.setdefault((line["backend"], line["size"]), []).append(line["us"])
    return times


def rows(times, sizes):
    for size in sizes:
        gloo, ours = times["gloo", size], times["railyard", size]
        ratio = statistics.median(o / g for o, g in zip(ours, gloo))
        yield [size_name(size), *(f"{statistics.median(t):.1f} ({min(t):.1f}-{max(t):.1f})" for t in (gloo, ours)),
               f"{ratio:.2f}x"]


def main():
    parser = argparse.ArgumentParser(prog="bench-pytorch", description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default=",".join(str(8 << i) for i in range(0, 24, 3)), help="bytes, with commas")
    parser.add_argument("--cc", default="cubic,bbr", help="TCP congestion controls, each given to both backends")
    parser.add_argument("--wait", type=float, default=30, help="seconds to wait for a quiet machine (30)")
    args = parser.parse_args()
    sizes = [int(size) for size in args.sizes.split(",")]
    busy = machine.wait_until_quiet(0.2, args.wait)
    about = machine.describe(ROOT, os.environ.get("CC", "gcc"))
    version = subprocess.run([PYTHON, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True)
    print(f"{about['date']}; {about['cpu']}, {about['cores']} cores; Linux {about['kernel']}; "
          f"railyard {about['railyard']}; PyTorch {version.stdout.strip()}; others kept {busy:.1f} cores busy before")
    print(f"all_reduce of float32, {args.ranks} ranks, {args.rounds} rounds, OMP_NUM_THREADS=1; µs per call, median "
          "(least-greatest); the ratio is the median of the rounds' (below 1: railyard is faster)")
    for congestion in controls(args.cc, args.build, parser):
        for name, variables in (("shared memory", {}), ("TCP", {"NCCL_SHM_DISABLE": "1"})):
            times = run(args.build.resolve(), args.ranks, args.rounds, args.sizes, congestion, **variables)
            print(f"\nrailyard over {name}, Gloo over TCP; {congestion.name}")
            print(text_table(["size", "gloo", "railyard", "railyard/gloo"], list(rows(times, sizes))), flush=True)


if __name__ == "__main__":
    main()
