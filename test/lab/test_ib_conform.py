#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-LIMIT: 900
"""rail-kit conform over the ib plugin on RDMA devices, between two hosts: every version of the vtable, one NIC and two
fused ones, one to eight queue pairs, MTUs, IPv4 and IPv6 GIDs, with a key.

A chosen few checks for each, for the lab's guest is slow. More of them take an hour and more:
make lab CMD='RAIL_LAB_FULL=1 python3 test/lab/test_ib_conform.py' LIMIT=7200. Words behind it choose configurations;
the word matrix chooses connections by TCP and the RDMA CM, each with both protocols, polled and by events:
make lab HOSTS=2 NICS=1 LIMIT=1800 CMD='python3 test/lab/test_ib_conform.py matrix'.
"""
import contextlib
import itertools
import json
import os
import pathlib
import secrets
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import lab
from lab import BUILD, Skip, hosts, report

KIT = BUILD / "bin/rail-kit"
IB = BUILD / "lib/libnccl-net-ib.so"
FULL = os.environ.get("RAIL_LAB_FULL", "0") not in ("", "0")
LIMIT = 5400 if FULL else 400

# What the processors of an emulated machine decide, or only gigabytes show, or one host: nothing of it is the plugin's.
MACHINE = {
    "properties.processes_agree": "the two processes stand for two hosts, with different devices",
    "cost": "measures the machine",
    "sizes.*gigabyte*": "the guest has no memory for it",
    "connect.no_call_waits": "system calls of an emulated machine take milliseconds",
}
# With the newest table: each kind of thing once.
FEW = ("lifecycle.contexts_meet,properties.fused*,listen.a_greeting_with_one_wrong_byte,connect.many_across,"
       "requests.all_requests_outstanding,sizes.against_guard_pages,sizes.send_larger_than_receive_in_a_group,"
       "order.any_order,grouped.operations_share_a_comm,mr.nothing_is_written_after_dereg,"
       "close.with_requests_outstanding,close.the_last_message_still_arrives,peer_death.killed_sender_mid_transfer,"
       "peer_death.killed_listener,processes.forks_during_traffic,attrs.profiler_events_are_ended_once")
# An older table is a translation of the newest, and contract/test_conform.py walks all of them: each call of the oldest
# once. A receive of several buffers, a size that is reported.
OLD = "grouped.every_order_of_tags,sizes.receive_larger_than_send"
# Where messages are cut into parts: 3 MiB and 3 bytes.
CUT = "grouped.a_large_and_a_small"
# What the cells of the matrix show: set-up, the data path, ends. Without two checks that a busy machine decides:
# connect.one_process_at_a_time gives set-up eight turns of 100 ms, of which the RDMA CM needs more than TCP, and
# close.both_directions_at_once takes 30 of its 60 s here when nothing else runs.
CELL = ("lifecycle.contexts_meet,listen.closed_with_a_half*,listen.a_greeting_with_one_wrong_byte,"
        "connect.several_to_one_listener,connect.many_across,connect.send_before*,connect.dead_port,"
        "requests.all_requests_outstanding,sizes.against_guard_pages,sizes.sixteen*,sizes.send_larger*,"
        "order.nccl_steps,order.any_order,order.unshared*,grouped.every_order_of_tags,"
        "grouped.operations_share_a_comm,grouped.a_large*,optional.eight_steps,flush.after_a_receive,"
        "mr.nothing_is_*_after_dereg,close.with_requests_outstanding,close.the_last*,peer_death.killed*,"
        "processes.forks_during_traffic")
# And what of it all of the time there is.
CUT_FULL = "sizes,order,flood.*_order,grouped,optional.eight_steps,mr.*_after_*,close,peer_death.killed*"


CARRIED = (1000, 100000)  # bytes that a device sends at least: the receiver's answers, the sender's messages

# NCCL has no timeout here, the plugin's RAIL_IB_CONNECT_TIMEOUT; the kit's is 10 s.
SHORT = {"RAIL_IB_CONNECT_TIMEOUT": "9s"}


