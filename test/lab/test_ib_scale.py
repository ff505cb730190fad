#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-LIMIT: 300
"""Many connections of the ib plugin in one process: what each has in the kernel, pinned memory, and what they cost
while nothing is sent. Times are printed, not compared: those of an emulated machine. RAIL_LAB_FULL=1: a thousand."""
import json
import os
import subprocess
import sys

sys.dont_write_bytecode = True
import lab
from lab import hosts, main
from ib_rig import FULL, pair, place, rig

MANY = 1000 if FULL else 100
IDLE = 100
KIB_PINNED = 24  # of each side: the plugin's five pages, one of the test's
LOOK_S = 4
HOLD_S = 600
TICKS = os.sysconf("SC_CLK_TCK")


def status(pid, name):
    """A line of /proc/PID/status: KiB, or a count."""
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return int(next(line for line in f if line.startswith(f"{name}:")).split()[1])


def queues_kib(pid):
    """The provider's queues: the kernel's memory, mapped."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as f:
        ranges = [line.split()[0].split("-") for line in f if "/dev/infiniband/uverbs" in line]
    return sum(int(end, 16) - int(start, 16) for start, end in ranges) / 1024


def objects(pid):
    """What the process has in the kernel."""
    def of(kind):
        done = subprocess.run(["rdma", "-j", "resource", "show", kind], text=True, capture_output=True, check=True)
        return sum(entry.get("pid") == pid for entry in json.loads(done.stdout))
    return {kind: of(kind) for kind in ("qp", "cq", "mr")}


def taken(pid):
    """(seconds of the processor, how often its first thread has waited) so far."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS, status(pid, "voluntary_ctxt_switches")


def seconds(begin, end):
    return (end["ns"] - begin["ns"]) / 1e9


def one_process():
    """Both ends of each."""
    nic = hosts[0].nics[0]
    env = place(hosts[0], [nic]) | {"RAIL_IB_CONNECT_TIMEOUT": "10m"}
    loop = rig.Process("loop", hosts[0].netns or None, env, comms=MANY, max=8, mix="small", window=1, idle="sleep")
    connected = loop.wait("connected", 150)
    loop.wait_bytes(8 * 2 * MANY, 60)
    found = objects(loop.pid)
    pinned, queues = status(loop.pid, "VmPin") / 2 / MANY, queues_kib(loop.pid) / 2 / MANY
    loop.tell("stop")
    result = loop.wait("result", 60)
    stopped = loop.wait("stopped", 60)
    loop.finish(30)
    print(f"# {MANY} connections, both ends: opened in {connected['took_ns'] / 1e9:.1f} s, closed in "
          f"{seconds(result, stopped):.1f} s; of each end {pinned:.1f} KiB registered and {queues:.1f} KiB of queues, "
          f"as this driver makes them")
    rig.check_clean(loop)
    started = loop.first("start")
    assert connected["threads"] - started["threads"] == 1, f"{connected['threads']} threads\n{loop.tail()}"
    assert connected["fds"] - started["fds"] <= 2 * MANY + 16, f"{connected['fds']} descriptors\n{loop.tail()}"
    if lab.controllable:  # another driver pins its queues, too, and flushes
        assert found == {"qp": 2 * MANY, "cq": 2 * MANY, "mr": 4 * MANY}, f"{MANY} connections have {found}"
        assert pinned <= KIB_PINNED, f"each end pins {pinned} KiB"


def least_taken(process):
    """The share of a processor in that half second of its rest in which it took least: an emulated processor's time
    counts what the machine gives to others, too, and whoever polls takes some in each."""
    shares, (cpu, _), since = [], taken(process.pid), rig.now()
    while not process.first("rested") and process.process.poll() is None:
        rig.at(since + 500_000_000)
        (cpu_now, _), now = taken(process.pid), rig.now()
        shares.append((cpu_now - cpu) / ((now - since) / 1e9))
        cpu, since = cpu_now, now
    return min(shares, default=process.first("rested")["cpu_ns"] / 1e9 / LOOK_S)


def waiting(progress):
    """What a receiver takes: (how often it waits while its connections wait for messages that do not come, and are
    tested all the time; the least share of a processor while it makes no call)."""
    env = {"RAIL_IB_PROGRESS": progress}
    p = pair(env, env, comms=IDLE, max=8, mix="small", window=1, send={"idle": "sleep"},
             recv={"idle": "spin", "rest": LOOK_S, "seconds": HOLD_S})
    resting = least_taken(p.recv)
    for process in p.both:
        process.wait_bytes(8 * IDLE, 30)
    p.send.tell(f"hold {HOLD_S * 1000}")
    p.send.wait("did", 10, command="hold")
    begin, (cpu, waits) = rig.now(), taken(p.recv.pid)
    rig.at(begin + LOOK_S * 1_000_000_000)
    passed, (cpu_end, waits_end) = rig.now() - begin, taken(p.recv.pid)
    p.send.tell("hold 1")
    rig.end_clean(p, 30)
    share, rested = (cpu_end - cpu) / (passed / 1e9), p.recv.first("rested")["cpu_ns"] / 1e9 / LOOK_S
    print(f"# {IDLE} connections, {progress}: a receiver whose connections wait takes {share:.0%} of a processor and "
          f"waits {waits_end - waits} times in {passed / 1e9:.1f} s; one that makes no call takes {rested:.1%}, "
          f"and in its quietest half second {resting:.1%}")
    return waits_end - waits, resting


def idle():
    if FULL:
        waiting("poll")
    waits, resting = waiting("event")
    assert resting < 0.05, f"{IDLE} connections that nobody tests take {resting:.1%} of a processor"
    assert waits > 100, f"it waited {waits} times in {LOOK_S} s"


if __name__ == "__main__":
    main([(f"{MANY} connections in one process", one_process),
          (f"{IDLE} idle connections", idle)])
