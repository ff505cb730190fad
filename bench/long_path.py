#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The socket plugin over a long path that loses packets, beside iperf3 with as many streams, in the lab's guest:

    make lab HOSTS=2 NICS=1 LIMIT=900 CMD='python3 bench/long_path.py'

netem delays what either host sends by half of the round trip and drops some of what the sender sends. Packets leave
the hosts as they would leave a card, in frames of 1,500 bytes: else netem would drop 64 KiB at a time. Each round runs
iperf3, then the plugin with each size; every byte of the plugin's is checked. Needs iperf3 (Debian: iperf3).
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "test/lab"), str(ROOT / "test/harness")]
import lab  # noqa: E402
import rig  # noqa: E402
from lab import hosts  # noqa: E402

rig.SLOW = 4  # an emulated machine
NO_LIMIT = 100000  # packets that netem may hold


def tool(*words, check=True):
    done = subprocess.run([str(w) for w in words], text=True, capture_output=True)
    if check and done.returncode:
        raise SystemExit(f"long_path.py: {' '.join(map(str, words))}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def shape(o):
    for number, host in enumerate(hosts[:2]):
        words = ["delay", f"{o.rtt / 2}ms", "limit", NO_LIMIT]
        if number == 0:
            words += ["loss", f"{o.loss}%"] if o.loss else []
            words += ["rate", f"{o.mbit}mbit"] if o.mbit else []
        tool("ip", "-n", host.netns, "link", "set", host.ifname, "gso_max_segs", 1)
        tool("tc", "-n", host.netns, "qdisc", "replace", "dev", host.ifname, "root", "netem", *words)


def iperf3(o, cc, streams):
    """MB/s that arrive."""
    server = lab.start(hosts[1], [o.iperf3, "-s", "-1"], stdout=subprocess.DEVNULL)
    time.sleep(1)
    done = lab.run(hosts[0], [o.iperf3, "-c", hosts[1].ip4, "-P", streams, "-C", cc, "-l", "512K", "-O", o.steady, "-t",
                              o.seconds, "-J"], timeout=120 + o.steady + o.seconds)
    server.wait(30)
    said = json.loads(done.stdout)
    if "error" in said:
        raise SystemExit(f"long_path.py: iperf3: {said['error']}")
    return said["end"]["sum_received"]["bits_per_second"] / 8e6


def idle():
    """Seconds that the guest's processors have been idle, and its time."""
    return float(pathlib.Path("/proc/uptime").read_text().split()[1]), time.monotonic()


def steps(p, since):
    """[(ns, bytes)]: lines in which more had arrived than in the one before."""
    seen, found = -1, []
    for e in p.recv.all("progress"):
        if e["bytes"] > seen and e["ns"] >= since:
            found.append((e["ns"], e["bytes"]))
        seen = max(seen, e["bytes"])
    return found


def place(host):
    return {"NCCL_SOCKET_IFNAME": f"={host.ifname}"}


def plugin(o, cc, streams, size, library=None):
    """MB/s that arrive."""
    env = {"RAIL_SOCKET_STREAMS": streams, "RAIL_SOCKET_CONGESTION": cc}
    for words in o.set:
        name, _, value = words.partition("=")
        env[name] = value
    env = {k: str(v) for k, v in env.items()}
    rig.PLUGIN = library or rig.PLUGIN
    p = rig.Pair((hosts[0].netns, hosts[1].netns), env=env, send_env=place(hosts[0]), recv_env=place(hosts[1]),
                 mix="fixed", max=size, window=o.window, direct=1, idle="sleep")
    p.recv.wait_bytes(1, 60)
    time.sleep(o.steady)
    since, (before, begin) = rig.now(), idle()
    time.sleep(o.seconds)
    after, end = idle()
    if o.show:
        print(f"# idle: {(after - before) / (end - begin):.2f} processors\n" +
              tool("ip", "netns", "exec", hosts[0].netns, "ss", "-tinH", "dst", hosts[1].ip4), flush=True)
    (first, had), *_, (last, has) = steps(p, since)
    rig.end_clean(p, 60)
    return (has - had) * 1e3 / (last - first)


def cell(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rtt", type=float, default=20, help="of the path, in ms (20)")
    p.add_argument("--loss", type=float, default=0.1, help="of what the sender sends, in percent (0.1)")
    p.add_argument("--mbit", type=int, default=0, help="of the path, in Mb/s; 0: what the machine gives (0)")
    p.add_argument("--streams", default="1,4,8")
    p.add_argument("--sizes", default="512,4096", help="of messages, in KiB (512,4096)")
    p.add_argument("--window", type=int, default=8, help="messages under way (8)")
    p.add_argument("--cc", default="cubic,bbr", help="congestion control (cubic,bbr)")
    p.add_argument("--steady", type=int, default=5, help="seconds of each run before figures count (5)")
    p.add_argument("--seconds", type=int, default=10, help="of each run that count (10)")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--iperf3", default="iperf3", help="the program (iperf3)")
    p.add_argument("--plugin", action="append", help="a file; several: each with each size, in turn")
    p.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a variable for the plugin")
    p.add_argument("--show", action="store_true", help="the sender's sockets at the end of each run of the plugin")
    o = p.parse_args()
    if not lab.controllable:
        sys.exit("long_path.py: only in the lab's guest")
    shape(o)
    sizes = [int(s) for s in o.sizes.split(",")]
    print(f"| streams | iperf3, MB/s | {' | '.join(f'{s} KiB, MB/s | of iperf3' for s in sizes)} |", flush=True)
    for cc in o.cc.split(","):
        for streams in map(int, o.streams.split(",")):
            rows = []
            for _ in range(o.rounds):
                rows.append([iperf3(o, cc, streams),
                             *(plugin(o, cc, streams, s << 10, lib) for s in sizes for lib in o.plugin or [None])])
                print("#", cc, streams, " ".join(f"{v:.2f}" for v in rows[-1]), flush=True)
            theirs, *ours = zip(*rows)
            middle = statistics.median(theirs)
            print(f"| {streams}, {cc} | {cell(theirs)} | " +
                  " | ".join(f"{cell(own)} | {statistics.median(own) / middle:.2f}" for own in ours) + " |", flush=True)


if __name__ == "__main__":
    main()
