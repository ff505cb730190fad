# SPDX-License-Identifier: Apache-2.0
"""The results of bench-socket: tables on the terminal and in Markdown, JSON, and a plot."""
import json
import statistics

from report import gnuplot, load_fact, load_warnings, markdown_table, number, size_name, text_table

OURS, KIB, MIB = "railyard", 1 << 10, 1 << 20
COLORS = ["#c0392b", "#1b6ca8", "#2e8b57", "#8e44ad", "#d35400", "#16a085"]  # "plain TCP" is always grey
# What is measured: key in a run's figures, and whether the greater one is the better
METRICS = {"gb_s": max, "messages_s": max, "cpu_s_per_gb": min, "p50": min, "p99": min}

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


def figures(row):
    """The metrics of one run."""
    found = {key: row[key] for key in METRICS if key in row}
    return found | {key: value for key, value in row.get("half_us", {}).items() if key in METRICS}


class Results:
    """Runs by congestion control, cell and column."""

    def __init__(self, rows, columns, rounds):
        self.columns, self.rounds, self.runs = columns, rounds, {}
        for row in rows:
            cell = (row["kind"], row["size"], row["comms"], row["window"], row["idle_us"])
            self.runs.setdefault((row["cc"], cell, row["column"]), {})[row["round"]] = row

    def rows(self, cc, cell, column):
        return self.runs.get((cc, tuple(cell), column), {})

    def values(self, cc, cell, column, metric):
        """By round, of the runs that went well."""
        return {n: figures(row)[metric] for n, row in self.rows(cc, cell, column).items()
                if row["verdict"] == "ok" and metric in figures(row)}

    def bad(self, cc, cell, column):
        """"wrong 2/3" and the like, or nothing."""
        verdicts = [row["verdict"] for row in self.rows(cc, cell, column).values()]
        worst = next((v for v in ("wrong", "crashed", "failed", "stuck", "skipped") if v in verdicts), None)
        return f"{worst} {sum(v != 'ok' for v in verdicts)}/{len(verdicts)}" if worst else ""

    def median(self, cc, cell, column, metric):
        values = self.values(cc, cell, column, metric).values()
        return statistics.median(values) if values else None

    def ratio(self, cc, cell, peer, metric):
        """Ours over the peer's: the median of the ratios of each round in which both went well."""
        ours, theirs = self.values(cc, cell, OURS, metric), self.values(cc, cell, peer, metric)
        ratios = [ours[n] / theirs[n] for n in ours if theirs.get(n)]
        return statistics.median(ratios) if ratios else None


def spread_cell(results, metric):
    def cell_text(cc, cell, column):
        values, bad = results.values(cc, cell, column, metric).values(), results.bad(cc, cell, column)
        text = ""
        if values:
            text = number(statistics.median(values))
            if len(values) > 1:
                text += f" ({number(min(values))}-{number(max(values))})"
        return f"{bad} {text}".strip() or "-"
    return cell_text


def with_second(results, metric, second):
    """The second metric's median in brackets."""
    def cell_text(cc, cell, column):
        one, two = (results.median(cc, cell, column, m) for m in (metric, second))
        text = f"{number(one)} ({number(two)})" if one is not None else ""
        return f"{results.bad(cc, cell, column)} {text}".strip() or "-"
    return cell_text


def millions(cell_text, results):
    def text(cc, cell, column):
        value = results.median(cc, cell, column, "messages_s")
        bad = results.bad(cc, cell, column)
        return f"{bad} {value / 1e6:.2f}".strip() if value is not None else bad or "-"
    return text


