#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Idle connections cost nothing: no CPU, no thread each, and afterwards nothing is left of them.

TEST-LIMIT: 240
TEST-QUIET
"""
import pathlib
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "harness"))
from rig import ENGINES, Pair, Process, check_clean, check_sound, main

REST = 5.0
CPU_LIMIT = 0.010  # seconds in 5 s, for both ends of 100 connections: one part in 500
SMALL = {"window": 2, "max": 8192}  # of each connection's buffers


def name(engine):
    return f"engine {engine}: " if engine else ""


def env(engine):
    return {"RAIL_SOCKET_ENGINE": engine} if engine else {}


def loop(engine, comms, **options):
    """Both ends in one process, which makes no call while it rests."""
    p = Process("loop", env=env(engine), comms=comms, **SMALL, **options)
    p.finish(90)
    return p


def idle_cpu(engine):
    p = loop(engine, 100, rest=REST)
    rested = p.first("rested")
    assert rested, p.tail()
    spent = rested["cpu_ns"] / 1e9
    print(f"# {spent * 1e3:.2f} ms of CPU in {REST:.0f} s for 100 idle connections")
    assert spent < CPU_LIMIT, f"100 idle connections used {spent:.4f} s of CPU in {REST} s\n{p.tail()}"
    assert check_sound(p)["errors"] == 0, f"{p} had an error\n{p.tail()}"


def idle_after_use(engine):
    """The same after data has flowed: nothing keeps spinning. Messages end, the caller sleeps, both ends stay open."""
    pair = Pair(env=env(engine), comms=50, **SMALL)
    time.sleep(0.5)
    for p in pair.both:
        p.tell("hold 20000")
    time.sleep(0.3)
    for p in pair.both:
        p.tell(f"pause {int((REST + 2) * 1000)}")
    time.sleep(1.0)
    before = [cpu(p.pid) for p in pair.both]
    time.sleep(REST)
    spent = [after - b for after, b in zip([cpu(p.pid) for p in pair.both], before)]
    print(f"# {' and '.join(f'{s * 1e3:.2f} ms' for s in spent)} of CPU in {REST:.0f} s for 50 quiet connections")
    assert max(spent) < CPU_LIMIT, f"50 quiet connections used {spent} s of CPU in {REST} s"
    pair.kill()


def cpu(pid):
    """Seconds of CPU of all threads, from the scheduler's own clock."""
    total = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def threads(engine):
    """1,000 connections have the threads of 10, and all of them carry messages."""
    few, many = (loop(engine, comms, rest=0.2, seconds=seconds) for comms, seconds in ((10, 0.5), (1000, 3)))
    for p in (few, many):
        check_clean(p)
    counts = [p.first("rested")["threads"] for p in (few, many)]
    print(f"# threads with 10 and with 1,000 connections: {counts}; {many.first('result')['messages']} messages, "
          f"{many.first('connected')['took_ns'] / 1e9:.2f} s to connect 1,000")
    assert counts[0] == counts[1], f"10 connections have {counts[0]} threads, 1,000 have {counts[1]}"
    assert many.first("result")["messages"] >= 2 * 1000, f"not all of 1,000 connections were used\n{many.tail()}"


def nothing_kept(engine):
    """Connections come and go: descriptors and threads are where they were, memory does not grow."""
    p = loop(engine, 200, seconds=0.3, cycles=6)
    check_clean(p)
    cycles = p.all("cycle")
    assert len(cycles) == 6, p.tail()
    for what in ("fds", "threads"):
        seen = {c[what] for c in cycles[1:]}
        assert len(seen) == 1, f"{what} after each cycle: {[c[what] for c in cycles]}"
    grown = cycles[-1]["rss_kb"] - cycles[1]["rss_kb"]
    print(f"# RSS in KiB after each cycle of 200 connections: {[c['rss_kb'] for c in cycles]}")
    assert grown < 2000, f"four cycles of 200 connections grew by {grown} KiB"


CASES = [("100 idle connections use no CPU", idle_cpu),
         ("50 connections that have become quiet use no CPU", idle_after_use),
         ("1,000 connections have no more threads than 10", threads),
         ("nothing is kept of closed connections", nothing_kept)]


def case(run, engine):
    return lambda: run(engine)


main([(name(engine) + text, case(run, engine)) for engine in ENGINES or [None] for text, run in CASES])
