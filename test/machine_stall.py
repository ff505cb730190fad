# SPDX-License-Identifier: Apache-2.0
"""Detects that the machine was stopped, or was given too little time, as a virtual one is whose host is busy.

Missed deadlines and silent peers are then not the program's fault: what failed meanwhile is run again.
"""
import os
import threading
import time

TICK = 0.2
LEAST = 1.0  # seconds; a machine that is merely busy lets a thread that sleeps run sooner
STOLEN = 1.0, 0.2  # seconds, and share of the time that passed: what the host withheld of all processors


class Watch:
    """Reads the clock all the time, from its construction on, on each processor: a host may stop one of them."""

    def __init__(self):
        self.found = []  # (when it was over, seconds)
        self.stat = os.environ.get("RAIL_TEST_PROC_STAT", "/proc/stat")
        for cpu in os.sched_getaffinity(0):
            threading.Thread(target=self.look, args=(cpu,), daemon=True).start()

    def stolen(self):
        """Seconds in which the host let others run though a processor of this machine had work: "steal" of proc(5)."""
        try:
            with open(self.stat) as f:
                return int(f.readline().split()[8]) / os.sysconf("SC_CLK_TCK")
        except (OSError, IndexError, ValueError):
            return 0.0

    def trouble_since(self, moment, stolen):
        """What was wrong with the machine since then, in words; "": nothing. `stolen`: what stolen() said then."""
        if stood := self.longest_since(moment):
            return f"the machine, or a processor of it, stood still for {stood:.0f} s"
        withheld = self.stolen() - stolen
        if withheld >= max(STOLEN[0], STOLEN[1] * (time.monotonic() - moment)):
            return f"the host withheld {withheld:.1f} s of the processors"
        return ""

    def look(self, cpu):
        os.sched_setaffinity(0, (cpu,))  # of this thread
        before = time.monotonic()
        while True:
            time.sleep(TICK)
            now = time.monotonic()
            if now - before - TICK >= LEAST:
                self.found.append((now, now - before - TICK))
            before = now

    def longest_since(self, moment):
        """Seconds; 0: it was not stopped."""
        return max((seconds for end, seconds in list(self.found) if end >= moment), default=0.0)
