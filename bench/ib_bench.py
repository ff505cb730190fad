#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Transports over verbs side by side: the ib plugin, perftest, any other ncclNet plugin.

In one boot of the lab (test/lab), or between two ports of this machine (--dev). A round goes
through all cells (MTU, size, queue pairs, transfers or ping-pong) and runs every column of a cell
one right after the other, forwards in one round and backwards in the next. Shown are medians over
the rounds; a ratio is taken within each round first.
"""
import argparse
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import types

sys.dont_write_bytecode = True
import ib_instructions
import ib_report
import machine
from choices import chosen, environments, named_plugin, size_of
from ib_columns import MOST_IN_WINDOW, WINDOW, lab_ports, make_cells, make_columns
from ib_measure import NETDEV_MTU
from program import Failed
from results import OURS

ROOT = pathlib.Path(__file__).resolve().parent.parent
QUIET = 0.2  # cores that others may keep busy
SIZES, METRICS = "8,4K,64K,1M", ("bw", "lat")
AS_IT_IS = "the port's"  # a group of its own where the MTU is not ours to set


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--build", required=True, type=pathlib.Path, help="build directory")
    p.add_argument("--out", type=pathlib.Path, help="where results go; BUILD/bench when not given")
    p.add_argument("--dev", metavar="A[,B]", help="RDMA devices of this machine to run between, instead of the lab")
    p.add_argument("--gid-index", type=int, help="with --dev: for all columns; else each chooses")
    p.add_argument("--plugin", action="append", default=[], metavar="[NAME=]PATH",
                   help="one more ncclNet plugin as a column; may be repeated; the lab sees nothing below /tmp")
    p.add_argument("--env", action="append", default=[], metavar="COLUMN:VAR=VALUE",
                   help="an environment variable for one plugin's column; may be repeated")
    p.add_argument("--ours", metavar="PATH", help="our plugin, when it is not BUILD/lib/libnccl-net-ib.so")
    p.add_argument("--only", metavar="COLUMNS",
                   help=f"columns, with commas ({OURS}, write_bw, write_bw_polled, send_bw, write_lat, and each "
                        "plugin's name)")
    p.add_argument("--sizes", help=f"message sizes, with commas ({SIZES})")
    p.add_argument("--qps", default="1,4", help="queue pairs of the connection, with commas (1,4)")
    p.add_argument("--mtu", default="4096", help="of RDMA, in the lab, with commas: 1024, 2048, 4096 (4096)")
    p.add_argument("--metrics", default=",".join(METRICS), help="bw: transfers; lat: ping-pong (both)")
    p.add_argument("--idle", type=int, default=0, metavar="US",
                   help="how long a plugin's caller sleeps in transfers when nothing moved; 0: sched_yield (0)")
    p.add_argument("--window", type=int, default=WINDOW, metavar="N",
                   help=f"messages outstanding on each queue pair, {MOST_IN_WINDOW} at most in all ({WINDOW})")
    p.add_argument("--rounds", type=int, help="rounds; 3, or 1 with --quick")
    p.add_argument("--seconds", type=float, help="timed seconds of a cell; 1, or 0.3 with --quick")
    p.add_argument("--warmup", type=float, help="seconds before; 0.3, or 0.1 with --quick")
    p.add_argument("--quick", action="store_true", help="one short round of 8 B and 64 KiB")
    p.add_argument("--wait", type=float, default=60, help="seconds to wait for a quiet machine (60)")
    o = p.parse_args()
    try:
        o.sizes = [size_of(x) for x in (o.sizes or ("8,64K" if o.quick else SIZES)).split(",")]
        o.qps = [int(x) for x in o.qps.split(",")]
        o.mtus = [AS_IT_IS] if o.dev else [int(x) for x in o.mtu.split(",")]
    except ValueError as why:
        p.error(f"--sizes, --qps or --mtu: {why}")
    o.metrics = o.metrics.split(",")
    o.rounds = o.rounds or (1 if o.quick else 3)
    o.seconds = o.seconds or (0.3 if o.quick else 1)
    o.warmup = o.warmup if o.warmup is not None else (0.1 if o.quick else 0.3)
    o.build = o.build.resolve()
    o.out = o.out or o.build / "bench"
    if set(o.metrics) - set(METRICS) or min(o.sizes) < 8 or min(o.qps) < 1 or max(o.qps) > 128 or o.rounds < 1:
        p.error(f"wants --metrics of {','.join(METRICS)}, sizes from 8, --qps from 1 to 128, --rounds from 1")
    if not o.dev and set(o.mtus) - set(NETDEV_MTU):
        p.error(f"--mtu {o.mtu}: {', '.join(map(str, sorted(NETDEV_MTU)))}")
    if not 0 <= o.idle <= 100000:
        p.error(f"--idle {o.idle}: 0 to 100000")
    if not 1 <= o.window <= MOST_IN_WINDOW:
        p.error(f"--window {o.window}: 1 to {MOST_IN_WINDOW}")
    if o.dev and not 1 <= len(o.dev.split(",")) <= 2:
        p.error(f"--dev {o.dev}: one device or two")
    return p, o


def make_plan(o, parser):
    plugins = [(OURS, "Railyard", str(o.ours or o.build / "lib" / "libnccl-net-ib.so"))]
    plugins += [(name, name, str(pathlib.Path(path).resolve()) if "/" in path else path)
                for name, path in map(named_plugin, o.plugin)]
    program, env = str(o.build / "bin" / "rail-kit"), environments(o, parser)
    columns = chosen(make_columns(lab_ports(), program, plugins, env), o.only, env, parser)
    devices = o.dev.split(",") if o.dev else None
    plan = {"devices": devices, "gid_index": o.gid_index, "program": program, "plugins": plugins, "env": env,
            "only": [c.key for c in columns], "sizes": o.sizes, "qps": o.qps, "metrics": o.metrics, "mtus": o.mtus,
            "idle": o.idle, "window": o.window, "rounds": o.rounds, "seconds": o.seconds, "warmup": o.warmup,
            "wires": {} if o.ours else {OURS: "RailIB"}}
    return plan, columns


def execute(plan, say):
    """Has the plan run where the ports are. (rows.json or None, what others used of this machine)"""
    with tempfile.TemporaryDirectory(prefix="rail-bench-") as name:
        folder = pathlib.Path(name)
        (folder / "plan.json").write_text(json.dumps(plan))
        inside = [sys.executable, str(ROOT / "bench/ib_measure.py")]
        if plan["devices"] is None:
            argv = [sys.executable, str(ROOT / "test/lab/boot.py"), "--hosts", "2", "--nics", "1", "--mtu",
                    str(NETDEV_MTU[plan["mtus"][0]]), "--limit", "3600", "--out", name, "--",
                    f"{shlex.join(inside)} \"$RAIL_LAB_OUT\""]
        else:
            argv = [*inside, name]
        with machine.Sampler() as load:
            status = subprocess.run(argv).returncode
        found = folder / "rows.json"
        if status != 0 or not found.exists():
            say(f"no figures: exit status {status}")
            return None, load.seen
        return json.loads(found.read_text()), load.seen


def count(o, say):
    """Instructions for each call, natively, or None."""
    why = "our plugin is another one" if o.ours else ib_instructions.possible(o.build)
    if not why:
        try:
            return ib_instructions.measure(o.build)
        except Failed as failed:
            why = str(failed)
    say(f"no instructions counted: {why}")
    return None


def main():
    parser, o = arguments()
    say = lambda text: print(f"bench: {text}", flush=True)
    plan, columns = make_plan(o, parser)
    given = [word for i, word in enumerate(sys.argv[1:]) if "--build" not in sys.argv[i:i + 2]]
    about = machine.describe(ROOT, os.environ.get("CC", "gcc"))
    about |= {"rounds": o.rounds, "timed_s": o.seconds, "warmup_s": o.warmup, "mtus": o.mtus, "lab": not o.dev,
              "command": f"make bench-ib RUN={shlex.quote(shlex.join(given))}"}
    about["others_before"] = round(machine.wait_until_quiet(QUIET, o.wait, say), 2)
    found, about["load_in_rounds"] = execute(plan, say)
    if not found:
        return 1
    about |= {key: found[key] for key in ("perftest", "libibverbs", "devices", "columns", "seconds")}
    about["guest_kernel"] = found["kernel"]
    for column in about["columns"].values():
        column["command"] = column["command"].replace(f"{ROOT}/", "")
    shown = [types.SimpleNamespace(key=c.key, title=c.title) for c in columns]
    cells = make_cells(o.sizes, o.qps, o.metrics, o.idle, o.window)
    ib_report.write(o.out, shown, about, cells, found["rows"], count(o, say), QUIET, say)
    return 1 if any(r["verdict"] != "ok" and r["column"] == OURS for r in found["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
