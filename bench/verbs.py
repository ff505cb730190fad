#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench-ib: the ib plugin, perftest and any other plugin, between two RDMA ports of the lab (test/lab) or this machine.

`verbs.py FOLDER` is the part that runs where the ports are: it reads plan.json there and writes rows.json."""
import collections
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "test/lab"))
import ib_instructions
import machine
import report
from columns import SPIN, Counted, KitBench, bind, free_port
from program import Failed
from report import OURS, load_fact, load_warnings, size_name, spread_cell, table, with_second

NAME, LIBRARY, HEADING = "ib", "libnccl-net-ib.so", "Verbs transports side by side"
SIZES, QUICK_SIZES, METRICS = "8,4K,64K,1M", "8,64K", ("bw", "lat")
METRICS_HELP = "bw: transfers; lat: ping-pong (both)"
SECONDS, WARMUP, WAIT = (1, 0.3), (0.3, 0.1), 60  # full, quick
QUICK_HELP = "one short round of 8 B and 64 KiB"
COLUMNS_HELP = f"{OURS}, write_bw, write_bw_polled, send_bw, send_bw_events, write_lat, and each plugin's name"
MUST_BE_RIGHT = (OURS,)
GROUP = "mtu"  # what a run notes besides its cell
PORTS_MTU = "the port's"  # a group of its own where the MTU is not ours to set
NETDEV_MTU = {4096: 9000, 2048: 2200, 1024: 1500}  # the smallest usual one that leaves RDMA this much
KIB = 1 << 10

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
    """A verbs plugin's vtable, driven by rail-kit bench: one connection; unless its environment says
    otherwise, a message takes one queue pair, the next message the next."""

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

    beside: what runs beside the receiving side, which in ib_write_bw sleeps. events: who waits for completions sleeps
    until an event tells of them."""

    FIRST = (400, 4 << 20)
    LEAST = 5

    def __init__(self, program, ports, env=None, key=None, title=None, beside=(), events=False):
        super().__init__(key or program.removeprefix("ib_"), title or program, env)
        self.program, self.ports, self.wire, self.beside = program, ports, program, list(beside)
        self.events = ["-e"] if events else []

    def has(self, cell):
        if self.program.endswith("_lat"):
            return cell.kind == "lat" and cell.qps == 1
        return cell.kind == "bw"

    def command(self, cell, side, iterations, port):
        argv = ["ip", "netns", "exec", self.ports.netns[side]] if self.ports.netns else []
        argv += self.beside if side == 1 else []
        argv += [self.program, "-d", self.ports.devices[side], "-p", str(port), "-s", str(cell.size), "-F"]
        argv += self.events
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
        server, client = (shlex.join(self.bound(side, self.command(cell, side, n, 18515))) for side in (1, 0))
        return f"{server} & sleep 1; {client} {self.ports.address}"


def columns_between(ports, program, plugins, env):
    """plugins: [(key, title, path)]"""
    columns = [Plugin(key, title, program, path, ports, env.get(key)) for key, title, path in plugins]
    columns += [Perftest(name, ports) for name in ("ib_write_bw", "ib_send_bw", "ib_write_lat")]
    columns += [Perftest("ib_send_bw", ports, key="send_bw_events", title="ib_send_bw -e", events=True)]
    return columns + [Perftest("ib_write_bw", ports, key="write_bw_polled", title="ib_write_bw + poll", beside=POLLER)]


# ---- where the ports are ----


class Mtu:
    """Set where the lab allows it; else what the ports have."""

    def __init__(self):
        self.now = None

    def set(self, mtu):
        if mtu == self.now or not os.environ.get("RAIL_LAB_GUEST"):
            return
        from lab import hosts, port, set_mtu
        set_mtu(NETDEV_MTU[mtu])
        got = port(hosts[0].nics[0]).active_mtu
        if got != mtu:
            raise Failed(f"the ports have an RDMA MTU of {got}, not {mtu}")
        self.now = mtu


def try_columns(columns, cells, plan):
    """What cannot be driven at all ends the run at once, with its reason."""
    for column in columns:
        cell = next((c for c in cells if column.has(c)), None)
        result = column.run(cell, {}, 0.05, 0.1) if cell else {"verdict": "ok"}
        if result["verdict"] != "ok":
            raise Failed(f"{column.title} does not work at all: {result['what']}\n{result.get('said', '')}")
        wanted = plan["wires"].get(column.key)
        if wanted and result["wire"] != wanted:
            raise Failed(f"{column.title}: the plugin calls itself {result['wire']}, not {wanted}")


