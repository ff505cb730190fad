# SPDX-License-Identifier: Apache-2.0
"""The results of bench-ib: what its tables show, what is to be reached, and its plot."""
import ib_instructions
import results as shared
from report import load_fact, load_warnings, size_name
from results import COLORS, spread_cell, table, with_second

KIB = 1 << 10

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
        f"two processes, one thread each, not bound to cores; {about['rounds']} round(s), {about['timed_s']:g} s a "
        f"cell after {about['warmup_s']:g} s warm-up; {about['seconds']:.0f} s in all; command: {about['command']}",
        load_fact(about),
    ]


def draw(path, results, mtus, cells):
    """Bandwidth over size: a panel for each MTU, a line for each column and number of queue pairs."""
    sizes, qps = sorted({c.size for c in cells}), sorted({c.qps for c in cells})
    top = max((row.get("gb_s", 0) for runs in results.runs.values() for row in runs.values()), default=0)
    panels = []
    for mtu in mtus:
        lines = []
        for number, column in enumerate(results.columns):
            for n in qps:
                points = [(c.size, results.median(mtu, c, column.key, "gb_s")) for c in cells
                          if c.kind == "bw" and c.qps == n]
                points = [p for p in points if p[1] is not None]
                if points:
                    lines.append((f"{column.title}, {n} QP{'s' if n > 1 else ''}", COLORS[number % len(COLORS)],
                                  1 if n == qps[0] else 2, points))
        panels.append((f"RDMA MTU {mtu}", lines))
    return shared.draw(path, panels, sizes, top)


def write(out, columns, about, cells, rows, instructions, quiet, say):
    out.mkdir(parents=True, exist_ok=True)
    results, mtus = shared.Results(rows, columns, cells, "mtu"), about["mtus"]
    sections = [(f"RDMA MTU {mtu}", tables(results, mtu, cells)) for mtu in mtus]
    if instructions:
        sections.append(("Instructions", [ib_instructions.table(instructions)]))
    verdicts = [line for mtu in mtus for line in shared.judge(results, mtu, cells, TARGETS, describe)]
    plot = draw(out / "ib.svg", results, mtus, cells)
    shared.write(out, "ib", "Verbs transports side by side", about, facts(about), sections, verdicts,
                 shared.faults(results, describe), load_warnings(about, quiet), plot,
                 {"runs": rows, "instructions": instructions}, say)
