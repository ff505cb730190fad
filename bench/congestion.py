# SPDX-License-Identifier: Apache-2.0
"""The congestion control of what a benchmark runs over TCP: every column gets the same one."""
import pathlib
import socket
import tempfile

import machine
from program import Failed


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


def controls(names, build, parser):
    """Those of the names, with commas between, that can be had here."""
    library = build / "test" / "libcongestion.so"
    found = [Congestion(name, library) for name in names.split(",") if Congestion.allowed(name)]
    for name in set(names.split(",")) - {c.name for c in found}:
        machine.log(f"congestion control {name} is left out: not allowed here "
                    "(see net.ipv4.tcp_allowed_congestion_control)")
    if not found:
        parser.error(f"--cc: none of {names} can be had here")
    return found