def qps(count, split, **more):
    return {"NCCL_IB_QPS_PER_CONNECTION": str(count), "NCCL_IB_SPLIT_DATA_ON_QPS": str(split), **more}


class Configuration:
    """few: the checks if there is little time, None: none. full: which, if there is more."""

    def __init__(self, name, few, env=None, options=(), mtu=1500, abi=12, key=False, full=("--only", CUT_FULL)):
        self.name, self.few, self.env, self.options = name, few, env or {}, list(options)
        self.mtu, self.abi, self.key, self.full = mtu, abi, key, full


def configurations():
    fused = ["--fuse", "0,1"]
    small = {"RAIL_IB_MIN_PART": "128", "RAIL_IB_MAX_WRITE": "4K"}
    yield Configuration("v12", FEW, full=[])
    for abi in range(11, 5, -1):
        yield Configuration(f"v{abi}", OLD if abi == 6 else None, abi=abi, full=["--level", "must"])
    yield Configuration("2 NICs", "order.any_order", options=fused)
    for abi in range(11, 8, -1):
        yield Configuration(f"2 NICs v{abi}", None, options=fused, abi=abi, full=["--only", "sizes,grouped"])
    yield Configuration("2 NICs, 8 QPs each, split", CUT, qps(8, 1, **small), fused)
    yield Configuration("4 QPs", None, qps(4, 0))
    yield Configuration("4 QPs, split", CUT, qps(4, 1))
    yield Configuration("by SEND", "sizes.against_guard_pages,requests.all_requests_outstanding,"
                        "mr.nothing_is_written_after_dereg,close.with_requests_outstanding",
                        {"RAIL_IB_PROTOCOL": "send"})
    yield Configuration("2 NICs, 4 QPs each, split, by SEND", None, qps(4, 1, RAIL_IB_PROTOCOL="send"), fused,
                        full=["--only", "sizes"])
    yield Configuration("by events", "order.any_order,close.with_requests_outstanding,"
                        "peer_death.killed_sender_mid_transfer", {"RAIL_IB_PROGRESS": "event"})
    yield Configuration("2 NICs, 4 QPs each, split, by events", None, qps(4, 1, RAIL_IB_PROGRESS="event"), fused)
    yield Configuration("by the RDMA CM", "lifecycle.contexts_meet,peer_death.killed_sender_mid_transfer",
                        {"RAIL_IB_CM": "rdmacm"})
    yield Configuration("by the RDMA CM, SEND and events", "close.with_requests_outstanding,"
                        "peer_death.killed_sender_mid_transfer",
                        {"RAIL_IB_CM": "rdmacm", "RAIL_IB_PROTOCOL": "send", "RAIL_IB_PROGRESS": "event"})
    yield Configuration("8 QPs", None, qps(8, 0))
    yield Configuration("8 QPs, split, small parts and writes", CUT, qps(8, 1, **small))
    yield Configuration("1 QP, small writes", None, small)
    yield Configuration("no inline", None, {"NCCL_IB_USE_INLINE": "0"})
    yield Configuration("MTU 4096", CUT, mtu=9000)
    yield Configuration("IPv6", CUT, {"NCCL_IB_ADDR_FAMILY": "AF_INET6"})
    yield Configuration("a key", "connect.one_process_at_a_time,listen.a_greeting_with_one_wrong_byte", key=True)


@contextlib.contextmanager
def prepared(c):
    """Its MTU and its key; yields the environment."""
    if "--fuse" in c.options and len(hosts[0].nics) < 2:
        raise Skip("one device a host")
    with tempfile.TemporaryDirectory() as scratch:
        env = SHORT | ({"RAIL_NET_FUSE_NO_PCI": "1"} if "--fuse" in c.options else {}) | c.env
        if c.key:
            env["RAIL_IB_AUTH_FILE"] = f"{scratch}/key"
            pathlib.Path(env["RAIL_IB_AUTH_FILE"]).write_text(secrets.token_hex(32))
            os.chmod(env["RAIL_IB_AUTH_FILE"], 0o600)
        if c.mtu != 1500:
            lab.set_mtu(c.mtu)
        try:
            yield env
        finally:
            if c.mtu != 1500:
                lab.set_mtu(1500)