def measure_plan(plan):
    ports = lab_ports() if plan["devices"] is None else own_ports(plan["devices"], plan["gid_index"])
    columns = columns_between(ports, plan["program"], plan["plugins"], plan["env"])
    columns = [c for c in columns if c.key in plan["only"]]
    bound = bind(columns, plan["bind"])
    cells, mtu = make_cells(plan["sizes"], plan["qps"], plan["metrics"], plan["idle"], plan["window"]), Mtu()
    jobs = [({"mtu": m}, cell) for m in plan["mtus"] for cell in cells]

    def run(column, noted, cell):
        mtu.set(noted["mtu"])
        result = column.run(cell, {}, plan["warmup"], plan["seconds"])
        if result["verdict"] != "ok":
            machine.log(f"{column.title}, {cell.kind} {cell.size} bytes, {cell.qps} QPs: "
                        f"{result['verdict']}: {result['what']}")
        return result

    mtu.set(plan["mtus"][0])
    try_columns(columns, cells, plan)
    start = time.monotonic()
    rows, loads = report.alternate(columns, jobs, plan["rounds"], run)
    shown = {c.key: next((x for x in cells if c.has(x) and x.size >= 65536), next(filter(c.has, cells), None))
             for c in columns}
    return {"rows": rows, "loads": loads, "seconds": round(time.monotonic() - start, 1), "kernel": os.uname().release,
            "perftest": machine.first_line("ib_write_bw", "--version"),
            "libibverbs": machine.first_line("dpkg-query", "-W", "-f", "${Version}", "libibverbs1"),
            "devices": ports.devices, "bound": bound,
            "columns": {c.key: {"title": c.title, "wire": c.wire,
                                "command": c.shown(shown[c.key], plan["warmup"], plan["seconds"])}
                        for c in columns if shown[c.key]}}


# ---- what the driver asks ----


def add_arguments(p):
    p.add_argument("--dev", metavar="A[,B]", help="RDMA devices of this machine to run between, instead of the lab")
    p.add_argument("--gid-index", type=int, help="with --dev: for all columns; else each chooses")
    p.add_argument("--qps", default="1,4", help="queue pairs of the connection, with commas (1,4)")
    p.add_argument("--mtu", default="4096", help="of RDMA, in the lab, with commas: 1024, 2048, 4096 (4096)")
    p.add_argument("--idle", type=int, default=0, metavar="US",
                   help="how long a plugin's caller sleeps in transfers when nothing moved; 0: sched_yield (0)")
    p.add_argument("--window", type=int, default=WINDOW, metavar="N",
                   help=f"messages outstanding on each queue pair, {MOST_IN_WINDOW} at most in all ({WINDOW})")


def check_arguments(o, p):
    o.qps = [int(x) for x in o.qps.split(",")]
    o.mtus = [PORTS_MTU] if o.dev else [int(x) for x in o.mtu.split(",")]
    if min(o.qps) < 1 or max(o.qps) > 128:
        p.error("wants --qps from 1 to 128")
    if not o.dev and set(o.mtus) - set(NETDEV_MTU):
        p.error(f"--mtu {o.mtu}: {', '.join(map(str, sorted(NETDEV_MTU)))}")
    if not 0 <= o.idle <= 100000:
        p.error(f"--idle {o.idle}: 0 to 100000")
    if not 1 <= o.window <= MOST_IN_WINDOW:
        p.error(f"--window {o.window}: 1 to {MOST_IN_WINDOW}")
    if o.dev and not 1 <= len(o.dev.split(",")) <= 2:
        p.error(f"--dev {o.dev}: one device or two")


def make_columns(o, plugins, env):
    return columns_between(lab_ports(), str(o.build / "bin" / "rail-kit"), plugins, env)


def execute(plan):
    """Has the plan run where the ports are. (rows.json, what others used of this machine)"""
    with tempfile.TemporaryDirectory(prefix="rail-bench-") as name:
        folder = pathlib.Path(name)
        (folder / "plan.json").write_text(json.dumps(plan))
        inside = [sys.executable, str(ROOT / "bench/verbs.py")]
        if plan["devices"] is None:
            argv = [sys.executable, str(ROOT / "test/lab/boot.py"), "--hosts", "2", "--nics", "1", "--mtu",
                    str(NETDEV_MTU[plan["mtus"][0]]), "--limit", "3600", "--out", name, "--",
                    f"{shlex.join(inside)} \"$RAIL_LAB_OUT\""]
        else:
            argv = [*inside, name]
        with machine.Sampler() as load:
            status = subprocess.run(argv).returncode
        found = folder / "rows.json"
        if status != 0 or not found.exists():
            raise Failed(f"no figures: exit status {status}")
        return json.loads(found.read_text()), load.seen


