#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How many instructions the ib plugin needs for each call, by callgrind, and those of a peer.

Over the emulated device (docs/emu.md), which is left out of the count, as hardware and its provider would be. The same
program gives the same numbers, on any machine of its kind."""
import argparse
import json
import pathlib
import sys

sys.dont_write_bytecode = True
import instructions
from instructions import CALLS, MESSAGE, MESSAGES
from program import Failed
from report import markdown_table, size_name, text_table

OURS, PROVIDER = "lib/libnccl-net-ib.so", "lib/emu/libibverbs.so.1"
SETTINGS = [(8, 1), (65536, 1), (65536, 4)]  # bytes, queue pairs


def environment(build, qps):
    """A plugin that is linked with libibverbs, or opens it by its usual names, finds it by the library path; the GID is
    that of RoCE v2 and IPv4, for those who read sysfs for it."""
    provider = build / PROVIDER
    return {"NCCL_IBVERBS_LIB": str(provider), "LD_LIBRARY_PATH": str(provider.parent), "RAIL_EMU": "device emu0",
            "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_GID_INDEX": "3", "NCCL_IB_QPS_PER_CONNECTION": str(qps),
            "NCCL_IB_SPLIT_DATA_ON_QPS": str(int(qps > 1))}


def asked(build, plugin, size, qps):
    """{kind of call: {verb: how often for one call}}"""
    found = {}
    for line in instructions.exchange(build, plugin, size, environment(build, qps)).splitlines():
        kind, verb, n = line.split()
        if int(n) > 0:
            found.setdefault(kind, {})[verb] = int(n) / MESSAGES
    return found


def counted(build, plugin, size, qps, call):
    """The plugin's instructions for one call of that kind."""
    provider = str(build / PROVIDER)
    ours, _ = instructions.count(build, plugin, size, environment(build, qps), call, lambda path: path == provider)
    return ours


def measure(build, plugin=None):
    """[{"size", "qps", "call", "instructions", "provider"}]"""
    rows, plugin = [], plugin or build / OURS
    for size, qps in SETTINGS:
        provider = asked(build, plugin, size, qps)
        rows += [{"size": size, "qps": qps, "call": name, "instructions": counted(build, plugin, size, qps, call),
                  "provider": provider.get(call, {})} for name, call in CALLS.items()]
    return rows


def table(rows):
    """(caption, head, body): instructions, and in brackets what is asked of the provider."""
    def cell(row):
        posts = ", ".join(f"{n:g} {name}" for name, n in row["provider"].items())
        return f"{row['instructions']:.0f}" + (f" ({posts})" if posts else "")

    def find(call, setting):
        return next(r for r in rows if r["call"] == call and (r["size"], r["qps"]) == setting)

    head = ["call"] + [f"{size_name(s)}, {q} QP{'s' if q > 1 else ''}" for s, q in SETTINGS]
    body = [[name] + [cell(find(name, s)) for s in SETTINGS] for name in CALLS]
    body.append(["a message"] + [f"{sum(find(c, s)['instructions'] for c in MESSAGE):.0f}" for s in SETTINGS])
    return ("instructions of the plugin for each call, the provider's left out (in brackets: its calls into the "
            "provider); a message: irecv, isend, one test each", head, body)


def beside(ours, peers, peer):
    """The same of two plugins, and ours in relation to the peer's."""
    def cell(ours, peers):
        return f"{ours:.0f} / {peers:.0f} = {ours / peers:.2f}"

    def find(rows, call, setting):
        return next(r["instructions"] for r in rows if r["call"] == call and (r["size"], r["qps"]) == setting)

    head = ["call"] + [f"{size_name(s)}, {q} QP{'s' if q > 1 else ''}" for s, q in SETTINGS]
    body = [[name] + [cell(find(ours, name, s), find(peers, name, s)) for s in SETTINGS] for name in CALLS]
    body.append(["a message"] + [cell(*(sum(find(rows, c, s) for c in MESSAGE) for rows in (ours, peers)))
                                 for s in SETTINGS])
    return f"instructions for each call, the provider's left out: ours / {peer}'s = ratio", head, body


def possible(build):
    """None, or why it cannot be counted here."""
    return instructions.missing(build, [PROVIDER, OURS])


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--build", required=True, type=pathlib.Path, help="build directory")
    p.add_argument("--peer", type=pathlib.Path, metavar="PLUGIN.so",
                   help="another plugin over verbs, beside ours: docs/emu.md has how NCCL's own becomes one")
    p.add_argument("--json", action="store_true", help="JSON instead of a table")
    o = p.parse_args()
    build = o.build.resolve()
    try:
        if why := possible(build):
            raise Failed(why)
        rows = measure(build)
        peers = measure(build, o.peer.resolve()) if o.peer else None
    except Failed as why:
        print(f"bench: {why}", file=sys.stderr)
        return 1
    if o.json:
        print(json.dumps({"ours": rows, "peer": peers} if peers else rows, indent=1))
        return 0
    tables = [table(rows)] + ([table(peers), beside(rows, peers, o.peer.stem)] if peers else [])
    for caption, head, body in tables:
        print(f"{caption}\n{text_table(head, body)}\n\n{markdown_table(head, body)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
