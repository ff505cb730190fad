# SPDX-License-Identifier: Apache-2.0
"""What benchmarks of transports compare: columns, each a program that fills cells."""
import json
import pathlib
import random
import shlex
import socket
import time

import machine
from program import Failed, Program, children_cpu


class Column:
    """`run` takes a cell, variables for its programs, and seconds; it returns a dictionary with "verdict": ok, wrong,
    failed or stuck, and the figures when it is ok."""

    cores = None  # --bind: processors, of the process that sends or calls, and of the other

    def __init__(self, key, title, env=None):
        self.key, self.title, self.env = key, title, dict(env or {})
        self.wire = ""  # what the program reports that it measured

    def has(self, cell):
        return True

    def environment(self, cell):
        return self.env

    def bound(self, side, argv):
        return ["taskset", "-c", str(self.cores[side]), *argv] if self.cores else argv


def bind(columns, wanted):
    """--bind: each of the two processes of every program gets a core of its own. What a report says of it."""
    if not wanted:
        return "not bound to cores"
    cores = machine.cores()[:2]
    if len(cores) < 2:
        raise Failed("--bind wants 2 cores, one for each of the two processes; this program may use 1")
    for column in columns:
        column.cores = cores
    return f"each bound to a core, processors {cores[0]} and {cores[1]}"


SPIN = "spin"  # what a caller does when nothing moved: looks again; else us of sleep, 0: sched_yield


class KitBench(Column):
    """One cell of `rail-kit bench`: a plugin's vtable, or plain TCP streams."""

    def __init__(self, key, title, program, how, env=None):
        super().__init__(key, title, env)
        self.base = [str(program), "bench"] + how

    def command(self, cell, warmup, seconds):
        idle = ["--spin"] if cell.idle == SPIN else ["--sleep", cell.idle]
        idle += ["--one-buffer"] if getattr(cell, "one_buffer", False) else []
        how = ["--size", cell.size, "--comms", cell.comms, "--window", cell.window, *idle, "--kind", cell.kind,
               "--rounds", 1, "--warmup", warmup, "--seconds", seconds, "--check", 0]
        how += ["--bind", "{},{}".format(*self.cores)] if self.cores else []
        return self.base + [str(x) for x in how]

    def run(self, cell, env, warmup, seconds):
        argv = self.command(cell, warmup, seconds) + ["--quiet", "--json", "-"]
        status, out, err = Program(argv, {**self.environment(cell), **env}).finish()
        if status not in (0, 1, 3) or not out:  # 3: there is no such plugin, which the cell says, too
            raise Failed(f"exit status {status}: {shlex.join(argv)}\n{err[-3000:]}")
        return self.one_cell(json.loads(out))

    def one_cell(self, found):
        about = found["columns"][0]
        self.wire = f"{about['wire']} v{about['version']}" if about["version"] else about["wire"]
        result = {"wire": about["wire"], "abi": about["version"], **found["cells"][0]["results"][0]["rounds"][0]}
        half = {key: result.pop(f"half_{key}_us") for key in ("min", "p50", "p90", "p99") if f"half_{key}_us" in result}
        if half and result["seconds"] and result["messages"]:  # of both directions
            half["mean"] = result["seconds"] * 1e6 / result["messages"]
        return result | ({"half_us": half} if half else {})

    def shown(self, cell, warmup, seconds):
        words = [f"{k}={shlex.quote(v)}" for k, v in self.environment(cell).items()]
        return " ".join(words + [shlex.join(self.command(cell, warmup, seconds))])


class Counted(Column):
    """A program that counts iterations instead of time: two short runs of a cell show how many it needs. CPU time is
    that of both processes, less what starting, connecting and closing cost."""

    FIRST = (20000, 64 << 20)  # the first guess: messages, or bytes, whatever is less
    LEAST = 1  # iterations that it accepts

    def __init__(self, key, title, env=None):
        super().__init__(key, title, env)
        self.rate = {}  # messages a second, from the last run of a cell
        self.start_cpu = {}

    def run(self, cell, env, warmup, seconds):
        env = {**self.environment(cell), **env}
        try:
            if cell not in self.rate:  # a first guess, then a better one
                self.once(cell, env, max(self.LEAST, min(self.FIRST[0], self.FIRST[1] // cell.size)))
                self.once(cell, env, self.iterations(cell, warmup))
            return self.timed(cell, env, seconds)
        except Failed as why:
            return {"verdict": "failed", "what": str(why)}

    def iterations(self, cell, seconds):
        return max(10, int(self.rate.get(cell, 1000) * seconds))  # no rate: the cell has failed

    def transfers(self, cell, env, seconds, begun=1.0):
        """A cell of kind "bw": begun is how many messages the program moves for each that it counts."""
        n = self.iterations(cell, seconds)
        if cell not in self.start_cpu:
            rate = self.rate[cell]
            self.start_cpu[cell] = self.once(cell, env, self.LEAST)[1]
            self.rate[cell] = rate  # that run's is no measure
        _, cpu = self.once(cell, env, n)
        rate, cpu = self.rate[cell], cpu - self.start_cpu[cell]
        per_gb = {"cpu_s_per_gb": cpu / ((n * begun - self.LEAST) * cell.size) * 1e9} if cpu > 0 else {}
        return {"verdict": "ok", "messages": n, "messages_s": rate, "gb_s": rate * cell.size / 1e9, **per_gb}

    def pair(self, cell, env, server, client, port):
        """Runs both programs to their ends: the client's argv and output, and the CPU seconds of both."""
        before = children_cpu()
        listening = Program(self.bound(1, server), env)
        try:
            wait_for_port(port, listening.child)
            status, out, err = Program(self.bound(0, client), env).finish(60)
            if status == 0:
                status, _, err = listening.finish(20)
        finally:
            listening.kill()
        if status != 0:
            raise Failed(f"exit status {status}: {shlex.join(client)}\n{err[-2000:]}{out[-500:]}")
        return out, children_cpu() - before


class Ucx(Counted):
    """ucx_perftest's tag-matching tests; the environment says over which transport. It spins when idle, and drives one
    connection per thread, so there is one connection; it sends from one buffer and checks nothing."""

    PROGRAM = "ucx_perftest"

    def __init__(self, title, env):
        super().__init__("ucx", title, env)
        self.wire = self.PROGRAM

    def has(self, cell):
        return cell.comms == 1 and cell.idle in (0, SPIN)

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
        return {"verdict": "ok", "messages": n, "half_us": {"mean": p50[3], "p50": p50[1], "p99": p99[1]}}

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
        words = [f"{k}={shlex.quote(v)}" for k, v in self.environment(cell).items()]
        return " ".join(words + [shlex.join(self.bound(0, self.command(cell, self.iterations(cell, seconds))))])


def free_port():
    """Below those that Linux gives to whoever asks for any: until a program listens there, nobody else gets it."""
    while True:
        port = random.randrange(10000, 32768)
        with socket.socket() as s:
            try:
                s.bind(("", port))
                return port
            except OSError:
                pass


def wait_for_port(port, child):
    """Until something listens there, in the child's network. Its output does not show it: it is buffered."""
    deadline, needle = time.monotonic() + 30, f":{port:04X}"
    while time.monotonic() < deadline and child.poll() is None:
        for name in ("tcp", "tcp6"):
            for line in pathlib.Path(f"/proc/{child.pid}/net/{name}").read_text().splitlines():
                words = line.split()
                if len(words) > 3 and words[1].endswith(needle) and words[3] == "0A":
                    return
        time.sleep(0.005)
    raise Failed(f"nothing listens on port {port}")
