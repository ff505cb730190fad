#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plugins under NCCL's own host code, with no GPU (docs/nccl.md): releases of NCCL by plugins, one table.

Each cell is a run of `rail-kit nccl`. The ib plugin runs over the emulated verbs device, the ofi plugin over each
provider that is named: the environment of each row selects these."""
import argparse
import json
import pathlib
import sys
import tempfile
import time

sys.dont_write_bytecode = True
from program import Failed, Program
from report import markdown_table

LIMIT = 3600  # seconds for one cell


def ours(build, providers):
    """[(name, file, environment)]"""
    lib = build / "lib"
    verbs = lib / "emu/libibverbs.so.1"
    rows = [("RailSocket", lib / "libnccl-net-socket.so", {}),
            ("RailIB, emulated RoCE", lib / "libnccl-net-ib.so", {"NCCL_IBVERBS_LIB": str(verbs),
                                                                 "RAIL_EMU": "device emu0"})]
    return rows + [(f"RailOFI, {p}", lib / "libnccl-net-ofi.so", {"RAIL_OFI_PROVIDER": p}) for p in providers]


def without(plugin):
    """What is not run, as arguments: the ofi plugin keeps NCCL from LL128 (docs/protocol-ofi.md)."""
    return ["--skip", "*.LL128"] if pathlib.Path(plugin).name == "libnccl-net-ofi.so" else []


def cell(kit, name, plugin, env, nccl, ranks, args):
    """(how many passed, how many were skipped, lines of what failed)"""
    with tempfile.NamedTemporaryFile(prefix="rail-bench-", suffix=".json") as out:
        argv = [str(kit), "nccl", str(plugin), "--nccl", nccl, "--ranks", str(ranks), "--quiet", "--json", out.name,
                *without(plugin), *args]
        status, text, complaint = Program(argv, env).finish(LIMIT)
        written = pathlib.Path(out.name).read_text()
    if not written:
        raise Failed(f"{name}: exit status {status}: {complaint or text}")
    report = json.loads(written)
    failed = [f"{name}, {ranks} ranks: {r['name']}: {r['status']}: {r.get('seen', '')}" for r in report["results"]
              if r["status"] not in ("pass", "skip")]
    passed, skipped = (sum(r["status"] == s for r in report["results"]) for s in ("pass", "skip"))
    return passed, skipped, failed


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--build", required=True, type=pathlib.Path, help="build directory")
    p.add_argument("--nccl", required=True, action="append", metavar="libnccl.so.2", help="may be repeated")
    p.add_argument("--ranks", default="2,4", help="numbers of processes, with commas (2,4)")
    p.add_argument("--provider", default="tcp;ofi_rxm,shm", help="of libfabric, with commas; empty: none")
    p.add_argument("--plugin", action="append", default=[], metavar="NAME=FILE", help="one more row")
    p.add_argument("--only", help="as of rail-kit nccl")
    p.add_argument("--sizes", help="as of rail-kit nccl")
    p.add_argument("--types", help="as of rail-kit nccl")
    o = p.parse_args()
    build = o.build.resolve()
    rows = ours(build, [x for x in o.provider.split(",") if x])
    rows += [(*x.split("=", 1), {}) for x in o.plugin]
    args = [w for name in ("only", "sizes", "types") if getattr(o, name) for w in (f"--{name}", getattr(o, name))]
    head, body, bad = ["plugin"], [[name] for name, _, _ in rows], []
    for nccl in o.nccl:
        for ranks in o.ranks.split(","):
            release = pathlib.Path(nccl).resolve().name.removeprefix("libnccl.so.")
            head.append(f"NCCL {release}, {ranks} ranks")
            for row, (name, plugin, env) in zip(body, rows):
                began = time.monotonic()
                print(f"{name}, {head[-1]} …", file=sys.stderr, flush=True)
                passed, skipped, failed = cell(build / "bin/rail-kit", name, plugin, env, nccl, ranks, args)
                row.append(f"{passed} of {passed + len(failed)}" + (f", {skipped} skipped" if skipped else "") +
                           f", {time.monotonic() - began:.0f} s")
                bad += failed
    print(markdown_table(head, body))
    print("\n".join(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as e:
        sys.exit(f"nccl: {e}")
