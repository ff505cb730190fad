# SPDX-License-Identifier: Apache-2.0
"""bench-socket: the socket plugin, UCX, plain TCP streams and any other plugin, between two processes over loopback."""
import collections
import shutil
import time

import machine
import report
from columns import KitBench, Ucx
from congestion import controls
from program import Failed
from report import OURS, load_fact, load_warnings, millions, size_name, spread_cell, table, with_second

NAME, LIBRARY, HEADING = "socket", "libnccl-net-socket.so", "TCP transports side by side"
SIZES, QUICK_SIZES = "8,4K,64K,1M,4M,64M", "8,4K,64K,4M"
METRICS = ("bw", "cpu", "lat")
METRICS_HELP = "bw: transfers; cpu: the same with a caller that sleeps 20 us when idle; lat: ping-pong (all)"
SECONDS, WARMUP, WAIT = (0.2, 0.1), (0.05, 0.03), 30  # full, quick
QUICK_HELP = "cubic only, fewer sizes, one round: half a minute"
COLUMNS_HELP = f"{OURS}, ucx, tcp, and each plugin's name"
MUST_BE_RIGHT = (OURS, "tcp")
GROUP = "cc"  # what a run notes besides its cell: the congestion control
KIB = 1 << 10

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


# ---- what the driver asks ----


def add_arguments(p):
    p.add_argument("--cc", default="cubic,bbr", help="congestion controls, with commas, each given to all (cubic,bbr)")
    p.add_argument("--comms", default="1,4", help="numbers of connections, with commas (1,4)")


def check_arguments(o, p):
    if o.quick and o.cc == p.get_default("cc"):
        o.cc = "cubic"
    o.comms = [int(x) for x in o.comms.split(",")]
    if min(o.comms) < 1:
        p.error("wants --comms from 1")


def make_columns(o, plugins, env):
    program, lo = o.build / "bin" / "rail-kit", {"NCCL_SOCKET_IFNAME": "lo"}
    columns = [KitBench(key, title, program, [path], {**lo, **env.get(key, {})}) for key, title, path in plugins]
    ucx = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo", **env.get("ucx", {})}
    return columns + [Ucx("UCX tcp", ucx), KitBench("tcp", "plain TCP", program, ["--tcp"], env.get("tcp"))]


def try_columns(columns, congestion):
    """A plugin that cannot be driven at all ends the run at once, with its reason."""
    for column in columns:
        result = congestion.run(column, Cell("bw", 4096, 1, 8, 0), 0.01, 0.02)
        if result["verdict"] != "ok":
            raise Failed(f"{column.title} does not work at all: {result['what']}\n{result.get('said', '')}")


def measure(o, columns, plugins, env, p, about):
    """The rows and cells of all runs; what was measured how goes to `about`."""
    congestions = controls(o.cc, o.build, p)
    if any(c.key == "ucx" for c in columns) and not shutil.which(Ucx.PROGRAM):
        p.error(f"{Ucx.PROGRAM} is missing; config/setup.sh bench brings it (or leave the column out with --only)")
    cells, by_name = make_cells(o.sizes, o.comms, o.metrics), {c.name: c for c in congestions}
    about |= {"ucx": machine.first_line("ucx_info", "-v"), "congestion_controls": list(by_name)}
    start = time.monotonic()
    try_columns(columns, congestions[0])
    rows, about["load_in_rounds"] = report.alternate(
        columns, [({GROUP: name}, cell) for name in by_name for cell in cells], o.rounds,
        lambda column, noted, cell: by_name[noted[GROUP]].run(column, cell, o.warmup, o.seconds))
    about["seconds"] = round(time.monotonic() - start, 1)
    example = next((c for c in cells if c.kind == "bw" and c.comms == 1 and not c.idle), cells[0])
    about["unverified"] = sorted(set().union(*(c.unverified for c in congestions)))
    about["columns"] = {c.key: {"title": c.title, "wire": c.wire, "command": c.shown(example, o.warmup, o.seconds)}
                        for c in columns if c.has(example)}
    return rows, cells


# ---- results ----