def by_rdmacm(c):
    return c.env.get("RAIL_IB_CM") == "rdmacm"


def places(c):
    """Both sides' hosts, for one rail-kit that has both. The RDMA CM finds addresses in the namespace of the devices
    only, so who connects by it is there, with its TCP over lo."""
    words, apart = [], hosts[0].netns and not by_rdmacm(c)
    for i, host in enumerate(hosts[:2]):
        _, env = lab.command(host, [])
        own = {"NCCL_IB_HCA": env["NCCL_IB_HCA"], "NCCL_SOCKET_IFNAME": env["NCCL_SOCKET_IFNAME"] if apart else "=lo"}
        for name, value in own.items():
            words += ["--side-env", f"{i}:{name}={value}"]
    return words + (["--netns", ",".join(h.netns for h in hosts[:2])] if apart else [])


def cells():
    """The matrix: by what connections are set up, the protocol, how tests wait."""
    for cm, protocol, progress in itertools.product(("tcp", "rdmacm"), ("write", "send"), ("poll", "event")):
        yield Configuration(f"{cm}, {protocol}, {progress}", CELL, full=["--only", f"{CUT_FULL},connect,listen"],
                            env={"RAIL_IB_CM": cm, "RAIL_IB_PROTOCOL": protocol, "RAIL_IB_PROGRESS": progress})


def conform(c, env, scratch):
    reasons = scratch / "reasons"
    reasons.write_text("".join(f"{pattern} {reason}\n" for pattern, reason in MACHINE.items()))
    argv = [KIT, "conform", IB, "--abi", str(c.abi), "--json", "-", "--skip-file", reasons, *c.options, *places(c)]
    argv += c.full if FULL else ["--only", c.few]
    done = subprocess.run([str(word) for word in argv], env=os.environ | env, text=True, capture_output=True,
                          timeout=LIMIT)
    try:
        return done.returncode, json.loads(done.stdout)["results"], done.stderr
    except (ValueError, KeyError):
        return done.returncode, [], f"no report\n{done.stdout}{done.stderr}"


def bytes_sent():
    return [lab.bytes_sent(host.nics[0]) if lab.controllable else 0 for host in hosts[:2]]


def results(c):
    before = bytes_sent()
    with prepared(c) as env, tempfile.TemporaryDirectory() as scratch:
        began = time.monotonic()
        status, found, errors = conform(c, env, pathlib.Path(scratch))
        print(f"# {c.name}: {len(found)} checks in {time.monotonic() - began:.0f} s", flush=True)
    for r in found:
        name = f"{c.name}: {r['name']}"
        if r["status"] == "skip":
            yield f"{name} # SKIP {r['seen']}", ""
        else:
            yield name, "\n".join([f"{r['status']}: {r['seen']}", *r["log"], r["again"]]) if r["bad"] else ""
    sent = [now - b for now, b in zip(bytes_sent(), before)]
    if by_rdmacm(c) and lab.controllable:  # in the namespace of all devices there could be a way around them
        enough = all(map(int.__ge__, sorted(sent), CARRIED))
        yield f"{c.name}: the devices carried it", "" if enough else f"they sent {sent} bytes"
    if not found or status not in (0, 1) or errors.strip():
        yield f"{c.name} ends with a report, and says nothing else", f"exit status {status}\n{errors}"


def cases():
    chosen, all_cells = sys.argv[1:], list(cells())
    if "matrix" in chosen:
        chosen = [c.name for c in all_cells]
    for c in [*configurations(), *(c for c in all_cells if c.name in chosen)]:
        if (chosen and c.name not in chosen) or not (FULL or c.few):
            continue
        try:
            yield from results(c)
        except Skip as reason:
            yield f"{c.name} # SKIP {reason}", ""


if __name__ == "__main__":
    sys.exit(report(cases()))
