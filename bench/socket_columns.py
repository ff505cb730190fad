# SPDX-License-Identifier: Apache-2.0
"""What bench-socket compares: cells, and the programs that fill them."""
import collections
import pathlib
import shlex
import socket
import tempfile

from columns import Counted, free_port
from program import Failed

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
        self.unverified = set()  # columns not all of whose sockets were seen

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

    def run(self, column, cell, warmup, seconds):
        """A cell with it: the column's figures."""
        with tempfile.TemporaryDirectory(prefix="rail-bench-") as folder:
            report = pathlib.Path(folder) / "congestion"
            result = column.run(cell, self.environment(report), warmup, seconds)
            if result["verdict"] == "ok" and self.verify(report, f"{column.title}, {cell}") < 2:
                self.unverified.add(column.title)
        return result


class Ucx(Counted):
    """ucx_perftest's tag-matching tests over tcp. It spins when idle, and drives one connection per thread, so there
    is one connection; it sends from one buffer and checks nothing."""

    PROGRAM = "ucx_perftest"

    def __init__(self, env=None):
        super().__init__("ucx", "UCX tcp", {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo", **(env or {})})
        self.wire = self.PROGRAM

    def has(self, cell):
        return cell.comms == 1 and cell.idle == 0

    def command(self, cell, iterations, extra=()):
        test = "tag_lat" if cell.kind == "lat" else "tag_bw"
        how = ["-t", test, "-s", cell.size, "-O", cell.window, "-n", iterations, "-w", max(1, iterations // 8), *extra]
        return [self.PROGRAM, "127.0.0.1"] + [str(x) for x in how] + ["-f", "-v"]

    def timed(self, cell, env, seconds):
        if cell.kind != "lat":
            return self.transfers(cell, env, seconds, 1.125)  # an eighth is warm-up
        n = self.iterations(cell, seconds)
        p50, _ = self.once(cell, env, n)
        p99, _ = self.once(cell, env, n, ("-R", "99"))
        return {"verdict": "ok", "messages": n, "half_us": {"p50": p50[1], "p99": p99[1]}}

    def once(self, cell, env, iterations, extra=()):
        """(the row of numbers, CPU seconds of both processes); remembers the rate."""
        port = free_port()
        argv = self.command(cell, iterations, ("-p", port, *extra))
        out, cpu = self.pair(cell, env, [self.PROGRAM, "-p", str(port)], argv, port)
        lines = [line for line in out.splitlines() if line.strip()[:1].isdigit()]
        if not lines:
            raise Failed(f"no figures: {shlex.join(argv)}\n{out[-500:]}")
        row = [float(x) for x in lines[-1].split(",")]
        self.rate[cell] = row[7]  # its own count of messages a second; its megabytes are powers of two
        return row, cpu

    def shown(self, cell, warmup, seconds):
        words = [f"{k}={shlex.quote(v)}" for k, v in self.env.items()]
        return " ".join(words + [shlex.join(self.command(cell, self.iterations(cell, seconds)))])
