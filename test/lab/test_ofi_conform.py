#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-LIMIT: 600
"""rail-kit conform over the ofi plugin and libfabric's verbs;ofi_rxm, on Soft-RoCE.

Both sides are in the namespace of the devices, for the RDMA CM, by which this provider connects, finds addresses there
only; their oob connections go over lo. A chosen few checks, for the lab's guest is slow. All of them:
make lab CMD='RAIL_LAB_FULL=1 python3 test/lab/test_ofi_conform.py' LIMIT=7200.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import lab
from lab import BUILD, hosts, report

KIT = BUILD / "bin/rail-kit"
OFI = BUILD / "lib/libnccl-net-ofi.so"
FULL = os.environ.get("RAIL_LAB_FULL", "0") not in ("", "0")
LIMIT = 6000 if FULL else 400

# What the processors of an emulated machine decide, what only gigabytes show, and what libfabric does.
SKIPPED = {
    "cost": "measures the machine",
    "sizes.*gigabyte*": "the guest has no memory for it",
    "connect.no_call_waits": "system calls of an emulated machine take milliseconds",
    "processes.programs_started_meanwhile": "libfabric opens sockets without SOCK_CLOEXEC",
}
# Each kind of thing once.
FEW = ("lifecycle.contexts_meet,properties.values_are_in_range,connect.many_across,requests.all_requests_outstanding,"
       "sizes.against_guard_pages,grouped.a_large_and_a_small,order.any_order,mr.nothing_is_written_after_dereg,"
       "close.with_requests_outstanding,peer_death.killed_sender_mid_transfer")
USUAL = {"FI_PROVIDER": "verbs", "RAIL_OFI_PROVIDER": "verbs;ofi_rxm", "NCCL_SOCKET_IFNAME": "=lo",
         # ofi_rxm makes completion queues for so many peers, by default for 1024: more entries than rxe allows (32767).
         "FI_UNIVERSE_SIZE": "4",
         # Without it ofi_rxm may post a receive at an endpoint that it has just closed (rxm_close_conn): a crash.
         "FI_OFI_RXM_USE_SRX": "1",
         "RAIL_OFI_CONNECT_TIMEOUT": "9s"}  # the kit waits 10 s


def conform(protocol, options):
    sides = [word for i, host in enumerate(hosts[:2])
             for word in ("--side-env", f"{i}:RAIL_OFI_DOMAIN={host.nics[0].rdma}")]
    with tempfile.TemporaryDirectory() as scratch:
        reasons = pathlib.Path(scratch) / "reasons"
        reasons.write_text("".join(f"{pattern} {reason}\n" for pattern, reason in SKIPPED.items()))
        argv = [KIT, "conform", OFI, "--json", "-", "--skip-file", reasons, *sides, *options]
        done = subprocess.run(list(map(str, argv)), env=os.environ | USUAL | {"RAIL_OFI_PROTOCOL": protocol},
                              capture_output=True, text=True, timeout=LIMIT)
    try:
        return done.returncode, json.loads(done.stdout)["results"], done.stderr
    except (ValueError, KeyError):
        return done.returncode, [], f"no report\n{done.stdout}{done.stderr}"


def results(protocol, options):
    began = time.monotonic()
    status, found, errors = conform(protocol, options)
    print(f"# {protocol}: {len(found)} checks in {time.monotonic() - began:.0f} s", flush=True)
    for r in found:
        name = f"{protocol}: {r['name']}"
        if r["status"] == "skip":
            yield f"{name} # SKIP {r['seen']}", ""
        else:
            yield name, "\n".join([f"{r['status']}: {r['seen']}", *r["log"], r["again"]]) if r["bad"] else ""
    if not found or status not in (0, 1) or errors.strip():
        yield f"{protocol} ends with a report, and says nothing else", f"exit status {status}\n{errors}"


def moved(cases):
    """The bytes went over the devices, and not around them."""
    before = [lab.bytes_sent(host.nics[0]) for host in hosts[:2]]
    yield from cases
    sent = [lab.bytes_sent(host.nics[0]) - b for host, b in zip(hosts, before)]
    yield "the devices carried it", "" if max(sent) > 4 << 20 and min(sent) > 20000 else f"they sent {sent} bytes"


def cases():
    if not OFI.exists():
        yield "the ofi plugin # SKIP it is not built: libfabric's headers are missing", ""
        return
    yield from results("rma", [] if FULL else ["--only", FEW])
    if FULL:
        yield from results("tagged", [])


if __name__ == "__main__":
    sys.exit(report(moved(cases()) if lab.controllable else cases()))
