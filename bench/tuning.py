#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where one choice of the tuning table (core/plan/rt_tune.c) begins to be faster than another.

All-reduce over shared memory and over loopback, with each algorithm and each protocol forced by NCCL_ALGO and
NCCL_PROTO: of two ranks, the ring against the exchange and Simple against LL; of more, the ring against the trees.
Columns take turns as in allreduce.py. Compared are the least times of all rounds: what others do to a run only adds,
and the question is which choice needs less.
"""
import argparse
import os
import pathlib
import statistics
import sys

sys.dont_write_bytecode = True
import allreduce
import machine
import report
from program import Failed

EXCHANGE = "Ring;AllReduce:Exchange"
TREE = "Ring;AllReduce:Tree"
# (a, b): shown is how much longer b takes than a, and up to which size a is at least as fast
PAIRS_OF_TWO = [("shm-exchange", "shm-ring"), ("net-exchange", "net-ring"), ("shm-exchange-ll", "shm-exchange"),
                ("shm-ring-ll", "shm-ring")]
PAIRS_OF_MORE = [("shm-tree", "shm-ring"), ("net-tree", "net-ring"), ("net-exchange", "net-tree")]


def make_columns(build, ranks):
    tool, plugin = str(build / "bin" / "rail-coll"), str(build / "lib" / "libnccl-net-socket.so")
    net = {"NCCL_SHM_DISABLE": "1", "NCCL_NET_PLUGIN": plugin, "NCCL_NET": "RailSocket"}

    def column(key, title, algo, proto, more=None):
        env = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_ALGO": algo, "NCCL_PROTO": proto, **(more or {})}
        return allreduce.Railyard(key, title, tool, ranks, "NET/RailSocket" if more else "SHM", env)

    if ranks > 2:
        columns = [column("shm-ring", "SHM Ring", "Ring", "Simple"),
                   column("shm-tree", "SHM Tree", TREE, "Simple"),
                   column("net-ring", "NET Ring", "Ring", "Simple", net),
                   column("net-tree", "NET Tree", TREE, "Simple", net)]
        if ranks & (ranks - 1) == 0:
            columns.append(column("net-exchange", "NET Exchange", EXCHANGE, "Simple", net))
        return columns
    return [column("shm-ring", "SHM Ring", "Ring", "Simple"),
            column("shm-exchange", "SHM Exchange", EXCHANGE, "Simple"),
            column("shm-ring-ll", "SHM Ring LL", "Ring", "LL"),
            column("shm-exchange-ll", "SHM Exchange LL", EXCHANGE, "LL"),
            column("net-ring", "NET Ring", "Ring", "Simple", net),
            column("net-exchange", "NET Exchange", EXCHANGE, "Simple", net)]


def make_blocks(o, ranks):
    """Of more ranks than there are cores each call takes many times as long: fewer sizes, fewer calls."""
    if ranks == 2:
        return allreduce.make_blocks(8, o.max, 2)
    blocks = allreduce.make_blocks(8, o.max, 4)
    for block in blocks:
        block.iters, block.warmup = block.iters // 4, block.warmup // 4
    return blocks


def measure(columns, blocks, o):
    """As allreduce.measure, but each round begins in a quiet moment if there is one."""
    times, loads = {c.key: {s: [] for b in blocks for s in b.sizes} for c in columns}, []
    for number in range(o.rounds):
        machine.wait_until_quiet(allreduce.QUIET, o.wait)
        found, load = allreduce.measure(columns[::-1] if number % 2 else columns, blocks, 1)
        loads += load
        for key in times:
            for size in times[key]:
                times[key][size] += found[key][size]
    return times, loads


def ratios(times, a, b):
    return {size: min(times[b][size]) / min(times[a][size]) for size in times[a]}


def last_win(ratio):
    """The largest size up to which every ratio is at least 1; None: not even the first."""
    won = None
    for size in sorted(ratio):
        if ratio[size] < 1:
            break
        won = size
    return won


def tables(columns, pairs, times):
    titles = {c.key: c.title for c in columns}
    sizes = sorted(times[columns[0].key])
    cell = lambda all_us: f"{report.number(statistics.median(all_us))} ({report.number(min(all_us))}-" \
                          f"{report.number(max(all_us))})"
    head = ["size"] + [c.title for c in columns]
    body = [[report.size_name(s)] + [cell(times[c.key][s]) for c in columns] for s in sizes]
    pairs = [(a, b) for a, b in pairs if a in times and b in times]
    against = {(a, b): ratios(times, a, b) for a, b in pairs}
    ratio_head = ["size"] + [f"{titles[b]} / {titles[a]}" for a, b in pairs]
    ratio_body = [[report.size_name(s)] + [f"{against[p][s]:.2f}x" for p in pairs] for s in sizes]
    lines = []
    for a, b in pairs:
        won = last_win(against[a, b])
        lines.append(f"- {titles[a]} is at least as fast as {titles[b]} "
                     + (f"up to {report.size_name(won)}" if won else "at no size"))
    return (head, body), (ratio_head, ratio_body), lines


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--build", required=True, type=pathlib.Path, help="build directory")
    p.add_argument("--out", type=pathlib.Path, help="where tuning.md goes; BUILD/bench when not given")
    p.add_argument("--ranks", default="2,4,8", help="numbers of ranks, each with tables of its own (2,4,8)")
    p.add_argument("--rounds", type=int, default=10, help="rounds (10)")
    p.add_argument("--max", type=int, default=256 << 10, help="largest size in bytes (256 KiB)")
    p.add_argument("--wait", type=float, default=30, help="seconds to wait for a quiet machine, before each round (30)")
    o = p.parse_args()
    o.ranks = [int(n) for n in o.ranks.split(",")]
    if o.rounds < 1 or o.max < 8 or min(o.ranks) < 2:
        p.error("wants --rounds from 1, --max from 8, --ranks from 2")
    o.build = o.build.resolve()
    o.out = o.out or o.build / "bench"
    return o


def section(ranks, o):
    """Markdown of one number of ranks, wrong elements, load of others in the rounds, commands."""
    columns, blocks = make_columns(o.build, ranks), make_blocks(o, ranks)
    times, loads = measure(columns, blocks, o)
    wrong = sum(allreduce.check(columns, blocks).values())
    timed, compared, lines = tables(columns, PAIRS_OF_TWO if ranks == 2 else PAIRS_OF_MORE, times)
    text = [f"## {ranks} ranks", "", "Time of one call in us, median over the rounds, in brackets least and greatest.",
            "", report.markdown_table(*timed), "", "Ratios of the least times: above 1 the second is faster.", "",
            report.markdown_table(*compared), "", *lines, ""]
    return text, wrong, loads, [c.shown(b) for c in columns for b in blocks]


def main():
    o = arguments()
    about = machine.describe(allreduce.ROOT, os.environ.get("CC", "gcc"))
    about["others_before"] = round(machine.wait_until_quiet(allreduce.QUIET, 0), 2)
    body, commands, wrong, about["load_in_rounds"] = [], [], 0, []
    try:
        for ranks in o.ranks:
            text, bad, loads, ran = section(ranks, o)
            body, commands, wrong = body + text, commands + ran, wrong + bad
            about["load_in_rounds"] += loads
    except Failed as why:
        print(f"bench: {why}", file=sys.stderr)
        return 1
    text = "\n".join([
        "# Tuning on the host", "",
        f"- {about['date']}; {about['cpu']}, {about['cores']} cores, {about['memory_gib']} GiB; Linux "
        f"{about['kernel']}; TCP congestion control {about['congestion_control']}",
        f"- railyard {about['railyard']}; {about['compiler']}",
        f"- all-reduce, float32 sum, out of place, {o.rounds} rounds; wrong elements in the checked runs: {wrong}",
        f"- {report.load_fact(about)}", "", *body, "Commands:", "", "```", *commands, "```", ""])
    o.out.mkdir(parents=True, exist_ok=True)
    (o.out / "tuning.md").write_text(text)
    print(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