# What is to be reached: (metric, which cells, peer or None for a figure of its own, bound, in words)
FROM_64K = lambda c: c.kind == "bw" and c.size >= 64 * KIB and c.idle == 0
TARGETS = [
    ("gb_s", FROM_64K, "nccl-socket", 1.2, "bandwidth from 64 KiB"),
    ("gb_s", FROM_64K, "tcp", 0.95, "bandwidth from 64 KiB"),
    ("gb_s", lambda c: c.kind == "bw" and c.size == 4 * KIB and c.comms == 1 and c.idle == 0, None, 2.4,
     "GB/s at 4 KiB"),
    ("messages_s", lambda c: c.kind == "bw" and c.size == 8 and c.comms == 1 and c.idle == 0, None, 2.5e6,
     "messages/s at 8 B"),
    ("p50", lambda c: c.kind == "lat" and c.size == 8, "ucx", 1.02, "half round trip at 8 B"),
    ("cpu_s_per_gb", lambda c: c.kind == "bw" and c.size >= 64 * KIB and c.idle > 0, "nccl-socket", 0.8,
     "CPU per byte from 64 KiB when the caller sleeps"),
]


def lead(cell):
    size = {"size": size_name(cell.size)}
    return size if cell.kind == "lat" else size | {"comms": str(cell.comms), "window": str(cell.window)}


def describe(cell):
    kind, size, comms, window, idle = cell
    return f"{kind} {size_name(size)} x{comms} window {window}" + (f" sleep {idle} us" if idle else "")


def tables(results, cc, cells):
    """(caption, header, body) of each table of a congestion control."""
    moving = [c for c in cells if c.kind == "bw" and c.idle == 0]
    plain = [c for c in moving if not (c.size == 8 and c.window > 8)]
    small = [c for c in moving if c.size == 8]
    asleep = [c for c in cells if c.kind == "bw" and c.idle > 0]
    pings = [c for c in cells if c.kind == "lat"]
    wanted = [
        (f"bandwidth, GB/s (1e9 bytes): median (least-greatest); {cc}", plain, "gb_s", spread_cell(results, "gb_s")),
        (f"million messages/s: median; {cc}", small, "messages_s", millions(results)),
        (f"half round trip, us: p50 (p99), medians; {cc}", pings, "p50", with_second(results, "p50", "p99")),
        (f"CPU-seconds per GB of both processes, caller yields when idle: median; {cc}", plain, "cpu_s_per_gb",
         with_second(results, "cpu_s_per_gb", "gb_s")),
        (f"CPU-seconds per GB of both processes, caller sleeps 20 us when idle: median; {cc}", asleep, "cpu_s_per_gb",
         with_second(results, "cpu_s_per_gb", "gb_s")),
    ]
    return [(caption + (" (GB/s in brackets)" if metric == "cpu_s_per_gb" else ""),
             *table(results, cc, some, metric, text, lead)) for caption, some, metric, text in wanted if some]


def targets(cc):
    """Figures without a peer are set for cubic."""
    return [t for t in TARGETS if t[2] or cc == "cubic"]


def facts(about):
    return [
        f"{about['date']}; {about['cpu']}, {about['cores']} cores, {about['memory_gib']} GiB; Linux {about['kernel']}",
        f"TCP congestion control: the system's is {about['congestion_control']}; measured, and verified on every "
        f"socket: {', '.join(about['congestion_controls'])}",
        f"railyard {about['railyard']}; UCX {about['ucx'].removeprefix('# ')}; {about['compiler']}",
        f"loopback, two processes, one thread each, {about['bound']}; {about['rounds']} round(s), "
        f"{about['timed_s']:g} s a cell after {about['warmup_s']:g} s warm-up; {about['seconds']:.0f} s in all",
        load_fact(about),
    ]


def panels(results, about, cells):
    moving = [c for c in cells if c.kind == "bw" and c.idle == 0 and not (c.size == 8 and c.window > 8)]
    lines = [(f"{n} comm{'s' if n > 1 else ''}", [c for c in moving if c.comms == n])
             for n in sorted({c.comms for c in moving})]
    return report.bandwidth_panels(results, groups(about), "loopback TCP,", lines)


def groups(about):
    return about["congestion_controls"]


def section_title(cc):
    return cc


def extra_sections(o, about):
    return [], {}


def notes(about, quiet):
    found = load_warnings(about, quiet)
    if about["unverified"]:
        found.append(f"WARNING: not all sockets were seen, so their congestion control is not known: "
                     f"{', '.join(about['unverified'])}.")
    return found
