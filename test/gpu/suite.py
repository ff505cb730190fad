#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make gpu-test: everything that wants a GPU, one table at the end. Without a GPU parts 1 and 5 run in emulation,
the rest is skipped with its reason.

    suite.py --build DIR --out DIR [--budget S] [--began TIME] [--build-status N] [--only TEXT]... [--nccl-tests DIR]
             [--mps]

Needs Python 3 and what `make tests` built, here or elsewhere. CUDA_HOME, NCCL_HOME and PYTHON (an interpreter with
torch) say where things are that it does not find by itself; CUDA_VISIBLE_DEVICES picks the GPU. Exit status: 1 if
something failed or the budget cut it; being slower than the mark is no failure, but said. results.json, results.md and
all.log are written anew after every step.
"""
import argparse
import functools
import os
import pathlib
import shlex
import signal
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import device  # noqa: E402
import mps  # noqa: E402
import nccl_tests  # noqa: E402
import places  # noqa: E402
import real_nccl  # noqa: E402
import speed  # noqa: E402
from steps import Runner  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUDGET = 540         # seconds: below the ten minutes that some lend a machine for
RUNTIME_SHARE = 0.2  # of the budget, kept for the runtime's part: what hangs before it must not take all


def options():
    p = argparse.ArgumentParser(description="everything that wants a GPU")
    p.add_argument("--build", default=ROOT / "build", type=pathlib.Path, help="what make tests built (build)")
    p.add_argument("--out", default=None, type=pathlib.Path, help="table, JSON and logs (BUILD/gpu-test)")
    p.add_argument("--budget", default=BUDGET, type=float, help=f"seconds for all of it ({BUDGET})")
    p.add_argument("--began", default=None, type=float, help="when the budget began, in seconds of `date +%%s` (now)")
    p.add_argument("--build-status", default=0, type=int, help="how `make tests` ended; what it printed: OUT/build.log")
    p.add_argument("--only", action="append", default=[],
                   help="steps whose part and name contain this; may be repeated")
    p.add_argument("--nccl-tests", default=os.environ.get("NCCL_TESTS", ""),
                   help="sources of nccl-tests, or what nccl_tests.sh made")
    p.add_argument("--mps", action="store_true",
                   help="start a CUDA MPS daemon, so that processes need not take turns on the GPU")
    p.add_argument("--list", action="store_true", help="print the steps and end")
    return p.parse_args()


def all_steps(m, o):
    """What has never been measured comes first, what takes long last."""
    yield from device.kernels(m)
    yield from speed.steps(m)
    yield from real_nccl.steps(m)
    yield from nccl_tests.steps(m, o.nccl_tests, o.out / "nccl-tests")
    yield from device.runtime(m)
    yield from device.sanitizers(m)


def shared_out(steps, budget):
    """The steps before the runtime's leave it its share."""
    runtime = [n for n, s in enumerate(steps) if s.part == device.RUNTIME]
    for s in steps[:runtime[0]] if runtime else []:
        s.reserve = RUNTIME_SHARE * budget
    return steps


def wanted(steps, only):
    """Those asked for, and what they need."""
    names = {s.name for s in steps if not only or any(text in f"{s.part}: {s.name}" for text in only)}
    for s in reversed(steps):
        if s.name in names:
            names.update(s.needs + s.uses)
    return [s for s in steps if s.name in names]


def facts(m):
    git = places.output(["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--tags"]).strip()
    gpu = ", ".join(v for v in (places.smi("name"), places.smi("memory.total"), places.smi("driver_version")) if v)
    return {"date": time.strftime("%Y-%m-%d %H:%M:%S %z"), "railyard": git or "unknown",
            "command": shlex.join(sys.argv),
            "machine": f"{os.uname().sysname} {os.uname().release}, {os.cpu_count()} cores",
            "GPU": m.no_gpu or f"{gpu or 'unknown'}{'; ' + m.not_shared if m.not_shared else ''}",
            "NCCL": os.path.realpath(m.nccl) if m.nccl else "none", "CUDA": places.cuda_home() or "none",
            "PyTorch's Python": places.torch_python() or "none"}


def main():
    o = options()
    o.build = o.build.resolve()
    o.out = (o.out or o.build / "gpu-test").resolve()
    if not (o.build / "test/gpu/gpu_coll").exists():
        print(f"{o.build} has no test/gpu/gpu_coll: run `make tests` first", file=sys.stderr)
        return 2
    begin, wall = time.monotonic(), time.time()
    spent = min(max(0.0, wall - o.began), o.budget) if o.began else 0.0
    card = places.hold_open(places.card_files())
    m = places.look(o.build)
    daemon = mps.Daemon() if o.mps and not m.no_ranks and not o.list else None
    try:
        m.mps = daemon.pipes if daemon else ""
        steps = shared_out(wanted(list(all_steps(m, o)), o.only), o.budget)
        if o.list:
            print("\n".join(f"{s.part}: {s.name}" for s in steps))
            return 0
        told = (daemon.why or "started by the suite") if daemon else "none of ours"
        steps = [*device.prepared(m, o.build_status, o.out / "build.log"), *steps]
        told = {**facts(m), "MPS": told}
        spent += time.monotonic() - begin
        say = functools.partial(print, flush=True)
        return run(steps, Runner(o.out, o.budget, say=say, facts=told, spent=spent))
    finally:
        if daemon:
            daemon.close()
        if card is not None:
            os.close(card)


def run(steps, runner):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, runner.interrupt)
    for name, value in runner.facts.items():
        print(f"# {name}: {value}")
    for step in steps:
        runner.do(step)
    return runner.finish()


if __name__ == "__main__":
    sys.exit(main())