def table(results, cc, cells, metric, cell_text):
    """Header and body: a cell a column; after each peer that has figures, ours over its."""
    peers = [c for c in results.columns if any(results.rows(cc, cell, c.key) for cell in cells)]
    ours = any(c.key == OURS for c in peers)
    pings = cells[0].kind == "lat"
    head, body = ["size"] if pings else ["size", "comms", "window"], []
    for c in peers:
        head += [c.title] + (["ours/it"] if ours and c.key != OURS else [])
    for cell in cells:
        row = [size_name(cell.size)] if pings else [size_name(cell.size), str(cell.comms), str(cell.window)]
        for c in peers:
            row.append(cell_text(cc, cell, c.key))
            if ours and c.key != OURS:
                ratio = results.ratio(cc, cell, c.key, metric)
                row.append(f"{ratio:.2f}x" if ratio is not None else "-")
        body.append(row)
    return head, body


def tables(results, cc, cells):
    """(caption, header, body) of each table of a congestion control."""
    moving = [c for c in cells if c.kind == "bw" and c.idle == 0]
    plain = [c for c in moving if not (c.size == 8 and c.window > 8)]
    small = [c for c in moving if c.size == 8]
    asleep = [c for c in cells if c.kind == "bw" and c.idle > 0]
    pings = [c for c in cells if c.kind == "lat"]
    wanted = [
        (f"bandwidth, GB/s (1e9 bytes): median (least-greatest); {cc}", plain, "gb_s", spread_cell(results, "gb_s")),
        (f"million messages/s: median; {cc}", small, "messages_s", millions(None, results)),
        (f"half round trip, us: p50 (p99), medians; {cc}", pings, "p50", with_second(results, "p50", "p99")),
        (f"CPU-seconds per GB of both processes, caller yields when idle: median; {cc}", plain, "cpu_s_per_gb",
         with_second(results, "cpu_s_per_gb", "gb_s")),
        (f"CPU-seconds per GB of both processes, caller sleeps 20 us when idle: median; {cc}", asleep, "cpu_s_per_gb",
         with_second(results, "cpu_s_per_gb", "gb_s")),
    ]
    return [(caption + (" (GB/s in brackets)" if metric == "cpu_s_per_gb" else ""),
             *table(results, cc, some, metric, text)) for caption, some, metric, text in wanted if some]


def judge(results, cc, cells):
    """A line for each target: reached, missed and where, or not measured. Figures without a peer are set for cubic."""
    lines = []
    for metric, applies, peer, bound, words in TARGETS:
        if peer is None and cc != "cubic":
            continue
        got = {}
        for cell in filter(applies, cells):
            value = results.ratio(cc, cell, peer, metric) if peer else results.median(cc, cell, OURS, metric)
            if value is not None:
                got[cell] = value
        title = next((c.title for c in results.columns if c.key == peer), peer)
        goal = f"{words}: at {'least' if METRICS[metric] is max else 'most'} " + (
            f"{bound:g}x {title}" if peer else f"{bound:g}")
        short = {c: v for c, v in got.items() if (v < bound if METRICS[metric] is max else v > bound)}
        where = ", ".join(f"{size_name(c.size)} x{c.comms} window {c.window}: {v:.4g}"
                          for c, v in (short or got).items())
        verdict = "not measured" if not got else "missed" if short else "reached"
        lines.append(f"{verdict} ({cc}): {goal}" + (f"; {where}" if got else ""))
    return lines


def faults(results):
    """What went wrong, once for each cell and column."""
    lines = []
    for (cc, cell, column), runs in results.runs.items():
        bad = [row for row in runs.values() if row["verdict"] != "ok"]
        if bad:
            kind, size, comms, window, idle = cell
            title = next(c.title for c in results.columns if c.key == column)
            lines.append(f"{title}, {cc}, {kind} {size_name(size)} x{comms} window {window}"
                         f"{f' sleep {idle} us' if idle else ''}: {bad[0]['verdict']} in {len(bad)} of {len(runs)} "
                         f"runs: {bad[0]['what'].splitlines()[0][:200]}")
    return lines


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


