#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How many instructions the ofi plugin and libfabric need for each call, by callgrind.

Over shm and tcp;ofi_rxm, both sides in one process. Of tcp;ofi_rxm small messages only: larger ones take a number of
tests that depends on the machine."""
import argparse
import json
import pathlib
import sys

sys.dont_write_bytecode = True
import instructions
from instructions import CALLS, MESSAGE
from program import RUN_LIMIT, Failed
from report import markdown_table, size_name, text_table

OURS = "lib/libnccl-net-ofi.so"
SETTINGS = [("shm", 8), ("tcp;ofi_rxm", 8), ("shm", 65536)]  # provider, bytes


def environment(provider):
    return {"NCCL_SOCKET_IFNAME": "lo", "FI_PROVIDER": provider.split(";")[0], "FI_TCP_IFACE": "lo",
            "RAIL_OFI_PROVIDER": provider, "RAIL_OFI_CONNECT_TIMEOUT": str(RUN_LIMIT * 1000)}


def is_libfabric(path):
    return "libfabric.so" in pathlib.Path(path).name


def measure(build):
    """[{"provider", "size", "call", "ours", "libfabric"}]"""
    rows, plugin = [], build / OURS
    for provider, size in SETTINGS:
        for name, call in CALLS.items():
            ours, below = instructions.count(build, plugin, size, environment(provider), call, is_libfabric)
            rows.append({"provider": provider, "size": size, "call": name, "ours": ours, "libfabric": below})
    return rows


def table(rows):
    """(caption, head, body): ours + libfabric's."""
    def cell(calls, setting):
        chosen = [r for r in rows if r["call"] in calls and (r["provider"], r["size"]) == setting]
        return " + ".join(f"{sum(r[whose] for r in chosen):.0f}" for whose in ("ours", "libfabric"))

    head = ["call"] + [f"{provider}, {size_name(size)}" for provider, size in SETTINGS]
    body = [[name] + [cell([name], s) for s in SETTINGS] for name in CALLS]
    body.append(["a message"] + [cell(MESSAGE, s) for s in SETTINGS])
    return ("instructions of the plugin and of the libc that it calls + those below libfabric's functions, for each "
            "call; a message: irecv, isend, one test each", head, body)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--build", required=True, type=pathlib.Path, help="build directory")
    p.add_argument("--json", action="store_true", help="JSON instead of a table")
    o = p.parse_args()
    build = o.build.resolve()
    try:
        if why := instructions.missing(build, [OURS]):
            raise Failed(why)
        rows = measure(build)
    except Failed as why:
        print(f"bench: {why}", file=sys.stderr)
        return 1
    caption, head, body = table(rows)
    print(json.dumps(rows, indent=1) if o.json
          else f"{caption}\n{text_table(head, body)}\n\n{markdown_table(head, body)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
