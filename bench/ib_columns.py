# SPDX-License-Identifier: Apache-2.0
"""What bench-ib compares: cells, the two ports that they run between, and the programs that fill them."""
import collections
import shlex

from columns import SPIN, Counted, KitBench, free_port
from program import Failed

WINDOW = 8           # messages outstanding on each queue pair
MOST_IN_WINDOW = 32  # receives that a plugin has to take (NCCL_NET_MAX_REQUESTS)
# A process that does what a receiver does that looks for completions: it takes a processor, and yields
POLLER = ["bash", "-c", "python3 -c 'import os\nwhile os.getppid() > 1: os.sched_yield()' & \"$@\"; status=$?; "
          "kill $!; exit $status", "-"]
# Fields as of bench-socket's cells, which rail-kit bench takes alike, and the number of queue pairs
Cell = collections.namedtuple("Cell", "kind size comms window idle qps")
# Two RDMA ports that stand for two hosts. netns, socket: None on a machine's own devices
Ports = collections.namedtuple("Ports", "devices netns address ifname gid_index")


def lab_ports():
    return Ports(["h0r0", "h1r0"], ["h0", "h1"], "10.77.0.2", "eth0", 1)


def own_ports(devices, gid_index):
    return Ports((devices * 2)[:2], None, "127.0.0.1", "lo", gid_index)


def make_cells(sizes, qps, metrics, idle, window=WINDOW):
    cells = []
    for size in sizes:
        for n in qps:
            if "lat" in metrics:
                cells.append(Cell("lat", size, 1, 2, SPIN, n))  # as ib_write_lat does
            if "bw" in metrics:
                cells.append(Cell("bw", size, 1, min(window * n, MOST_IN_WINDOW), idle, n))
    return cells


class Plugin(KitBench):
    """A verbs plugin's vtable, driven by rail-kit bench: one connection; as long as its environment says
    nothing else, a message takes one queue pair, the next message the next."""

    def __init__(self, key, title, program, path, ports, env=None):
        how = [path, "--patience", "20"]
        if ports.netns:
            how += ["--netns", ",".join(ports.netns)]
        for side, device in enumerate(ports.devices):
            how += ["--side-env", f"{side}:NCCL_IB_HCA=={device}"]
        super().__init__(key, title, program, how, {"NCCL_SOCKET_IFNAME": f"={ports.ifname}", **(env or {})})
        self.gid_index = ports.gid_index if not ports.netns else None  # in the lab a plugin has to find it

    def environment(self, cell):
        qps = {"NCCL_IB_QPS_PER_CONNECTION": str(cell.qps)} if cell.qps > 1 else {}
        gid = {"NCCL_IB_GID_INDEX": str(self.gid_index)} if self.gid_index is not None else {}
        return {**gid, **qps, **self.env}


class Perftest(Counted):
    """ib_write_bw and ib_send_bw: as many messages outstanding on all queue pairs as a plugin has in its window, a
    completion for each, polled without a pause. ib_write_lat: the peer's memory is looked at without a pause.

    beside: what runs beside the receiving side, which in ib_write_bw sleeps."""

    FIRST = (400, 4 << 20)
    LEAST = 5

    def __init__(self, program, ports, env=None, key=None, title=None, beside=()):
        super().__init__(key or program.removeprefix("ib_"), title or program, env)
        self.program, self.ports, self.wire, self.beside = program, ports, program, list(beside)

    def has(self, cell):
        if self.program.endswith("_lat"):
            return cell.kind == "lat" and cell.qps == 1
        return cell.kind == "bw"

    def command(self, cell, side, iterations, port):
        argv = ["ip", "netns", "exec", self.ports.netns[side]] if self.ports.netns else []
        argv += self.beside if side == 1 else []
        argv += [self.program, "-d", self.ports.devices[side], "-p", str(port), "-s", str(cell.size), "-F"]
        argv += ["-x", str(self.ports.gid_index)] if self.ports.gid_index is not None else []
        if cell.kind == "bw":
            argv += ["-q", str(cell.qps), "-t", str(max(1, cell.window // cell.qps)), "-Q", "1", "-N"]
        return argv + ["-n", str(max(self.LEAST, iterations // cell.qps))]

    def timed(self, cell, env, seconds):
        if cell.kind == "bw":
            return self.transfers(cell, env, seconds)
        n = self.iterations(cell, seconds)
        row, _ = self.once(cell, env, n)
        return {"verdict": "ok", "messages": n, "half_us": {"min": row[2], "p50": row[4], "p99": row[7]}}

    def once(self, cell, env, iterations):
        """(the row of numbers, CPU seconds of both processes); remembers the rate."""
        port = free_port()
        client = [*self.command(cell, 0, iterations, port), self.ports.address]
        out, cpu = self.pair(cell, env, self.command(cell, 1, iterations, port), client, port)
        rows = [line.split() for line in out.splitlines() if line.split()[:1] == [str(cell.size)]]
        try:
            row = [float(x) for x in rows[-1]]
            self.rate[cell] = self.messages_a_second(cell, row)
        except (IndexError, ValueError, ZeroDivisionError):
            raise Failed(f"no figures: {shlex.join(client)}\n{out[-500:]}") from None
        return row, cpu

    @staticmethod
    def messages_a_second(cell, row):
        """It rounds: small messages' rate is more exact as a number of messages, large ones' as MiB a second."""
        if cell.kind == "lat":
            return 1e6 / (2 * row[5])
        return row[4] * 1e6 if cell.size < 4096 else row[3] * (1 << 20) / cell.size

    def shown(self, cell, warmup, seconds):
        n = self.iterations(cell, seconds)
        server, client = (shlex.join(self.command(cell, side, n, 18515)) for side in (1, 0))
        return f"{server} & sleep 1; {client} {self.ports.address}"


def make_columns(ports, program, plugins, env):
    """plugins: [(key, title, path)]"""
    columns = [Plugin(key, title, program, path, ports, env.get(key)) for key, title, path in plugins]
    columns += [Perftest(name, ports) for name in ("ib_write_bw", "ib_send_bw", "ib_write_lat")]
    return columns + [Perftest("ib_write_bw", ports, key="write_bw_polled", title="ib_write_bw + poll", beside=POLLER)]
