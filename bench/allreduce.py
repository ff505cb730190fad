#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All-reduce of floats side by side: this runtime, Open MPI, and memcpy as the limit.

Every round runs every column once per block of sizes, forwards in one round and
backwards in the next, so that drift of the machine hits all alike. Shown are medians
over the rounds; a ratio is taken within each round first.
"""
import argparse
import json
import os
import pathlib
import shlex
import statistics
import sys
import time

sys.dont_write_bytecode = True
import machine
import report
from program import Failed, execute

ROOT = pathlib.Path(__file__).resolve().parent.parent
QUIET = 0.2  # cores that others may keep busy
TCP = ["--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"]
PAIRS = [("shm", "ompi-shm"), ("net", "ompi-tcp")]
MIB = 1 << 20
TARGETS = [("shm", "ompi-shm", MIB, 1.0), ("shm", "ompi-shm", 64 * MIB, 1.5),
           ("net", "ompi-tcp", MIB, 1.2), ("net", "ompi-tcp", 64 * MIB, 1.2)]
# Up to this size (exclusive): timed and warm-up calls a size, the same for all columns.
REPEATS = [(4 << 10, 2000, 200), (MIB, 500, 50), (4 * MIB, 100, 10), (1 << 62, 20, 4)]


class Block:
    """Sizes that one run of a program goes through."""

    def __init__(self, least, most, factor, iters, warmup):
        self.factor, self.iters, self.warmup, self.sizes = factor, iters, warmup, []
        while least <= most:
            self.sizes.append(least)
            least *= factor

    def arguments(self, iters):
        return [str(x) for x in (self.sizes[0], self.sizes[-1], self.factor, iters, self.warmup)]


def make_blocks(least, most, factor):
    """One block per row of REPEATS. All start at a power of the factor times `least`, or at the row's own start."""
    blocks, start = [], least
    for end, iters, warmup in REPEATS:
        if start < min(end, most + 1):
            blocks.append(Block(start, min(end - 1, most), factor, iters, warmup))
            start = end
    return blocks


class Column:
    def __init__(self, key, title, base, env=None):
        self.key, self.title, self.base, self.env = key, title, base, env or {}

    def command(self, block, iters):
        return self.base + block.arguments(iters)

    def parse(self, text):
        return {row["size"]: row for row in map(json.loads, text.splitlines())}

    def run(self, block):
        """Time of one call for each size, in us."""
        rows = self.parse(execute(self.command(block, block.iters), self.env))
        if sorted(rows) != block.sizes:
            raise Failed(f"{self.title} reported sizes {sorted(rows)}, asked for {block.sizes}")
        return {size: row["time_us"] for size, row in rows.items()}

    def wrong(self, block):
        """One more run that is not timed but checked: how many elements are wrong. None: there is nothing to check."""
        return sum(row["wrong"] for row in self.parse(execute(self.command(block, 0), self.env)).values())

    def shown(self, block):
        """The command line as one would type it in the repository's root."""
        words = [f"{k}={shlex.quote(v)}" for k, v in self.env.items()]
        return " ".join(words + [shlex.join(self.command(block, block.iters))]).replace(f"{ROOT}/", "")


class Memcpy(Column):
    def wrong(self, block):
        return None


class Railyard(Column):
    """rail-coll; must really use the transport that the column is named for."""

    def __init__(self, key, title, tool, ranks, transport, env):
        super().__init__(key, title, [tool, "all_reduce", "-r", str(ranks)], env)
        self.transport = transport

    def command(self, block, iters):
        sizes = ["-b", block.sizes[0], "-e", block.sizes[-1], "-f", block.factor]
        # -z 1: wait after each call, as MPI_Allreduce does.
        how = ["-n", iters, "-w", block.warmup, "-c", 0 if iters else 1, "-z", 1, "-T", 60, "--out-of-place", "-J", "-"]
        return self.base + [str(x) for x in sizes + how]

    def parse(self, text):
        result = json.loads(text)
        for rank in result["ranks"]:
            if rank["transports"] != self.transport:
                raise Failed(f"{self.title}: rank {rank['rank']} used {rank['transports']}, not {self.transport}")
        self.plugin = result["ranks"][0]["net_plugin"]
        rows = {}
        for row in result["rows"]:
            side = row["out_of_place"]
            rows[row["size"]] = {"time_us": side["time_us"], "wrong": (side["wrong"] or 0) + (side["outside"] or 0)}
        return rows


def make_columns(build, ranks):
    # No binding on either side. Slots are named so that Open MPI does not think itself oversubscribed where it is not.
    cores = len(os.sched_getaffinity(0))
    mpirun = ["mpirun", "--bind-to", "none", "--host", f"localhost:{max(ranks, 1) if ranks <= cores else cores}"]
    mpirun += (["--oversubscribe"] if ranks > cores else []) + ["-np", str(ranks), "--mca", "pml", "ob1"]
    program = [str(build / "bench" / "mpi_allreduce")]
    # mpirun refuses root otherwise; harmless for others.
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
    tool, plugin = str(build / "bin" / "rail-coll"), str(build / "lib" / "libnccl-net-socket.so")
    net = {"NCCL_SHM_DISABLE": "1", "NCCL_NET_PLUGIN": plugin, "NCCL_NET": "RailSocket", "NCCL_SOCKET_IFNAME": "lo"}
    return [
        Railyard("shm", "Railyard SHM", tool, ranks, "SHM", {"NCCL_SOCKET_IFNAME": "lo"}),
        Column("ompi-shm", "Open MPI SHM", mpirun + ["--mca", "btl", "self,vader"] + program, root),
        Railyard("net", "Railyard NET", tool, ranks, "NET/RailSocket", net),
        Column("ompi-tcp", "Open MPI TCP", mpirun + TCP + program, root),
        Memcpy("memcpy", "memcpy", [str(build / "bench" / "memcpy")]),
    ]


