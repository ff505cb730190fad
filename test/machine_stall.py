# SPDX-License-Identifier: Apache-2.0
"""Detects that the machine was stopped, or was given too little time, as a virtual one is whose host is busy.

Missed deadlines and silent peers are then not the program's fault: what failed meanwhile is run again.
"""
import os
import threading
import time

TICK = 0.2
LEAST = 1.0  # seconds; a delay of so long is a standstill
LATE = 0.1  # seconds; shorter delays are not counted
MOST = 1.0, 0.2  # seconds, and share of the time that passed: of delays in all, or of what the host withheld


class Watch:
    """Reads the clock all the time, from its construction on, on each processor: a host may stop one of them."""

    def __init__(self):
        self.found = []  # (when it was over, seconds, processor)
        played = os.environ.get("RAIL_TEST_PROC_STAT")  # by a test of the runner, for which nothing else counts
        self.stat = played or "/proc/stat"
        for cpu in () if played else os.sched_getaffinity(0):
            threading.Thread(target=self.look, args=(cpu,), daemon=True).start()

    def stolen(self):
        """Seconds in which the host let others run though a processor of this machine had work: "steal" of proc(5)."""
        try:
            with open(self.stat) as f:
                return int(f.readline().split()[8]) / os.sysconf("SC_CLK_TCK")
        except (OSError, IndexError, ValueError):
            return 0.0

    def processors(self):
        """(now, processor seconds that were idle until now, all of them)"""
        try:
            with open(self.stat) as f:
                ticks = [int(word) for word in f.readline().split()[1:9]]  # what guests take is part of what users take
            return time.monotonic(), *(n / os.sysconf("SC_CLK_TCK") for n in (sum(ticks[3:5]), sum(ticks)))
        except (OSError, IndexError, ValueError):
            return time.monotonic(), 0.0, 0.0

    def use_since(self, before):
        """What the machine did since then, for the report."""
        seconds, idle, all_of_it = (now - b for now, b in zip(self.processors(), before))
        return f"{seconds:.0f} s, {100 * idle / max(all_of_it, 0.01):.0f} % of the processors idle"

    def trouble_since(self, moment, stolen):
        """What was wrong with the machine since then, in words; "": nothing. `stolen`: what stolen() said then."""
        delays = [d for d in list(self.found) if d[0] >= moment]
        longest = max((seconds for _, seconds, _ in delays), default=0)
        if longest >= LEAST:
            return f"the machine, or a processor of it, stood still for {longest:.0f} s"
        limit = max(MOST[0], MOST[1] * (time.monotonic() - moment))
        late = max(sum(seconds for _, seconds, on in delays if on == cpu) for cpu in os.sched_getaffinity(0))
        if late >= limit:
            return f"a processor of the machine was late by {late:.1f} s in all"
        withheld = self.stolen() - stolen
        if withheld >= limit:
            return f"the host withheld {withheld:.1f} s of the processors"
        return ""

    def look(self, cpu):
        os.sched_setaffinity(0, (cpu,))  # of this thread
        before = time.monotonic()
        while True:
            time.sleep(TICK)
            now = time.monotonic()
            if now - before - TICK >= LATE:
                self.found.append((now, now - before - TICK, cpu))
            before = now
