#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-LIMIT: 300
"""Random failures of ports under traffic over fused NICs, every message checked: one port, two together, a second one
soon after the first, ports that flap. Ports go down at the host, lose their cable, or stay up and drop what is sent.

make lab LIMIT=7200 CMD='RAIL_LAB_ROUNDS=300 RAIL_LAB_SEED=1 python3 test/lab/test_ib_failover.py' plays more rounds
and prints medians; each is a line of JSON in $RAIL_LAB_OUT. With RAIL_TEST_PLUGIN=PATH another plugin plays them, such
as NCCL's net_ib (docs/net-ib.md), with the caller's NCCL_* variables. What ends it is counted; and since nothing
says when it uses a port again, it begins each round with a new pair."""
import json
import os
import pathlib
import random
import re
import statistics
import sys
import time

sys.dont_write_bytecode = True
OTHER = os.environ.get("RAIL_TEST_PLUGIN")
import lab
from lab import Skip, hosts, main
import ib_rig
from ib_rig import rig

FEW = 8
FLOW = {"comms": 2, "max": 100000, "window": 4, "idle": "sleep",
        "env": {k: v for k, v in os.environ.items() if OTHER and k.startswith("NCCL_")}}
KINDS = ("one", "two", "second", "flap")
MORE_S, RETURN_S = 60, 90  # of an emulated machine; nothing here asserts how fast it is
LOSS = re.compile(r"goes on without (\d+) of \d+ queue pairs.*: (.*); \d+ .* resent; [\d.]+ ms without .* noticed, "
                  r"([\d.]+) ms until both .*, ([\d.]+) ms until all was resent; (\d+) queue pairs are left")


def silence(nic, heard):
    """Its link stays up, and nothing leaves it."""
    if heard:
        lab.netem_clear(nic)
    else:
        lab.netem(nic, "loss", "100%")


WAYS = {"cable": lab.cable, "port": lab.link, "silent": silence}


# ---- one round -----------------------------------------------------------------

def plan(seed, number):
    """What happens in that round: the kind, and steps (seconds to wait before it, NIC, way, back?)."""
    rng = random.Random(f"{seed}-{number}")
    kind, way = KINDS[number % len(KINDS)], rng.choice(sorted(WAYS))
    rails = list(range(len(hosts[0].nics)))
    rng.shuffle(rails)
    first, second = ((rng.randrange(2), rail) for rail in rails[:2])
    for_s = rng.uniform(0.5, 2.5)
    if kind == "one":
        return kind, way, [(0, first, way, False), (for_s, first, way, True)]
    if kind == "flap":
        steps = []
        for _ in range(rng.randrange(2, 6)):
            steps += [(rng.uniform(0, 0.2), first, way, False), (rng.uniform(0, 0.12), first, way, True)]
        return kind, way, steps
    other = rng.choice(sorted(WAYS))
    apart = 0 if kind == "two" else rng.uniform(0, 0.6)
    return kind, f"{way}, {other}", [(0, first, way, False), (apart, second, other, False), (for_s, first, way, True),
                                     (0, second, other, True)]


def play(steps):
    """(when the first failed, when the last was well)."""
    begin = None
    for wait_s, (host, rail), way, back in steps:
        time.sleep(wait_s)
        begin = begin or rig.now()
        WAYS[way](hosts[host].nics[rail], back)
    return begin, rig.now()


# ---- what the processes say ------------------------------------------------------

def new_pair():
    nics = range(len(hosts[0].nics))
    if len(nics) < 3:
        raise Skip("hosts with fewer than three NICs")
    p = ib_rig.pair(nics=nics, **FLOW)
    for process in p.both:
        process.wait_bytes(200000, 20)
    return p


def losses(process):
    return [(e, m) for e in process.all("log") if (m := LOSS.search(e["text"]))]


def returns(process):
    return [e for e in process.all("log") if "is in use again" in e["text"]]


def is_whole(process):
    """It uses all of its queue pairs: each that was lost has come back."""
    return sum(int(m.group(1)) for _, m in losses(process)) == len(returns(process))


def has_failed(p):
    return any(process.first("error") or process.ended for process in p.both)


def goes_on(p):
    """Both sides have moved more; False: an error, or nothing for so long."""
    before = [(process.all("progress") or [{"bytes": 0}])[-1]["bytes"] + 200000 for process in p.both]
    deadline = time.monotonic() + MORE_S
    while not has_failed(p) and time.monotonic() < deadline:
        if all(process.all("progress")[-1]["bytes"] >= b for process, b in zip(p.both, before)):
            return True
        time.sleep(0.05)
    return False


