# SPDX-License-Identifier: Apache-2.0
"""The results of bench-socket: what its tables show, what is to be reached, and its plot."""
import results as shared
from report import load_fact, load_warnings, size_name
from results import COLORS, millions, spread_cell, table, with_second

KIB = 1 << 10

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
        f"loopback, two processes, one thread each, not bound to cores; {about['rounds']} round(s), "
        f"{about['timed_s']:g} s a cell after {about['warmup_s']:g} s warm-up; {about['seconds']:.0f} s in all",
        load_fact(about),
    ]


def draw(path, results, congestions, cells):
    """Bandwidth over size: a panel for each congestion control, a line for each column and number of connections."""
    sizes = sorted({c.size for c in cells if c.kind == "bw"})
    comms = sorted({c.comms for c in cells if c.kind == "bw"})
    top = max((row.get("gb_s", 0) for runs in results.runs.values() for row in runs.values()), default=0)
    panels = []
    for cc in congestions:
        lines = []
        for number, column in enumerate(results.columns):
            color = "#777777" if column.key == "tcp" else COLORS[number % len(COLORS)]
            for n in comms:
                points = [(c.size, results.median(cc, c, column.key, "gb_s")) for c in cells
                          if c.kind == "bw" and c.comms == n and c.idle == 0 and not (c.size == 8 and c.window > 8)]
                points = [p for p in points if p[1] is not None]
                if points:
                    lines.append((f"{column.title}, {n} comm{'s' if n > 1 else ''}", color, 1 if n == comms[0] else 2,
                                  points))
        panels.append((f"Loopback TCP, {cc}", lines))
    return shared.draw(path, panels, sizes, top)


def write(out, columns, about, cells, rows, quiet, say):
    out.mkdir(parents=True, exist_ok=True)
    results, congestions = shared.Results(rows, columns, cells, "cc"), about["congestion_controls"]
    notes = load_warnings(about, quiet)
    if about["unverified"]:
        notes.append(f"WARNING: not all sockets were seen, so their congestion control is not known: "
                     f"{', '.join(about['unverified'])}.")
    sections = [(cc, tables(results, cc, cells)) for cc in congestions]
    verdicts = [line for cc in congestions for line in shared.judge(results, cc, cells, targets(cc), describe)]
    plot = draw(out / "socket.svg", results, congestions, cells)
    shared.write(out, "socket", "TCP transports side by side", about, facts(about), sections, verdicts,
                 shared.faults(results, describe), notes, plot, {"runs": rows}, say)
