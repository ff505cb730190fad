#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plugins under NCCL's own host code, with no GPU (docs/nccl.md): releases of NCCL by plugins, one table.

Each cell is a run of `rail-kit nccl`; each column a release and options of that command: ranks that are a host each,
and several ranks a host with GPUDirect, where NCCL receives in groups. The ib plugin and NCCL's own IB run over the
emulated verbs device, the ofi plugin over each provider that is named: the environment of each row selects these."""
import argparse
import json
import os
import pathlib
import shlex
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import machine
from program import Failed, Program
from report import markdown_table
from transports import ROOT, environments

COLUMNS = ("--ranks 2", "--ranks 4", "--ranks 4 --ranks-per-host 2 --gdr on")
LIMIT = 3600  # seconds for one cell


def ours_and_nccls(build, providers):
    """[(name, plugin, environment)]"""
    lib = build / "lib"
    verbs = lib / "emu/libibverbs.so.1"
    path = ":".join(filter(None, [str(verbs.parent), os.environ.get("LD_LIBRARY_PATH")]))
    rows = [("RailSocket", lib / "libnccl-net-socket.so", {}),
            ("RailIB, emulated RoCE", lib / "libnccl-net-ib.so", {"NCCL_IBVERBS_LIB": str(verbs),
                                                                 "RAIL_EMU": "device emu0"})]
    rows += [(f"RailOFI, {p}", lib / "libnccl-net-ofi.so", {"RAIL_OFI_PROVIDER": p}) for p in providers]
    return rows + [("NCCL's Socket", "builtin:Socket", {}),
                   ("NCCL's IB, emulated RoCE", "builtin:IB", {"LD_LIBRARY_PATH": path, "RAIL_EMU": "device emu0",
                                                               "NCCL_IB_GID_INDEX": "3"})]


def without(plugin):
    """What is not run, as arguments: the ofi plugin keeps NCCL from LL128 (docs/protocol-ofi.md)."""
    return ["--skip", "*.LL128"] if pathlib.Path(plugin).name == "libnccl-net-ofi.so" else []


def run_kit(kit, name, plugin, env, nccl, args):
    """The results of a run."""
    with tempfile.NamedTemporaryFile(prefix="rail-bench-", suffix=".json") as out:
        argv = [str(kit), "nccl", str(plugin), "--nccl", nccl, "--quiet", "--json", out.name, *without(plugin), *args]
        status, text, complaint = Program(argv, env).finish(LIMIT)
        written = pathlib.Path(out.name).read_text()
    if not written:
        raise Failed(f"{name}: exit status {status}: {complaint or text}")
    return json.loads(written)["results"]


def cell(results, seconds):
    """What the table says: how many cases passed, or why all were skipped."""
    passed, skipped = (sum(r["status"] == s for r in results) for s in ("pass", "skip"))
    if skipped == len(results):
        return results[0].get("seen", "skipped")
    return (f"{passed} of {len(results) - skipped}" + (f", {skipped} skipped" if skipped else "") +
            f", {seconds:.0f} s")


def facts():
    about = machine.describe(ROOT, os.environ.get("CC", "gcc"))
    libfabric = machine.first_line("pkg-config", "--modversion", "libfabric")
    return (f"{about['date']}; {about['cpu']}, {about['cores']} cores; Linux {about['kernel']}; libfabric {libfabric}; "
            f"railyard {about['railyard']}; load average before: {about['load_average_before']}")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--build", required=True, type=pathlib.Path, help="build directory")
    p.add_argument("--nccl", required=True, action="append", metavar="libnccl.so.2", help="may be repeated")
    p.add_argument("--column", action="append", metavar="OPTIONS",
                   help=f"options of rail-kit nccl, for each release; may be repeated ({'; '.join(COLUMNS)})")
    p.add_argument("--provider", default="tcp;ofi_rxm,shm", help="of libfabric, with commas; empty: none")
    p.add_argument("--plugin", action="append", default=[], metavar="NAME=FILE", help="one more row")
    p.add_argument("--env", action="append", default=[], metavar="NAME:VAR=VALUE",
                   help="an environment variable for one row; may be repeated")
    p.add_argument("--only", help="as of rail-kit nccl, in all columns")
    p.add_argument("--sizes", help="as of rail-kit nccl, in all columns")
    p.add_argument("--types", help="as of rail-kit nccl, in all columns")
    o = p.parse_args()
    build = o.build.resolve()
    rows = ours_and_nccls(build, [x for x in o.provider.split(",") if x])
    rows += [(*x.split("=", 1), {}) for x in o.plugin]
    env = environments(o, p)
    for name in set(env) - {name for name, _, _ in rows}:
        p.error(f"--env {name}: no such row; there are {', '.join(name for name, _, _ in rows)}")
    args = [w for name in ("only", "sizes", "types") if getattr(o, name) for w in (f"--{name}", getattr(o, name))]
    about = facts()
    head, body, bad = ["plugin"], [[name] for name, _, _ in rows], []
    for nccl in o.nccl:
        for options in o.column or COLUMNS:
            release = pathlib.Path(nccl).resolve().name.removeprefix("libnccl.so.")
            head.append(f"NCCL {release} `{options}`")
            for row, (name, plugin, variables) in zip(body, rows):
                began = time.monotonic()
                print(f"{name}, {head[-1]} …", file=sys.stderr, flush=True)
                results = run_kit(build / "bin/rail-kit", name, plugin, {**variables, **env.get(name, {})}, nccl,
                                  [*shlex.split(options), *args])
                row.append(cell(results, time.monotonic() - began))
                bad += [f"{name}, {head[-1]}: {r['name']}: {r['status']}: {r.get('seen', '')}" for r in results
                        if r["status"] not in ("pass", "skip")]
    print(f"{about}\n\n{markdown_table(head, body)}")
    print("\n".join(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as e:
        sys.exit(f"nccl: {e}")
