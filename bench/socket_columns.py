# SPDX-License-Identifier: Apache-2.0
"""What bench-socket compares: cells, and the programs that fill them."""
import collections
import json
import pathlib
import shlex
import socket
import tempfile
import time

from program import Failed, Program, children_cpu

MEMORY = 512 << 20  # bytes of buffers a process may have; the largest cells get a smaller window
# kind "bw" or "lat"; idle: what the caller does when nothing moved, 0 sched_yield, else sleeps so many us
Cell = collections.namedtuple("Cell", "kind size comms window idle")


def window_for(size, comms, window):
    while window > 1 and size * comms * window > MEMORY:
        window //= 2
    return window


def make_cells(sizes, comms, metrics):
    cells = []
    for size in sizes:
        if "lat" in metrics and size <= 1 << 20:
            cells.append(Cell("lat", size, 1, 2, 0))
        for n in comms:
            window = window_for(size, n, 8)
            if "bw" in metrics:
                cells.append(Cell("bw", size, n, window, 0))
            if "bw" in metrics and size == 8:
                cells.append(Cell("bw", size, n, 32, 0))
            if "cpu" in metrics:
                cells.append(Cell("bw", size, n, window, 20))
    return cells


class Congestion:
    """One congestion control for every TCP socket of a program, and the proof."""

    def __init__(self, name, library):
        self.name, self.library = name, library

    @staticmethod
    def allowed(name):
        with socket.socket() as s:
            try:
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
                return True
            except OSError:
                return False

    def environment(self, report):
        return {"LD_PRELOAD": str(self.library), "BENCH_CC": self.name, "BENCH_CC_FILE": str(report)}

    def verify(self, report, what):
        """How many processes had connected TCP sockets. Each must have had this congestion control at its end."""
        lines = report.read_text().splitlines() if report.exists() else []
        found = [dict(word.split("=") for word in line.split()[1:]) for line in lines]
        found = [counts for counts in found if counts]
        if any(set(counts) != {self.name} for counts in found):
            raise Failed(f"{what}: TCP sockets were to have {self.name}, but the processes report {found}")
        return len(found)


class Column:
    def __init__(self, key, title, env=None):
        self.key, self.title, self.env = key, title, dict(env or {})
        self.wire = ""  # what the program says it measured
        self.verified = True  # both processes' sockets were seen to have the congestion control

    def has(self, cell):
        return True

    def run(self, cell, congestion, warmup, seconds):
        """A dictionary with "verdict": ok, wrong, failed or stuck; and the figures when it is ok."""
        with tempfile.TemporaryDirectory(prefix="rail-bench-") as folder:
            report = pathlib.Path(folder) / "congestion"
            result = self.measure(cell, {**self.env, **congestion.environment(report)}, warmup, seconds)
            if result["verdict"] == "ok":
                self.verified &= congestion.verify(report, f"{self.title}, {cell}") >= 2
        return result


class KitBench(Column):
    """One cell of `rail-kit bench`: a plugin's vtable, or plain TCP streams."""

    def __init__(self, key, title, program, how, env=None):
        super().__init__(key, title, env)
        self.base = [str(program), "bench"] + how

    def command(self, cell, warmup, seconds):
        how = ["--size", cell.size, "--comms", cell.comms, "--window", cell.window, "--sleep", cell.idle,
               "--kind", cell.kind, "--rounds", 1, "--warmup", warmup, "--seconds", seconds, "--check", 0]
        return self.base + [str(x) for x in how]

    def measure(self, cell, env, warmup, seconds):
        argv = self.command(cell, warmup, seconds) + ["--quiet", "--json", "-"]
        status, out, err = Program(argv, env).finish()
        if status not in (0, 1) or not out:
            raise Failed(f"exit status {status}: {shlex.join(argv)}\n{err[-3000:]}")
        return self.one_cell(json.loads(out))

    def one_cell(self, found):
        about = found["columns"][0]
        self.wire = f"{about['wire']} v{about['version']}" if about["version"] else about["wire"]
        result = {"wire": about["wire"], "abi": about["version"], **found["cells"][0]["results"][0]["rounds"][0]}
        half = {key: result.pop(f"half_{key}_us") for key in ("min", "p50", "p90", "p99") if f"half_{key}_us" in result}
        return result | ({"half_us": half} if half else {})

    def shown(self, cell, warmup, seconds):
        words = [f"{k}={shlex.quote(v)}" for k, v in self.env.items()]
        return " ".join(words + [shlex.join(self.command(cell, warmup, seconds))])


