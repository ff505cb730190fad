# SPDX-License-Identifier: Apache-2.0
"""What machine this is, and how much others use it meanwhile."""
import os
import pathlib
import platform
import re
import resource
import subprocess
import threading
import time


def log(text):
    print(f"bench: {text}", flush=True)


def first_line(*argv):
    """The first line a command prints, or '?'."""
    try:
        out = subprocess.run(argv, capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
        return ((out.stdout or out.stderr).strip().splitlines() or ["?"])[0]
    except (OSError, subprocess.SubprocessError):
        return "?"


def text_of(path):
    try:
        return pathlib.Path(path).read_text(errors="replace").strip()
    except OSError:
        return "?"


def describe(root, cc):
    model = re.search(r"^model name\s*:\s*(.+)$", text_of("/proc/cpuinfo"), re.M)
    memory = re.search(r"^MemTotal:\s*(\d+)", text_of("/proc/meminfo"), re.M)
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "cpu": model.group(1) if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory.group(1)) / 2**20, 1) if memory else "?",
        "kernel": platform.release(),
        "congestion_control": text_of("/proc/sys/net/ipv4/tcp_congestion_control"),
        "ptrace_scope": text_of("/proc/sys/kernel/yama/ptrace_scope"),  # Open MPI's single copy needs 0 or none
        "openmpi": first_line("mpirun", "--version"),
        "compiler": first_line(cc, "--version"),
        "railyard": first_line("git", "-C", str(root), "describe", "--always", "--dirty", "--tags"),
        "load_average_before": " ".join(text_of("/proc/loadavg").split()[:3]),
    }


def cores():
    """The first processor of each core that this program may use."""
    found = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        topology = f"/sys/devices/system/cpu/cpu{cpu}/topology"
        core = text_of(f"{topology}/physical_package_id"), text_of(f"{topology}/core_id")
        found.setdefault(core if "?" not in core else cpu, cpu)
    return list(found.values())


def busy_and_stolen():
    """CPU seconds that processes of this machine have used, and that its host has withheld from it."""
    fields = [int(x) / os.sysconf("SC_CLK_TCK") for x in text_of("/proc/stat").splitlines()[0].split()[1:]]
    # Interrupt time is left out: loopback's belongs to no process, so it could not be separated from others'.
    return fields[0] + fields[1] + fields[2], fields[7]


def own():
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        used = resource.getrusage(who)
        total += used.ru_utime + used.ru_stime
    return total


class Watch:
    """From here on: how many cores others keep busy. Children count as ours once they have been waited for."""

    def __init__(self):
        self.time, (self.busy, self.stolen), self.own = time.monotonic(), busy_and_stolen(), own()

    def others(self):
        busy, _ = busy_and_stolen()
        return max(0.0, (busy - self.busy - (own() - self.own)) / max(time.monotonic() - self.time, 1e-3))

    def steal(self):
        return (busy_and_stolen()[1] - self.stolen) / max(time.monotonic() - self.time, 1e-3)


def tree_cpu(root):
    """CPU seconds of a process and everybody below it, those included that have been waited for."""
    parents, used = {}, {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = text_of(entry / "stat").rpartition(")")[2].split()
            if len(fields) > 14:
                parents[int(entry.name)], used[int(entry.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    found, total = [root], 0
    while found:
        pid = found.pop()
        total += used.get(pid, 0)
        found += [child for child, parent in parents.items() if parent == pid]
    return total / os.sysconf("SC_CLK_TCK")


class Sampler:
    """While something long runs: every few seconds, how many cores others keep busy. For programs that go on for so
    long that Watch, which counts children when they end, would take them for others."""

    def __init__(self, seconds=5):
        self.seconds, self.seen, self.over = seconds, [], threading.Event()
        self.thread = threading.Thread(target=self.sample, daemon=True)

    def sample(self):
        while not self.over.is_set():
            before, (busy, stolen), own_ = time.monotonic(), busy_and_stolen(), tree_cpu(os.getpid())
            self.over.wait(self.seconds)
            (busy_now, stolen_now), own_now = busy_and_stolen(), tree_cpu(os.getpid())
            took = time.monotonic() - before
            if took > self.seconds / 2:
                self.seen.append({"others": round(max(0.0, busy_now - busy - (own_now - own_)) / took, 2),
                                  "steal": round((stolen_now - stolen) / took, 3)})

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        self.seen = self.seen or [{"others": 0.0, "steal": 0.0}]


def wait_until_quiet(limit, seconds):
    """Waits until others keep at most `limit` cores busy, or `seconds` have passed. Returns the last value."""
    deadline = time.monotonic() + seconds
    announced = False
    while True:
        watch = Watch()
        time.sleep(1)
        load = watch.others()
        if load <= limit or time.monotonic() > deadline:
            return load
        if not announced:
            log(f"others keep {load:.1f} cores busy; waiting up to {seconds:.0f} s for a quiet machine")
            announced = True
