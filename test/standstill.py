# SPDX-License-Identifier: Apache-2.0
"""Notices when the whole machine stood still, as a virtual one does when its host has no time for it.

Deadlines, stalls and peers that "say nothing" then happened to nobody's program: what failed meanwhile is run again.
"""
import threading
import time

TICK = 0.2
LEAST = 3.0  # seconds; a machine that is merely busy lets a thread that sleeps run sooner


class Watch:
    """Looks at the clock all the time, from the moment it is made."""

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
        """Seconds; 0: it did not stand still."""
        return max((seconds for end, seconds in list(self.found) if end >= moment), default=0.0)