class Ucx(Column):
    """ucx_perftest's tag-matching tests over tcp. It counts iterations, not time; it spins when idle, and drives one
    connection per thread, so there is one connection; it sends from one buffer and checks nothing."""

    PROGRAM = "ucx_perftest"

    def __init__(self, env=None):
        super().__init__("ucx", "UCX tcp", {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo", **(env or {})})
        self.rate = {}  # messages a second, from the last run of a cell
        self.start_cpu = {}  # CPU seconds of starting, connecting and closing
        self.wire = "ucx_perftest"

    def has(self, cell):
        return cell.comms == 1 and cell.idle == 0

    def command(self, cell, iterations, extra=()):
        test = "tag_lat" if cell.kind == "lat" else "tag_bw"
        how = ["-t", test, "-s", cell.size, "-O", cell.window, "-n", iterations, "-w", max(1, iterations // 8), *extra]
        return [self.PROGRAM, "127.0.0.1"] + [str(x) for x in how] + ["-f", "-v"]

    def measure(self, cell, env, warmup, seconds):
        try:
            if cell not in self.rate:  # a first guess, then a better one
                self.once(cell, env, max(10, min(20000, (64 << 20) // cell.size)))
                self.once(cell, env, self.iterations(cell, warmup))
            return self.timed(cell, env, seconds)
        except Failed as why:
            return {"verdict": "failed", "what": str(why)}

    def iterations(self, cell, seconds):
        return max(10, int(self.rate[cell] * seconds))

    def timed(self, cell, env, seconds):
        n = self.iterations(cell, seconds)
        if cell.kind == "lat":
            p50, _ = self.once(cell, env, n)
            p99, _ = self.once(cell, env, n, ("-R", "99"))
            return {"verdict": "ok", "messages": n, "half_us": {"p50": p50[1], "p99": p99[1]}}
        if cell not in self.start_cpu:
            self.start_cpu[cell] = self.once(cell, env, 1)[1]
            self.once(cell, env, n)  # that one's rate says nothing
        row, cpu = self.once(cell, env, n)
        # Its own count of messages a second; its megabytes are powers of two.
        bytes_all = (n + n // 8) * cell.size
        return {"verdict": "ok", "messages": n, "messages_s": row[7], "gb_s": row[7] * cell.size / 1e9,
                "cpu_s_per_gb": max(0.0, cpu - self.start_cpu[cell]) / bytes_all * 1e9}

    def once(self, cell, env, iterations, extra=()):
        """(the row of numbers, CPU seconds of both processes); remembers the rate."""
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        before = children_cpu()
        server = Program([self.PROGRAM, "-p", str(port)], env)
        try:
            wait_for_port(port)
            argv = self.command(cell, iterations, ("-p", port, *extra))
            status, out, err = Program(argv, env).finish(60)
            if status == 0:
                status, _, err = server.finish(20)
        finally:
            server.kill()
        lines = [line for line in out.splitlines() if line.strip()[:1].isdigit()]
        if status != 0 or not lines:
            raise Failed(f"exit status {status}: {shlex.join(argv)}\n{err[-2000:]}{out[-500:]}")
        row = [float(x) for x in lines[-1].split(",")]
        self.rate[cell] = row[7]
        return row, children_cpu() - before

    def shown(self, cell, warmup, seconds):
        words = [f"{k}={shlex.quote(v)}" for k, v in self.env.items()]
        return " ".join(words + [shlex.join(self.command(cell, self.iterations(cell, seconds)))])


def wait_for_port(port):
    """Until something listens there. Its output cannot tell: it is buffered."""
    deadline, needle = time.monotonic() + 10, f":{port:04X} "
    while time.monotonic() < deadline:
        for name in ("tcp", "tcp6"):
            for line in pathlib.Path(f"/proc/net/{name}").read_text().splitlines():
                words = line.split()
                if len(words) > 3 and words[1].endswith(needle.strip()) and words[3] == "0A":
                    return
        time.sleep(0.005)
    raise Failed(f"nothing listens on port {port}")
