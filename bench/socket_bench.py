#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Transports over TCP side by side: the socket plugin, UCX, plain TCP streams, any other ncclNet plugin.

A round goes through all cells (size, connections, window, what the caller does when idle) and
runs every column of a cell one right after the other, forwards in one round and backwards in
the next. Shown are medians over the rounds; a ratio is taken within each round first.
"""
import argparse
import os
import pathlib
import shutil
import sys
import time

sys.dont_write_bytecode = True
import machine
import socket_report
from choices import chosen, environments, named_plugin, size_of
from columns import KitBench
from program import Failed
from results import OURS, alternate
from socket_columns import Cell, Congestion, Ucx, make_cells

ROOT = pathlib.Path(__file__).resolve().parent.parent
QUIET = 0.2  # cores that others may keep busy
SIZES = "8,4K,64K,1M,4M,64M"
METRICS = ("bw", "cpu", "lat")
MUST_BE_RIGHT = (OURS, "tcp")


def make_columns(o, parser):
    env, program = environments(o, parser), o.build / "bin" / "rail-kit"
    lo = {"NCCL_SOCKET_IFNAME": "lo"}

    def plugin(key, title, path):
        return KitBench(key, title, program, [path], {**lo, **env.get(key, {})})

    columns = [plugin(OURS, "Railyard", str(o.ours or o.build / "lib" / "libnccl-net-socket.so"))]
    for name, path in map(named_plugin, o.plugin):
        columns.append(plugin(name, name, path))
    columns += [Ucx(env.get("ucx")), KitBench("tcp", "plain TCP", program, ["--tcp"], env.get("tcp"))]
    return chosen(columns, o.only, env, parser)


def make_congestion(o, parser, say):
    library = o.build / "test" / "libcongestion.so"
    found = [Congestion(name, library) for name in o.cc.split(",") if Congestion.allowed(name)]
    for name in set(o.cc.split(",")) - {c.name for c in found}:
        say(f"congestion control {name} cannot be had here (see net.ipv4.tcp_allowed_congestion_control); left out")
    if not found:
        parser.error(f"--cc: none of {o.cc} can be had here")
    return found


def try_columns(columns, congestion):
    """A plugin that cannot be driven at all ends the run at once, with its reason."""
    for column in columns:
        result = congestion.run(column, Cell("bw", 4096, 1, 8, 0), 0.01, 0.02)
        if result["verdict"] != "ok":
            raise Failed(f"{column.title} does not work at all: {result['what']}\n{result.get('said', '')}")


def measure(columns, congestions, cells, o, say):
    by_name = {c.name: c for c in congestions}
    jobs = [({"cc": c.name}, cell) for c in congestions for cell in cells]
    return alternate(columns, jobs, o.rounds,
                     lambda column, noted, cell: by_name[noted["cc"]].run(column, cell, o.warmup, o.seconds), say)


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--build", required=True, type=pathlib.Path, help="build directory")
    p.add_argument("--out", type=pathlib.Path, help="where results go; BUILD/bench when not given")
    p.add_argument("--plugin", action="append", default=[], metavar="[NAME=]PATH",
                   help="one more ncclNet plugin as a column; may be repeated")
    p.add_argument("--env", action="append", default=[], metavar="COLUMN:VAR=VALUE",
                   help="an environment variable for one column; may be repeated")
    p.add_argument("--ours", metavar="PATH", help="our plugin, when it is not BUILD/lib/libnccl-net-socket.so")
    p.add_argument("--only", metavar="COLUMNS", help=f"columns, with commas ({OURS}, ucx, tcp, and each plugin's name)")
    p.add_argument("--cc", default="cubic,bbr", help="congestion controls, with commas, each given to all (cubic,bbr)")
    p.add_argument("--sizes", help=f"message sizes, with commas ({SIZES})")
    p.add_argument("--comms", default="1,4", help="numbers of connections, with commas (1,4)")
    p.add_argument("--metrics", default=",".join(METRICS),
                   help="bw: transfers; cpu: the same with a caller that sleeps 20 us when idle; lat: ping-pong (all)")
    p.add_argument("--rounds", type=int, help="rounds; 3, or 1 with --quick")
    p.add_argument("--seconds", type=float, help="timed seconds of a cell; 0.2, or 0.1 with --quick")
    p.add_argument("--warmup", type=float, help="seconds before; 0.05, or 0.03 with --quick")
    p.add_argument("--quick", action="store_true", help="cubic only, fewer sizes, one round: half a minute")
    p.add_argument("--wait", type=float, default=30, help="seconds to wait for a quiet machine (30)")
    o = p.parse_args()
    if o.quick and o.cc == p.get_default("cc"):
        o.cc = "cubic"
    try:
        o.sizes = [size_of(x) for x in (o.sizes or ("8,4K,64K,4M" if o.quick else SIZES)).split(",")]
        o.comms = [int(x) for x in o.comms.split(",")]
    except ValueError as why:
        p.error(f"--sizes or --comms: {why}")
    o.metrics = o.metrics.split(",")
    o.rounds = o.rounds or (1 if o.quick else 3)
    o.seconds = o.seconds or (0.1 if o.quick else 0.2)
    o.warmup = o.warmup if o.warmup is not None else (0.03 if o.quick else 0.05)
    o.build = o.build.resolve()
    o.out = o.out or o.build / "bench"
    if set(o.metrics) - set(METRICS) or min(o.sizes) < 8 or min(o.comms) < 1 or o.rounds < 1:
        p.error(f"wants --metrics of {','.join(METRICS)}, sizes from 8, --comms and --rounds from 1")
    return p, o


def main():
    parser, o = arguments()
    say = lambda text: print(f"bench: {text}", flush=True)
    columns, congestions = make_columns(o, parser), make_congestion(o, parser, say)
    if any(c.key == "ucx" for c in columns) and not shutil.which(Ucx.PROGRAM):
        parser.error(f"{Ucx.PROGRAM} is missing; config/setup.sh bench brings it (or leave the column out with --only)")
    cells = make_cells(o.sizes, o.comms, o.metrics)
    about = machine.describe(ROOT, os.environ.get("CC", "gcc"))
    about |= {"ucx": machine.first_line("ucx_info", "-v"), "rounds": o.rounds, "timed_s": o.seconds,
              "warmup_s": o.warmup, "congestion_controls": [c.name for c in congestions]}
    about["others_before"] = round(machine.wait_until_quiet(QUIET, o.wait, say), 2)
    start = time.monotonic()
    try:
        try_columns(columns, congestions[0])
        rows, about["load_in_rounds"] = measure(columns, congestions, cells, o, say)
    except Failed as why:
        print(f"bench: {why}", file=sys.stderr)
        return 1
    about["seconds"] = round(time.monotonic() - start, 1)
    example = next((c for c in cells if c.kind == "bw" and c.comms == 1 and not c.idle), cells[0])
    about["unverified"] = sorted(set().union(*(c.unverified for c in congestions)))
    about["columns"] = {c.key: {"title": c.title, "wire": c.wire, "command": c.shown(example, o.warmup, o.seconds)}
                        for c in columns if c.has(example)}
    socket_report.write(o.out, columns, about, cells, rows, QUIET, say)
    return 1 if any(r["verdict"] != "ok" and r["column"] in MUST_BE_RIGHT for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
