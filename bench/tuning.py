#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where one choice of the tuning table (core/rt_tune.c) begins to be faster than another.

All-reduce of two ranks over shared memory and over loopback, with each algorithm and each protocol forced by
NCCL_ALGO and NCCL_PROTO. Columns take turns as in allreduce.py. Compared are the least times of all rounds: what
others do to a run only adds, and the question is which choice needs less.
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
# (a, b): shown is how much longer b takes than a, and up to which size a is at least as fast
PAIRS = [("shm-exchange", "shm-ring"), ("net-exchange", "net-ring"), ("shm-exchange-ll", "shm-exchange"),
         ("shm-ring-ll", "shm-ring")]


def make_columns(build):
    tool, plugin = str(build / "bin" / "rail-coll"), str(build / "lib" / "libnccl-net-socket.so")
    net = {"NCCL_SHM_DISABLE": "1", "NCCL_NET_PLUGIN": plugin, "NCCL_NET": "RailSocket"}

    def column(key, title, algo, proto, more=None):
        env = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_ALGO": algo, "NCCL_PROTO": proto, **(more or {})}
        return allreduce.Railyard(key, title, tool, 2, "NET/RailSocket" if more else "SHM", env)

    return [column("shm-ring", "SHM Ring", "Ring", "Simple"),
            column("shm-exchange", "SHM Exchange", EXCHANGE, "Simple"),
            column("shm-ring-ll", "SHM Ring LL", "Ring", "LL"),
            column("shm-exchange-ll", "SHM Exchange LL", EXCHANGE, "LL"),
            column("net-ring", "NET Ring", "Ring", "Simple", net),
            column("net-exchange", "NET Exchange", EXCHANGE, "Simple", net)]


def measure(columns, blocks, o, say):
    """As allreduce.measure, but each round begins in a quiet moment if there is one."""
    times, loads = {c.key: {s: [] for b in blocks for s in b.sizes} for c in columns}, []
    for number in range(o.rounds):
        machine.wait_until_quiet(allreduce.QUIET, o.wait, say)
        found, load = allreduce.measure(columns[::-1] if number % 2 else columns, blocks, 1, say)
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


def tables(columns, times):
    titles = {c.key: c.title for c in columns}
    sizes = sorted(times[columns[0].key])
    cell = lambda all_us: f"{report.number(statistics.median(all_us))} ({report.number(min(all_us))}-" \
                          f"{report.number(max(all_us))})"
    head = ["size"] + [c.title for c in columns]
    body = [[report.size_name(s)] + [cell(times[c.key][s]) for c in columns] for s in sizes]
    against = {(a, b): ratios(times, a, b) for a, b in PAIRS}
    ratio_head = ["size"] + [f"{titles[b]} / {titles[a]}" for a, b in PAIRS]
    ratio_body = [[report.size_name(s)] + [f"{against[p][s]:.2f}x" for p in PAIRS] for s in sizes]
    lines = []
    for a, b in PAIRS:
        won = last_win(against[a, b])
        lines.append(f"- {titles[a]} is at least as fast as {titles[b]} "
                     + (f"up to {report.size_name(won)}" if won else "at no size"))
    return (head, body), (ratio_head, ratio_body), lines


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--build", required=True, type=pathlib.Path, help="build directory")
    p.add_argument("--out", type=pathlib.Path, help="where tuning.md goes; BUILD/bench when not given")
    p.add_argument("--rounds", type=int, default=10, help="rounds (10)")
    p.add_argument("--max", type=int, default=256 << 10, help="largest size in bytes (256 KiB)")
    p.add_argument("--wait", type=float, default=30, help="seconds to wait for a quiet machine, before each round (30)")
    o = p.parse_args()
    if o.rounds < 1 or o.max < 8:
        p.error("wants --rounds from 1, --max from 8")
    o.build = o.build.resolve()
    o.out = o.out or o.build / "bench"
    return o


def main():
    o = arguments()
    say = lambda text: print(f"bench: {text}", flush=True)
    columns, blocks = make_columns(o.build), allreduce.make_blocks(8, o.max, 2)
    about = machine.describe(allreduce.ROOT, os.environ.get("CC", "gcc"))
    about["others_before"] = round(machine.wait_until_quiet(allreduce.QUIET, 0, say), 2)
    try:
        times, about["load_in_rounds"] = measure(columns, blocks, o, say)
        wrong = sum(allreduce.check(columns, blocks).values())
    except Failed as why:
        print(f"bench: {why}", file=sys.stderr)
        return 1
    timed, compared, lines = tables(columns, times)
    commands = [c.shown(b) for c in columns for b in blocks]
    text = "\n".join([
        "# Tuning of two ranks on the host", "",
        f"- {about['date']}; {about['cpu']}, {about['cores']} cores, {about['memory_gib']} GiB; Linux "
        f"{about['kernel']}; TCP congestion control {about['congestion_control']}",
        f"- railyard {about['railyard']}; {about['compiler']}",
        f"- all-reduce, float32 sum, out of place, {o.rounds} rounds; wrong elements in the checked runs: {wrong}",
        f"- {report.load_fact(about)}", "",
        "Time of one call in us, median over the rounds, in brackets least and greatest.", "",
        report.markdown_table(*timed), "", "Ratios of the least times: above 1 the second is faster.",
        "", report.markdown_table(*compared), "", *lines, "", "Commands:", "", "```", *commands, "```", ""])
    o.out.mkdir(parents=True, exist_ok=True)
    (o.out / "tuning.md").write_text(text)
    print(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
