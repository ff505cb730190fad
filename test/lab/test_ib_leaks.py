#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-LIMIT: 240
"""Connections of the ib plugin that came and went leave nothing: no queue pair, completion queue, region or domain in
the kernel, no descriptor, no thread, no memory. RAIL_LAB_FULL=1: a thousand of them."""
import ctypes
import signal
import sys
import time

sys.dont_write_bytecode = True
import lab
from lab import hosts, main
from ib_rig import FULL, pair, place, rig

CYCLES = 250 if FULL else 60
COMMS = 4
WARM = 3  # caches of allocators and kernel fill up at first
# What is lost is what the least of many looks has more in the last third of the cycles than in the first.
GROWTH = {"rss_kb": 400 if FULL else 300, "fds": COMMS}  # a connection has far more than 1 KiB, and a descriptor
PR_SET_THP_DISABLE = 41  # prctl(2)


def settled(before, seconds=60):
    """As before, or what is different after waiting for processes that are just ending."""
    deadline = time.monotonic() + seconds
    while (now := lab.resources()) != before and time.monotonic() < deadline:
        time.sleep(0.1)
    return {d: (before[d], now[d]) for d in before if now[d] != before[d]}


def nothing_left(before):
    left = settled(before)
    assert not left, f"left in the kernel (before, after): {left}"


def watched(process, device, limit):
    """During its cycles: {kind of object in the kernel: what was seen of it in each third of them}. For when it has
    ended the kernel takes back everything."""
    seen, until = {}, time.monotonic() + limit
    while process.process.poll() is None and time.monotonic() < until:
        now = lab.resources()[device]
        cycles = len(process.all("cycle"))
        if cycles == CYCLES:
            break
        for kind, count in now.items():
            seen.setdefault(kind, ([], [], []))[3 * cycles // CYCLES].append(count)
        time.sleep(0.02)
    return seen


def check_objects(seen):
    assert any(map(any, seen.get("qp", ()))), f"no queue pairs seen: {seen}"
    for kind, thirds in seen.items():
        first, last = (min(thirds[i], default=0) for i in (0, 2))
        assert last <= first + 2 * COMMS, f"{kind}: more and more in the kernel, by thirds of the cycles: {thirds}"
    print("# in the kernel during the last third of the cycles: " +
          ", ".join(f"{min(t[2])} to {max(t[2])} {kind}" for kind, t in seen.items() if t[2]))


def check_cycles(process, cycles):
    """The last cycles have ended like the first few."""
    seen = process.all("cycle")
    assert len(seen) == cycles, f"{len(seen)} cycles, not {cycles}\n{process.tail()}"
    threads = {e["threads"] for e in seen[WARM:]}
    assert len(threads) == 1, f"{process}: threads from cycle to cycle: {threads}"
    third = (cycles - WARM) // 3
    for what, most in GROWTH.items():
        values = [e[what] for e in seen[WARM:]]
        grown = min(values[-third:]) - min(values[:third])
        assert grown <= most, f"{process}: {what}, {grown} more after {cycles} cycles: {values}"
        print(f"# {process.role}: {cycles * COMMS} connections, {what} {grown} more, {values[-1]} at the end")


def one_process():
    """Both ends in one process, on one device."""
    before = lab.resources()
    host = hosts[0]
    # A heap that the kernel moves into a huge page has up to 2 MiB more at once. Children inherit this.
    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, *map(ctypes.c_ulong, (1, 0, 0, 0)))
    # Closed ones soon go: else memory is that of those that linger, and the machine's speed decides how many they are.
    soon = place(host) | {"RAIL_IB_LINGER": "100ms"}
    loop = rig.Process("loop", host.netns or None, soon, cycles=CYCLES, comms=COMMS, seconds=0.02, max=2000,
                       mix="small", idle="sleep")
    seen = watched(loop, host.nics[0].rdma, 600 if FULL else 120)
    loop.finish(30)
    rig.check_clean(loop)
    check_cycles(loop, CYCLES)
    check_objects(seen)
    nothing_left(before)


def two_hosts(nics=(0,), **options):
    before = lab.resources()
    for _ in range(6 if FULL else 2):
        p = pair(comms=COMMS, max=2000, mix="small", idle="sleep", nics=nics, **options)
        for process in p.both:
            process.wait_bytes(1000, 20)
        rig.end_clean(p, 30)
    nothing_left(before)


def killed():
    """The kernel gives back what a process had."""
    before = lab.resources()
    p = pair(comms=COMMS, max=100000, idle="sleep")
    for process in p.both:
        process.wait_bytes(100000, 20)
    assert any(v["qp"] > before[d]["qp"] for d, v in lab.resources().items()), "no queue pair is seen at all"
    p.send.signal(signal.SIGKILL)
    p.recv.finish(30)
    rig.check_sound(p.recv)
    nothing_left(before)


def given_up():
    """A connection that never comes about."""
    before = lab.resources()
    p = pair({"NCCL_IB_ADDR_FAMILY": "AF_INET6"}, {"NCCL_IB_ADDR_FAMILY": "AF_INET"}, connect=False, comms=COMMS)
    p.listening()
    p.send.tell("handles " + p.handles)
    p.send.wait("error", 20)
    p.kill()
    nothing_left(before)


if __name__ == "__main__":
    main([("connections in one process", one_process), ("connections between hosts", two_hosts),
          ("fused devices", lambda: two_hosts((0, 1), env={"NCCL_IB_QPS_PER_CONNECTION": "4"})),
          ("a process killed", killed), ("refused pairs", given_up)])
