#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Striping of the ib plugin over three NICs a host of the lab; what the sender's NICs send is shaped by netem:

    make lab HOSTS=2 NICS=3 CMD='python3 bench/ib_striping.py [sum] [equal] [change]'

sum      one NIC at a tenth of the others: each alone, then messages over all of them with parts by measured rate, then
         with equal parts (this one without arguments)
equal    NICs of one speed: parts by measured rate and equal parts, in turns
change   a NIC turns slow under traffic, and fast again: its part of what is sent, second by second

Every byte is checked. The rates are far below what the guest's processors move, so that the NICs are what limits.
"""
import argparse
import pathlib
import statistics
import sys
import time

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "test/lab"))
import lab
from lab import hosts
import ib_rig
from ib_rig import rig

STEADY_S = 2    # from the first bytes until figures count
CHANGE_S = 5    # between two changes of a NIC
LEAST_S = 3     # of a run that count
DRAIN_S = 2     # at the end, until what is outstanding has arrived
OUTSTANDING = 8
SLOW = 10       # a slow NIC has this part of the others' rate


def shape(rail, mbit):
    lab.netem(hosts[0].nics[rail], "rate", f"{mbit}mbit")


def open_pair(o, nics, striping):
    env = {"RAIL_IB_STRIPING": striping, "RAIL_IB_PATH_TIMEOUT": o.path_timeout}
    p = ib_rig.pair(env, env, nics=nics, comms=1, mix="fixed", max=o.size, window=OUTSTANDING, idle="sleep")
    p.recv.wait_bytes(1, 60)
    return p


def close_pair(p):
    # A receiver closes when it has the last message, with receives outstanding, and then acknowledges nothing any more.
    p.send.tell(f"hold {DRAIN_S * 1000}")
    time.sleep(DRAIN_S)
    rig.end_clean(p, 60)


def steps(p, since):
    """[(ns, bytes)]: progress lines in which more had arrived than in the one before."""
    seen, found = -1, []
    for e in p.recv.all("progress"):
        if e["bytes"] > seen and e["ns"] >= since:
            found.append((e["ns"], e["bytes"]))
        seen = max(seen, e["bytes"])
    return found


def throughput(o, nics, striping="rate"):
    """MB/s of payload."""
    p = open_pair(o, nics, striping)
    time.sleep(STEADY_S)
    since = rig.now()
    time.sleep(o.seconds)
    (begin, before), *_, (end, after) = steps(p, since)
    close_pair(p)
    return (after - before) * 1e3 / (end - begin)


def summary(name, values, unit="MB/s", digits=2):
    print(f"{name}: {statistics.median(values):.{digits}f} {unit} ({min(values):.{digits}f}-{max(values):.{digits}f}), "
          f"{len(values)} runs", flush=True)


def run_sum(o):
    for rail, mbit in enumerate((o.mbit / SLOW, o.mbit, o.mbit)):
        shape(rail, mbit)
    rows = []
    for _ in range(o.rounds):
        alone = [throughput(o, (rail,)) for rail in range(3)]
        together, equal = throughput(o, (0, 1, 2)), throughput(o, (0, 1, 2), "equal")
        rows.append((alone, together, equal))
        print(f"# alone {' + '.join(f'{a:.2f}' for a in alone)} = {sum(alone):.2f}; by rate {together:.2f} "
              f"({together / sum(alone):.3f}), equal parts {equal:.2f} MB/s", flush=True)
    summary("sum of each alone", [sum(alone) for alone, _, _ in rows])
    summary("by rate", [together for _, together, _ in rows])
    summary("equal parts", [equal for _, _, equal in rows])
    summary("by rate / sum", [together / sum(alone) for alone, together, _ in rows], "x", 3)


def run_equal(o):
    for rail in range(3):
        shape(rail, o.mbit)
    pairs = []
    for number in range(o.rounds):
        kinds = ("rate", "equal") if number % 2 else ("equal", "rate")
        pairs.append({kind: throughput(o, (0, 1, 2), kind) for kind in kinds})
        print(f"# by rate {pairs[-1]['rate']:.2f}, equal parts {pairs[-1]['equal']:.2f} MB/s", flush=True)
    for kind in ("rate", "equal"):
        summary({"rate": "by rate", "equal": "equal parts"}[kind], [p[kind] for p in pairs])
    summary("by rate / equal parts", [p["rate"] / p["equal"] for p in pairs], "x", 3)


def out_of_order():
    return sum(lab.hw_counter(nic, "out_of_seq_request") for nic in hosts[1].nics)


def sent():
    return [lab.bytes_sent(nic) for nic in hosts[0].nics]


def loads():
    """For each of the next seconds: (NIC 0's part of what the sender's NICs send, MB/s). By the kernel's counters:
    a program that reads the plugin's would take the guest a tenth of a second each time."""
    found, before, at = [], sent(), rig.now()
    for _ in range(CHANGE_S):
        rig.at(at + 1_000_000_000)
        after, now = sent(), rig.now()
        by_nic = [b - a for a, b in zip(before, after)]
        found.append((by_nic[0] / max(1, sum(by_nic)), sum(by_nic) * 1e3 / (now - at)))
        before, at = after, now
    return found


