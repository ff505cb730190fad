#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs bench-ib's plan where the RDMA ports are: ib_measure.py FOLDER reads plan.json there and writes rows.json."""
import json
import os
import pathlib
import sys
import time

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "test/lab"))
import machine
from ib_columns import Cell, lab_ports, make_cells, make_columns, own_ports
from program import Failed
from results import alternate

NETDEV_MTU = {4096: 9000, 2048: 2200, 1024: 1500}  # the smallest usual one that leaves RDMA this much


def say(text):
    print(f"bench: {text}", flush=True)


class Mtu:
    """Set where the lab allows it; else what the ports have."""

    def __init__(self):
        self.now = None

    def set(self, mtu):
        if mtu == self.now or not os.environ.get("RAIL_LAB_GUEST"):
            return
        from lab import hosts, port, set_mtu
        set_mtu(NETDEV_MTU[mtu])
        got = port(hosts[0].nics[0]).active_mtu
        if got != mtu:
            raise Failed(f"the ports have an RDMA MTU of {got}, not {mtu}")
        self.now = mtu


def try_columns(columns, cells, plan):
    """What cannot be driven at all ends the run at once, with its reason."""
    for column in columns:
        cell = next((c for c in cells if column.has(c)), None)
        result = column.run(cell, {}, 0.05, 0.1) if cell else {"verdict": "ok"}
        if result["verdict"] != "ok":
            raise Failed(f"{column.title} does not work at all: {result['what']}\n{result.get('said', '')}")
        wanted = plan["wires"].get(column.key)
        if wanted and result["wire"] != wanted:
            raise Failed(f"{column.title}: the plugin calls itself {result['wire']}, not {wanted}")


def measure(plan):
    ports = lab_ports() if plan["devices"] is None else own_ports(plan["devices"], plan["gid_index"])
    columns = [c for c in make_columns(ports, plan["program"], plan["plugins"], plan["env"]) if c.key in plan["only"]]
    cells, mtu = make_cells(plan["sizes"], plan["qps"], plan["metrics"], plan["idle"], plan["window"]), Mtu()
    jobs = [({"mtu": m}, cell) for m in plan["mtus"] for cell in cells]

    def run(column, noted, cell):
        mtu.set(noted["mtu"])
        result = column.run(cell, {}, plan["warmup"], plan["seconds"])
        if result["verdict"] != "ok":
            say(f"{column.title}, {cell.kind} {cell.size} bytes, {cell.qps} QPs: {result['verdict']}: {result['what']}")
        return result

    mtu.set(plan["mtus"][0])
    try_columns(columns, cells, plan)
    start = time.monotonic()
    rows, loads = alternate(columns, jobs, plan["rounds"], run, say)
    shown = {c.key: next((x for x in cells if c.has(x) and x.size >= 65536), next(filter(c.has, cells), None))
             for c in columns}
    return {"rows": rows, "loads": loads, "seconds": round(time.monotonic() - start, 1), "kernel": os.uname().release,
            "perftest": machine.first_line("ib_write_bw", "--version"),
            "libibverbs": machine.first_line("dpkg-query", "-W", "-f", "${Version}", "libibverbs1"),
            "devices": ports.devices,
            "columns": {c.key: {"title": c.title, "wire": c.wire,
                                "command": c.shown(shown[c.key], plan["warmup"], plan["seconds"])}
                        for c in columns if shown[c.key]}}


def main():
    folder = pathlib.Path(sys.argv[1])
    try:
        found = measure(json.loads((folder / "plan.json").read_text()))
    except Failed as why:
        print(f"bench: {why}", file=sys.stderr)
        return 1
    (folder / "rows.json").write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
