# SPDX-License-Identifier: Apache-2.0
"""The processes of a test program, and the shared memory that they leave behind."""
import os
import pathlib
import re
import signal
import threading
import time

GRACE = 3.0  # seconds that processes being killed may still take to vanish
SHM = pathlib.Path(os.environ.get("RAIL_TEST_SHM", "/dev/shm"))  # another one where the runner itself is tested


def wait(child, limit, outcome):
    """False: still there after limit seconds. Notes what it and its children, as far as it waited for them, used."""
    began, pause = time.monotonic(), 0.0005
    while True:
        pid, status, used = os.wait4(child.pid, os.WNOHANG)
        if pid:
            child.returncode = os.waitstatus_to_exitcode(status)
            outcome.cpu = used.ru_utime + used.ru_stime
            return True
        if limit is not None and time.monotonic() - began > limit:
            return False
        pause = min(2 * pause, 0.05)
        time.sleep(pause)


def session_of(pid):
    """(state, session) of a process, or None when it is gone."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2:].split()
    return fields[0], int(fields[3])


def processes_of(session, mark):
    """Living processes of a program: its session, and those that inherited its environment."""
    needle = mark.encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        about = session_of(entry)
        if not about or about[0] in "ZX":
            continue
        try:
            marked = needle in pathlib.Path(f"/proc/{entry}/environ").read_bytes()
        except OSError:
            marked = False
        if marked or about[1] == session:
            found.append(int(entry))
    return found


def kill_all(session, mark):
    """Kills a program's processes until a look finds none: one may fork while we read /proc."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.killpg(session, signal.SIGKILL)
        except OSError:
            pass
        left = processes_of(session, mark)
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        time.sleep(0.02)


def describe(pid):
    try:
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        words = "?"
    return f"{pid} ({words.strip()[:80]})"


def leftovers(session, mark):
    """Processes that are still there after the grace time."""
    deadline = time.monotonic() + GRACE
    while True:
        left = processes_of(session, mark)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


# ---- shared memory -------------------------------------------------------

def shm_files():
    # A killed process leaves its counters and its emulated device until the next one starts (test_stats, test_emu_*).
    left_to_others = ("rail-stat.", "rail-emu.")
    try:
        return {f.name: f.stat().st_ino for f in SHM.glob("rail*") if not f.name.startswith(left_to_others)}
    except OSError:
        return {}


def shm_in_use():
    """Names under SHM that some living process has open or mapped."""
    used, prefix = set(), f"{SHM}/"
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            maps = pathlib.Path(f"/proc/{entry}/maps").read_text(errors="replace")
            used.update(re.findall(re.escape(prefix) + r"(\S+)", maps))
            for fd in os.scandir(f"/proc/{entry}/fd"):
                target = os.readlink(fd.path)
                if target.startswith(prefix):
                    used.add(target[len(prefix):])
        except OSError:
            continue
    return used


class ShmWatch:
    """Finds shared memory that no process uses any more. Several programs run at a
    time, so a file is charged once, to the first that ends after it appeared."""

    def __init__(self):
        self.lock, self.charged = threading.Lock(), set()

    def left_since(self, before):
        def new():
            return {n for n, ino in shm_files().items() if before.get(n) != ino and n not in self.charged}
        deadline = time.monotonic() + 1.0
        left = new()
        while left and time.monotonic() < deadline:  # a file between creation and mmap is not yet a leftover
            time.sleep(0.2)
            left &= new() - shm_in_use()
        with self.lock:
            left -= self.charged
            self.charged |= left
        for name in left:
            (SHM / name).unlink(missing_ok=True)
        return sorted(left)