def measure(columns, blocks, rounds):
    """times[key][size]: one time a round."""
    times = {c.key: {s: [] for b in blocks for s in b.sizes} for c in columns}
    loads = []
    for number in range(rounds):
        order = columns if number % 2 == 0 else columns[::-1]
        start, watch = time.monotonic(), machine.Watch()
        for block in blocks:
            for column in order:
                for size, us in column.run(block).items():
                    times[column.key][size].append(us)
        loads.append({"others": round(watch.others(), 2), "steal": round(watch.steal(), 3)})
        machine.log(f"round {number + 1}/{rounds}: {time.monotonic() - start:.1f} s; cores that others kept busy: "
            f"{loads[-1]['others']:.2f}")
    return times, loads


def check(columns, blocks):
    wrong = {}
    for column in columns:
        found = [column.wrong(b) for b in blocks]
        if None not in found:
            wrong[column.key] = sum(found)
    return wrong


def summarise(times, ranks):
    """Medians and ranges of busbw in GB/s (memcpy: bytes copied), and the ratios of each pair."""
    bus = {key: 1.0 if key == "memcpy" else 2 * (ranks - 1) / ranks for key in times}
    out = {"busbw": {}, "ratio": {}}
    for key, sizes in times.items():
        out["busbw"][key] = {}
        for size, all_us in sizes.items():
            rates = [size / 1e3 / us * bus[key] for us in all_us]
            out["busbw"][key][size] = {"median": statistics.median(rates), "min": min(rates), "max": max(rates),
                                       "time_us": statistics.median(all_us)}
    for ours, theirs in PAIRS:
        if ours in times and theirs in times:
            out["ratio"][ours] = {s: statistics.median(b / a for a, b in zip(times[ours][s], times[theirs][s]))
                                  for s in times[ours]}
    return out


def compare_with_targets(summary, ranks):
    """What became of each target: (pair, size, wanted, got or None). They are set for 2 ranks."""
    if ranks != 2:
        return []
    return [(ours, theirs, size, wanted, summary["ratio"].get(ours, {}).get(size))
            for ours, theirs, size, wanted in TARGETS]


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--build", required=True, type=pathlib.Path, help="build directory")
    p.add_argument("--out", type=pathlib.Path, help="where results go; BUILD/bench when not given")
    p.add_argument("--ranks", type=int, default=2, help="ranks, all on this machine (2)")
    p.add_argument("--rounds", type=int, help="rounds; 5, or 3 with --quick")
    p.add_argument("--min", type=int, default=8, help="smallest size in bytes (8)")
    p.add_argument("--max", type=int, default=64 * MIB, help="largest size in bytes (64 MiB)")
    p.add_argument("--factor", type=int, choices=(2, 4), help="from size to size; 2, or 4 with --quick")
    p.add_argument("--only", help="columns, with commas; all when not given")
    p.add_argument("--quick", action="store_true", help="fewer sizes and rounds: under a minute")
    p.add_argument("--wait", type=float, default=30, help="seconds to wait for a quiet machine (30)")
    o = p.parse_args()
    o.rounds = o.rounds or (3 if o.quick else 5)
    o.factor = o.factor or (4 if o.quick else 2)
    o.build = o.build.resolve()
    o.out = o.out or o.build / "bench"
    if o.ranks < 2 or o.rounds < 1 or o.min < 4 or o.min % 4 or o.max < o.min:
        p.error("wants --ranks from 2, --rounds from 1, sizes that are multiples of 4, --max not below --min")
    return p, o


def main():
    parser, o = arguments()
    columns = make_columns(o.build, o.ranks)
    if o.only:
        wanted = o.only.split(",")
        if unknown := set(wanted) - {c.key for c in columns}:
            parser.error(f"no such column: {', '.join(sorted(unknown))}; there are {', '.join(c.key for c in columns)}")
        columns = [c for c in columns if c.key in wanted]
    about = machine.describe(ROOT, os.environ.get("CC", "gcc"))
    blocks = make_blocks(o.min, o.max, o.factor)
    about |= {"ranks": o.ranks, "rounds": o.rounds, "commands": {c.key: [c.shown(b) for b in blocks] for c in columns}}
    about["others_before"] = round(machine.wait_until_quiet(QUIET, o.wait), 2)
    if about["others_before"] > QUIET:
        machine.log(f"WARNING: others keep {about['others_before']:.1f} cores busy; these figures mean little")
    start = time.monotonic()
    try:
        times, about["load_in_rounds"] = measure(columns, blocks, o.rounds)
        about["wrong"] = check(columns, blocks)
    except Failed as why:
        print(f"bench: {why}", file=sys.stderr)
        return 1
    about["seconds"] = round(time.monotonic() - start, 1)
    about["plugin"] = next((c.plugin for c in columns if c.key == "net"), "")
    summary = summarise(times, o.ranks)
    report.write_allreduce(o.out, columns, about, times, summary, compare_with_targets(summary, o.ranks), QUIET)
    return 1 if any(about["wrong"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
