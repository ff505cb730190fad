# SPDX-License-Identifier: Apache-2.0
"""Detects that the whole machine was stopped, as a virtual one is when its host does not schedule it.

Missed deadlines and silent peers are then not the program's fault: what failed meanwhile is run again.
"""
import threading
import time

TICK = 0.2
LEAST = 3.0  # seconds; a machine that is merely busy lets a thread that sleeps run sooner


class Watch:
    """Reads the clock all the time, from its construction on."""

    def __init__(self):
        self.found = []  # (when it was over, seconds)
        threading.Thread(target=self.look, daemon=True).start()

    def look(self):
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
