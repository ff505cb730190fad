#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several streams of one connection where each TCP flow has a rate of its own, as in clouds that cap a flow:

    make build/test/fault/traffic build/lib/libnccl-net-socket.so && python3 bench/flows.py

Two network namespaces, joined by a pair of veth; HTB gives each flow of the sender its rate. First all flows have the
same, then one of them a tenth. Every byte is checked. Needs root, ip, tc and ss (Debian: iproute2).
"""
import argparse
import pathlib
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "test/harness"))
from rig import Rails, Skip, end_clean

CONNECT_S = 0.5  # until all flows are there
STEADY_S = 2     # with the rates, until figures count
SLOW = 10        # a slow flow has this part of the others' rate
PAYLOAD = 1448 / 1514  # of an Ethernet frame without FCS: IPv4, TCP with timestamps


def run(*words):
    done = subprocess.run([str(w) for w in words], text=True, capture_output=True)
    if done.returncode:
        raise Skip(f"{' '.join(map(str, words[:6]))} …: {done.stderr.strip()}")
    return done.stdout


def flows(net):
    """The sender's ports."""
    lines = run("ip", "netns", "exec", net.spaces[0], "ss", "-Htn", "state", "established", "dst", net.addresses[1][0])
    return [line.split()[2].rsplit(":", 1)[1] for line in lines.splitlines()]


def cap(net, ports, rates):
    """A class of HTB for each flow, the rest without limit. Mb/s."""
    def tc(what, *words):
        run("tc", "-n", net.spaces[0], what, "replace" if what != "filter" else "add", "dev", net.names[0][0], *words)
    tc("qdisc", "root", "handle", "1:", "htb", "default", 1)
    tc("class", "parent", "1:", "classid", "1:1", "htb", "rate", "100gbit")
    for i, (port, rate) in enumerate(zip(ports, rates)):
        name = f"1:{i + 10}"
        tc("class", "parent", "1:", "classid", name, "htb", "rate", f"{rate}mbit", "burst", "64k", "cburst", "64k")
        tc("filter", "parent", "1:", "protocol", "ip", "prio", 1, "u32", "match", "ip", "sport", port, "0xffff",
           "flowid", name)


def measure(net, o, size, rates):
    """The payload that arrived, over what the flows may carry of it."""
    env = {"RAIL_SOCKET_STREAMS": str(o.streams), "RAIL_SOCKET_CONGESTION": o.cc}
    pair = net.pair([0], env=env, mix="fixed", max=size, window=o.window, direct=1, idle="sleep")
    time.sleep(CONNECT_S)
    ports = flows(net)
    if len(ports) != o.streams:
        raise Skip(f"{len(ports)} flows are there, not {o.streams}")
    cap(net, ports, rates)
    time.sleep(STEADY_S)
    first = pair.recv.all("progress")[-1]
    time.sleep(o.seconds)
    last = pair.recv.all("progress")[-1]
    run("tc", "-n", net.spaces[0], "qdisc", "del", "dev", net.names[0][0], "root")
    end_clean(pair)
    return (last["bytes"] - first["bytes"]) * 8e3 / (last["ns"] - first["ns"]) / (sum(rates) * PAYLOAD)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--mbit", type=int, default=500, help="of a flow, in Mb/s (500)")
    p.add_argument("--streams", type=int, default=8)
    p.add_argument("--sizes", default="128,512,4096", help="of messages, in KiB (128,512,4096)")
    p.add_argument("--window", type=int, default=8, help="messages under way (8)")
    p.add_argument("--cc", default="cubic", help="congestion control (cubic)")
    p.add_argument("--seconds", type=float, default=2, help="of a run that count (2)")
    p.add_argument("--rounds", type=int, default=3)
    o = p.parse_args()
    equal = [o.mbit] * o.streams
    one_slow = [o.mbit // SLOW] + equal[1:]
    net = Rails(1, "f")
    try:
        print(f"| {o.streams} flows of {o.mbit} Mb/s, {o.cc}, {o.window} messages of | all alike | one at a tenth |\n"
              "|---:|---:|---:|")
        for size in map(int, o.sizes.split(",")):
            cells = []
            for rates in (equal, one_slow):
                shares = [measure(net, o, size << 10, rates) for _ in range(o.rounds)]
                cells.append(f"{statistics.median(shares):.2f} ({min(shares):.2f}-{max(shares):.2f})")
            print(f"| {size} KiB | {' | '.join(cells)} |", flush=True)
    except Skip as why:
        sys.exit(f"flows.py: {why}")
    finally:
        net.remove()


if __name__ == "__main__":
    main()