def measure(o, columns, plugins, env, p, about):
    """The rows and cells of all runs; what was measured how goes to `about`."""
    given = [word for i, word in enumerate(sys.argv[2:], 2) if "--build" not in sys.argv[i - 1:i + 1]]
    about |= {"mtus": o.mtus, "lab": not o.dev, "command": f"make bench-ib RUN={shlex.quote(shlex.join(given))}"}
    plan = {"devices": o.dev.split(",") if o.dev else None, "gid_index": o.gid_index,
            "program": str(o.build / "bin" / "rail-kit"), "plugins": plugins, "env": env,
            "only": [c.key for c in columns], "sizes": o.sizes, "qps": o.qps, "metrics": o.metrics, "mtus": o.mtus,
            "idle": o.idle, "window": o.window, "bind": o.bind, "rounds": o.rounds, "seconds": o.seconds,
            "warmup": o.warmup,
            "wires": {} if o.ours else {OURS: "RailIB"}}
    found, about["load_in_rounds"] = execute(plan)
    about |= {key: found[key] for key in ("perftest", "libibverbs", "devices", "bound", "columns", "seconds")}
    about["guest_kernel"] = found["kernel"]
    for column in about["columns"].values():
        column["command"] = column["command"].replace(f"{ROOT}/", "")
    return found["rows"], make_cells(o.sizes, o.qps, o.metrics, o.idle, o.window)


# ---- results ----

# What is to be reached: (metric, which cells, peer, bound, in words)
TARGETS = [
    ("gb_s", lambda c: c.kind == "bw" and c.size >= 64 * KIB, "write_bw", 0.98, "bandwidth from 64 KiB"),
    ("p50", lambda c: c.kind == "lat" and c.size == 8 and c.qps == 1, "write_lat", 1.25, "half round trip at 8 B"),
]


def lead(cell):
    words = {"size": size_name(cell.size), "QPs": str(cell.qps)}
    if cell.kind == "lat":
        return words
    return words | {"window": str(cell.window)} | ({"idle": f"{cell.idle} us"} if cell.idle else {})


def describe(cell):
    kind, size, _, _, idle, qps = cell
    sleep = f" sleep {idle} us" if idle and kind == "bw" else ""
    return f"{kind} {size_name(size)} {qps} QP{'s' if qps > 1 else ''}{sleep}"


def tables(results, mtu, cells):
    moving = [c for c in cells if c.kind == "bw"]
    small = [c for c in moving if c.size <= 4 * KIB]
    pings = [c for c in cells if c.kind == "lat"]
    wanted = [
        ("bandwidth, GB/s (1e9 bytes): median (least-greatest)", moving, "gb_s", spread_cell(results, "gb_s")),
        ("messages/s: median (least-greatest)", small, "messages_s", spread_cell(results, "messages_s")),
        ("half round trip, us: p50 (p99), medians", pings, "p50", with_second(results, "p50", "p99")),
        ("CPU-seconds per GB of both processes: median (GB/s in brackets)", moving, "cpu_s_per_gb",
         with_second(results, "cpu_s_per_gb", "gb_s")),
    ]
    return [(caption, *table(results, mtu, some, metric, text, lead)) for caption, some, metric, text in wanted if some]


def facts(about):
    where = (f"in the lab's guest: Linux {about['guest_kernel']} with Soft-RoCE, 2 emulated CPUs, two hosts as network "
             "namespaces, one switch" if about["lab"] else "on this machine's own ports")
    return [
        f"{about['date']}; {about['cpu']}, {about['cores']} cores, {about['memory_gib']} GiB; Linux {about['kernel']}",
        f"{where}; {' and '.join(about['devices'])}; RDMA MTU {', '.join(str(m) for m in about['mtus'])}",
        f"railyard {about['railyard']}; perftest {about['perftest']}; libibverbs {about['libibverbs']}; "
        f"{about['compiler']}",
        f"two processes, one thread each, {about['bound']}; {about['rounds']} round(s), {about['timed_s']:g} s a "
        f"cell after {about['warmup_s']:g} s warm-up; {about['seconds']:.0f} s in all; command: {about['command']}",
        load_fact(about),
    ]


def targets(_):
    return TARGETS


def panels(results, about, cells):
    moving = [c for c in cells if c.kind == "bw"]
    lines = [(f"{n} QP{'s' if n > 1 else ''}", [c for c in moving if c.qps == n])
             for n in sorted({c.qps for c in moving})]
    return report.bandwidth_panels(results, groups(about), "RDMA MTU", lines)


def groups(about):
    return about["mtus"]


def section_title(mtu):
    return f"RDMA MTU {mtu}"


def extra_sections(o, about):
    """Instructions for each call, counted natively."""
    why = "our plugin is another one" if o.ours else ib_instructions.possible(o.build)
    try:
        counted = None if why else ib_instructions.measure(o.build)
    except Failed as failed:
        counted, why = None, str(failed)
    if why:
        machine.log(f"no instructions counted: {why}")
    return [("Instructions", [ib_instructions.table(counted)])] if counted else [], {"instructions": counted}


notes = load_warnings


def main():
    folder = pathlib.Path(sys.argv[1])
    try:
        found = measure_plan(json.loads((folder / "plan.json").read_text()))
    except Failed as why:
        print(f"bench: {why}", file=sys.stderr)
        return 1
    (folder / "rows.json").write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