def draw(path, results, congestions, cells, about):
    """Bandwidth over size: a panel for each congestion control, a line for each column and number of connections."""
    sizes = sorted({c.size for c in cells if c.kind == "bw"})
    comms = sorted({c.comms for c in cells if c.kind == "bw"})
    tics = ", ".join(f"'{size_name(s)}' {s}" for s in sizes)
    top = max((row.get("gb_s", 0) for runs in results.runs.values() for row in runs.values()), default=0)
    if not sizes or not top:
        return None
    lines = [f"set terminal svg size {600 * len(congestions)},560 font 'sans,13' background '#ffffff'",
             f"set output '{path}'", f"set multiplot layout 1,{len(congestions)}", "set logscale x 2", "set grid",
             "set key below maxrows 4", f"set xrange [{sizes[0] / 2}:{sizes[-1] * 2}]",
             f"set yrange [0:{1.05 * top:.3g}]", "set ylabel 'GB/s'", f"set xtics ({tics}) rotate by -35"]
    for cc in congestions:
        plots, data = [], []
        for number_, column in enumerate(results.columns):
            color = "#777777" if column.key == "tcp" else COLORS[number_ % len(COLORS)]
            for n in comms:
                points = [(c.size, results.median(cc, c, column.key, "gb_s")) for c in cells
                          if c.kind == "bw" and c.comms == n and c.idle == 0 and not (c.size == 8 and c.window > 8)]
                points = [p for p in points if p[1] is not None]
                if points:
                    plots.append(f"'-' using 1:2 with linespoints lw 2 dt {1 if n == comms[0] else 2} pt 7 ps 0.5 "
                                 f"lc rgb '{color}' title '{column.title}, {n} comm{'s' if n > 1 else ''}'")
                    data.append("\n".join(f"{x} {y:.6g}" for x, y in points) + "\ne")
        if plots:
            lines += [f"set title 'Loopback TCP, {cc}'", "plot " + ", ".join(plots)] + data
    return gnuplot(path, lines + ["unset multiplot"])


def write(out, columns, about, cells, rows, quiet, say):
    out.mkdir(parents=True, exist_ok=True)
    results, congestions = Results(rows, columns, about["rounds"]), about["congestion_controls"]
    notes, wrong = load_warnings(about, quiet), faults(results)
    if about["unverified"]:
        notes.append(f"WARNING: not all sockets were seen, so their congestion control is not known: "
                     f"{', '.join(about['unverified'])}.")
    shown = {cc: tables(results, cc, cells) for cc in congestions}
    verdicts = [line for cc in congestions for line in judge(results, cc, cells)]
    if notes:
        verdicts = [line + " (does not count: see the warning)" for line in verdicts]
    plot = draw(out / "socket.svg", results, congestions, cells, about)
    (out / "socket.json").write_text(json.dumps(
        {"about": about, "runs": rows, "targets": verdicts, "faults": wrong, "warnings": notes}, indent=1) + "\n")

    text = ["# TCP transports side by side", ""] + [f"**{n}**\n" for n in notes] + ["- " + f for f in facts(about)]
    print()
    for fact in facts(about):
        print("# " + fact)
    for cc in congestions:
        text += ["", f"## {cc}"]
        for caption, head, body in shown[cc]:
            text += ["", caption[0].upper() + caption[1:] + ":", "", markdown_table(head, body)]
            print(f"\n{caption}\n{text_table(head, body)}")
    print()
    for line in verdicts + wrong + notes:
        print(line)
    text += ["", "## Targets", ""] + ["- " + line for line in verdicts]
    if wrong:
        text += ["", "## Runs without a figure", ""] + ["- " + line for line in wrong]
    if plot:
        text += ["", f"![bandwidth over size]({plot.name})"]
    text += ["", "One cell of each column by hand:", "", "```"]
    text += [c["command"] for c in about["columns"].values()] + ["```", ""]
    (out / "socket.md").write_text("\n".join(text))
    say(f"{out}/socket.md, .json" + (", .svg" if plot else "; no plot"))