def run_change(o):
    rows = []
    for _ in range(o.rounds):
        for rail in range(3):
            shape(rail, o.mbit)
        p = open_pair(o, (0, 1, 2), "rate")
        time.sleep(STEADY_S)
        late, row = out_of_order(), []
        for mbit in (o.mbit / SLOW, o.mbit):
            shape(0, mbit)
            row.append(loads())
        close_pair(p)
        rows.append(row)
        for name, seconds in zip(("slow", "fast"), row):
            print(f"# {name}: {', '.join(f'{part:.2f} of {all:.2f}' for part, all in seconds)} MB/s", flush=True)
        lost = [e for e in p.send.all("log") if "goes on without" in e["text"]]
        print(f"# {out_of_order() - late} packets out of order, {len(lost)} paths lost", flush=True)
    for number, name in enumerate(("slow", "fast")):
        parts = [statistics.median(row[number][i][0] for row in rows) for i in range(CHANGE_S)]
        print(f"{name}: its part in each second {' '.join(f'{part:.2f}' for part in parts)}, medians", flush=True)


# Of each: what to do, Mb/s of a fast NIC, bytes of a message, RAIL_IB_PATH_TIMEOUT. A path slower than a hundredth of
# its port's speed is taken for lost after that time, and a port of the lab says that it has 10 Gb/s; so it must be
# longer than a slow NIC takes for what it was given before. Without it a queue pair of Soft-RoCE that has lost a packet
# stands still until NCCL_IB_TIMEOUT is over, 4.3 s.
CASES = {"sum": (run_sum, 5, 64 << 10, "0"), "equal": (run_equal, 20, 128 << 10, "2s"),
         "change": (run_change, 20, 128 << 10, "2s")}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--mbit", type=float, help="of a fast NIC, in Mb/s (sum: 5, else 20)")
    p.add_argument("--size", type=int, help="of a message (sum: 65536, else 131072)")
    p.add_argument("--seconds", type=float, default=6, help="of a run that count (6)")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--path-timeout", help="RAIL_IB_PATH_TIMEOUT (sum: 0, else 2s)")
    p.add_argument("what", nargs="*", metavar="case", help=" ".join(CASES))
    given = p.parse_args()
    if given.seconds < LEAST_S:
        p.error(f"--seconds {given.seconds:g}: at least {LEAST_S}, for a slow NIC brings a message a second")
    if unknown := set(given.what) - set(CASES):
        p.error(f"no case {' '.join(sorted(unknown))}")
    try:
        for name in given.what or ["sum"]:
            case, mbit, size, path_timeout = CASES[name]
            o = argparse.Namespace(mbit=given.mbit or mbit, size=given.size or size, seconds=given.seconds,
                                   rounds=given.rounds, path_timeout=given.path_timeout or path_timeout)
            print(f"{name}: {o.mbit:g} Mb/s, {o.size} bytes, RAIL_IB_PATH_TIMEOUT={o.path_timeout}", flush=True)
            case(o)
    finally:
        lab.heal()


if __name__ == "__main__":
    main()