def become_whole(p):
    deadline = time.monotonic() + RETURN_S
    while not all(is_whole(process) for process in p.both):
        assert not has_failed(p) and time.monotonic() < deadline, \
            f"lost queue pairs do not return\n{p.send.tail()}\n{p.recv.tail()}"
        time.sleep(0.05)


def measure(p, begin, well):
    """Milliseconds: until the first loss was noticed, the longest switch and replay of either side, from when all was
    well until all was in use again."""
    found = [(e, m) for process in p.both for e, m in losses(process) if e["ns"] >= begin]
    if not found:
        return {}
    times = [(float(m.group(3)), float(m.group(4))) for _, m in found]
    noticed = min(e["ns"] / 1e6 - sum(t) for (e, _), t in zip(found, times))
    again = max((e["ns"] for process in p.both for e in returns(process) if e["ns"] >= begin), default=well)
    return {"detect": noticed - begin / 1e6, "switch": max(t[0] for t in times), "replay": max(t[1] for t in times),
            "again": max(0, again - well) / 1e6, "why": sorted({m.group(2) for _, m in found})}


def end_other(p, ok):
    """Ends another plugin's processes, which are not used again. Whether all connections ended in order, what was wrong
    in messages, errors, the last lines of each side, exit statuses of processes that have ended before."""
    ended = [process.process.poll() for process in p.both]
    said = [[e["text"] for e in process.all("text")[-3:]] for process in p.both]
    for process in p.both:
        process.tell("stop" if ok else "quit")
    deadline = time.monotonic() + 40
    while not all(process.first("result") or process.ended for process in p.both) and time.monotonic() < deadline:
        time.sleep(0.05)
    results = [process.first("result") for process in p.both]
    ok = ok and all(r and r["errors"] == 0 and r["finished"] >= r["comms"] for r in results)
    wrong = [e for process in p.both for e in process.all("wrong") + process.all("broken")]
    errors = [[e["code"] for e in process.all("error")] for process in p.both]
    return {"ok": ok and not wrong, "wrong": wrong, "errors": errors, "ended": ended, "said": said}


def one_round(p, seed, number):
    kind, way, steps = plan(seed, number)
    for process in p.both:
        process.tell("lap")
    begin, well = play(steps)
    result = {"round": number, "kind": kind, "way": way, "ok": goes_on(p)}
    if not OTHER:
        for process in p.both:
            assert not process.all("wrong") and not process.all("broken"), process.tail()
        if result["ok"]:
            become_whole(p)
            result |= measure(p, begin, well)
    result["pause"] = max((process.all("progress") or [{"pause_ns": 0}])[-1]["pause_ns"] for process in p.both) / 1e6
    if OTHER:
        result |= end_other(p, result["ok"])
    return result


# ---- all rounds ------------------------------------------------------------------

def median(results, key):
    values = [r[key] for r in results if key in r and r["ok"]]
    return f"{statistics.median(values):.0f} ({max(values):.0f})" if values else "-"


def report(results):
    for name in [*KINDS, *sorted(WAYS)]:
        some = [r for r in results if name == r["kind"] or (name == r["way"] and r["kind"] == "one")]
        print(f"# {name}: {len(some)} rounds, {sum(r['ok'] for r in some)} went on, {sum('detect' in r for r in some)} "
              "lost a queue pair; ms, median (most): "
              + ", ".join(f"{key} {median(some, key)}" for key in ("detect", "switch", "replay", "again", "pause")),
              flush=True)


def rounds(count, seed):
    out = os.environ.get("RAIL_LAB_OUT")
    log = open(pathlib.Path(out) / f"failover-{'other' if OTHER else 'ib'}.jsonl", "w") if out else None
    results, p = [], None
    lab.heal()  # starts ip and tc, whose start would count as part of the first failure
    for number in range(count):
        try:
            p = p or new_pair()
            results.append(one_round(p, seed, number))
        except AssertionError as wrong:
            raise AssertionError(f"round {number} of seed {seed}, {plan(seed, number)}: {wrong}") from None
        finally:
            lab.heal()
        if log:
            print(json.dumps(results[-1]), file=log, flush=True)
        if OTHER:
            p.kill()
            p = None
        elif not results[-1]["ok"]:
            raise AssertionError(f"round {number} of seed {seed}, {plan(seed, number)}\n{p.send.tail(30)}\n"
                                 f"{p.recv.tail(30)}")
    if p:
        rig.end_clean(p, 40)
    report(results)
    assert OTHER or any("detect" in r for r in results), "no failure was noticed: retransmission alone bridged them all"


if __name__ == "__main__":
    wanted = int(os.environ.get("RAIL_LAB_ROUNDS", FEW))
    chosen = os.environ.get("RAIL_LAB_SEED") or str(random.randrange(1 << 30))
    main([(f"{wanted} rounds of seed {chosen}", lambda: rounds(wanted, chosen))])
