# SPDX-License-Identifier: Apache-2.0
"""The results of a run: tables on the terminal; JSON, Markdown and a plot in a folder."""
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

import machine

OURS = "railyard"
PLOT = pathlib.Path(__file__).resolve().parent.parent / "kit/plot.py"  # it documents what a figure is

RATIO_AFTER = {"ompi-shm": "shm", "ompi-tcp": "net"}  # column → whose ratio to it follows
# column → color and dash of its line, in kit/plot.py's numbers
STYLES = {"shm": (0, 0), "ompi-shm": (0, 1), "net": (3, 0), "ompi-tcp": (3, 1), "memcpy": (7, 2)}
# What is measured of transports: key in a run's figures, and whether the greater one is the better
METRICS = {"gb_s": max, "messages_s": max, "cpu_s_per_gb": min, "mean": min, "p50": min, "p99": min}


def size_name(size):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def number(x):
    """Three digits that mean something, never an exponent."""
    if x >= 100:
        return f"{x:.0f}"
    return f"{x:.1f}" if x >= 10 else f"{x:.2f}" if x >= 1 else f"{x:.3f}" if x >= 0.01 else f"{x:.5f}"


def rows_of(columns, summary, cell):
    """Header and body: one cell a column, and a ratio after each peer."""
    head, body = ["size"], []
    for c in columns:
        head += [c.title] + (["ratio"] if RATIO_AFTER.get(c.key) in summary["ratio"] else [])
    for size in summary["busbw"][columns[0].key]:
        row = [size_name(size)]
        for c in columns:
            row.append(cell(summary["busbw"][c.key][size]))
            ratio = summary["ratio"].get(RATIO_AFTER.get(c.key))
            if ratio:
                row.append(f"{ratio[size]:.2f}x")
        body.append(row)
    return head, body


def bandwidth_cell(value):
    return f"{number(value['median'])} ({number(value['min'])}-{number(value['max'])})"


def time_cell(value):
    return number(value["time_us"])


def text_table(head, body):
    widths = [max(len(r[i]) for r in [head] + body) for i in range(len(head))]
    return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(row, widths)) for row in [head] + body)


def markdown_table(head, body):
    lines = ["| " + " | ".join(r) + " |" for r in [head] + body]
    return "\n".join([lines[0], "|" + "---:|" * len(head)] + lines[1:])


def verdicts(targets, columns):
    titles = {c.key: c.title for c in columns}
    lines = []
    for ours, theirs, size, wanted, got in targets:
        if ours not in titles or theirs not in titles or got is None:
            lines.append(f"not measured: {ours} against {theirs} at {size_name(size)}, to reach {wanted:.1f}x")
            continue
        lines.append(f"{'reached' if got >= wanted else 'missed'}: {titles[ours]} at {size_name(size)} is {got:.2f}x "
                     f"{titles[theirs]}; to reach {wanted:.1f}x")
    return lines


def load_fact(about):
    loads = [r["others"] for r in about["load_in_rounds"]]
    return (f"load average before: {about['load_average_before']}; cores others kept busy before: "
            f"{about['others_before']:.2f}, in the rounds: {min(loads):.2f} to {max(loads):.2f}")


def facts(about):
    """What a reader needs to judge or repeat the run."""
    wrong = ", ".join(f"{k} {v}" for k, v in about["wrong"].items())
    return [
        f"{about['date']}; {about['cpu']}, {about['cores']} cores, {about['memory_gib']} GiB; Linux {about['kernel']}; "
        f"TCP congestion control {about['congestion_control']}",
        f"railyard {about['railyard']}; {about['openmpi']}; {about['compiler']}",
        f"{about['ranks']} ranks, float32 sum, out of place, {about['rounds']} rounds in {about['seconds']:.0f} s; "
        "no binding to cores on either side",
        load_fact(about),
        f"wrong elements in the checked runs: {wrong or 'none checked'}",
    ]


def load_warnings(about, quiet):
    out = []
    worst = max([about["others_before"]] + [r["others"] for r in about["load_in_rounds"]])
    stolen = max(r["steal"] for r in about["load_in_rounds"])
    if worst > quiet:
        out.append(f"WARNING: the machine was not quiet: others kept up to {worst:.1f} cores busy. Do not quote these "
                   "figures.")
    if stolen > 0.05:
        out.append(f"WARNING: the host withheld up to {stolen:.2f} cores from this virtual machine.")
    return out


def warnings(about, quiet):
    out = load_warnings(about, quiet)
    if about["ranks"] > about["cores"]:
        out.append(f"WARNING: {about['ranks']} ranks share {about['cores']} cores.")
    if any(about["wrong"].values()):
        out.append("WRONG RESULTS: see the checked runs.")
    return out


def write_markdown(path, about, tables, lines, notes, plot):
    text = ["# All-reduce side by side", ""]
    text += [f"**{n}**\n" for n in notes]
    text += ["- " + f for f in facts(about)]
    text += ["", "Bus bandwidth in GB/s (1e9 bytes), median over the rounds, in brackets least and greatest. "
             "memcpy: bytes copied by one thread. Ratio: median of the rounds' ratios.", "", markdown_table(*tables[0])]
    text += ["", "Time of one call in us, median:", "", markdown_table(*tables[1]), ""]
    text += ["- " + line for line in lines]
    if plot:
        text += ["", f"![bus bandwidth over size]({plot.name})"]
    text += ["", "Commands, one a block of sizes:", "", "```"]
    text += [command for commands in about["commands"].values() for command in commands] + ["```", ""]
    path.write_text("\n".join(text))


def draw(path, title, panels):
    """An SVG by kit/plot.py of panels as it takes them. Returns its path, or None where there is no matplotlib."""
    # The distribution's python first: its matplotlib is not seen by one from elsewhere.
    python = "/usr/bin/python3" if pathlib.Path("/usr/bin/python3").exists() else "python3"
    with tempfile.NamedTemporaryFile("w", suffix=".json") as figure:
        json.dump({"title": title, "panels": panels}, figure)
        figure.flush()
        done = subprocess.run([python, str(PLOT), figure.name, str(path)], text=True, capture_output=True)
    if done.returncode != 0:
        print("bench: no plot: " + done.stderr.strip())
        return None
    return path


def ticks(sizes):
    return [[size, size_name(size)] for size in sizes]


def draw_allreduce(path, columns, about, summary):
    series = []
    for c in columns:
        (color, dash), values = STYLES[c.key], summary["busbw"][c.key]
        series.append({"name": c.title, "color": color, "dash": dash, "points": c.key != "memcpy", "x": list(values),
                       "y": [v["median"] for v in values.values()], "low": [v["min"] for v in values.values()],
                       "high": [v["max"] for v in values.values()]})
    sizes = sorted(summary["busbw"][columns[0].key])
    panel = {"xlabel": "size", "ylabel": "bus bandwidth, GB/s", "xscale": "log", "yscale": "log",
             "xticks": ticks(sizes[::3]), "series": series}
    return draw(path, f"All-reduce, float32, {about['ranks']} ranks on one machine", [panel])


def write_allreduce(out, columns, about, times, summary, targets, quiet):
    out.mkdir(parents=True, exist_ok=True)
    tables = [rows_of(columns, summary, bandwidth_cell), rows_of(columns, summary, time_cell)]
    lines, notes = verdicts(targets, columns), warnings(about, quiet)
    if notes:  # a spinning peer suffers most from a busy machine: such ratios flatter us
        lines = [line + " (does not count: see the warning)" for line in lines]
    plot = draw_allreduce(out / "allreduce.svg", columns, about, summary)
    (out / "allreduce.json").write_text(json.dumps(
        {"about": about, "times_us": times, "summary": summary, "targets": lines, "warnings": notes}, indent=1) + "\n")
    write_markdown(out / "allreduce.md", about, tables, lines, notes, plot)
    print()
    for fact in facts(about):
        print("# " + fact)
    print("\nbus bandwidth, GB/s: median (least-greatest)\n" + text_table(*tables[0]))
    print("\ntime of one call, us: median\n" + text_table(*tables[1]) + "\n")
    for line in lines + notes:
        print(line)
    machine.log(f"{out}/allreduce.md, .json" + (", .svg" if plot else "; no plot"))


# ---- transports: columns that take turns ----


def alternate(columns, jobs, rounds, run):
    """Every column of a job one right after the other, forwards in one round and backwards in the next. `jobs`: (what
    to note in a row, cell); run(column, noted, cell) gives a row's figures. Returns the rows, a dictionary for each run
    of a program, and what others used of the machine, for each round."""
    rows, loads = [], []
    for round_ in range(rounds):
        order = columns if round_ % 2 == 0 else columns[::-1]
        start, watch = time.monotonic(), machine.Watch()
        for noted, cell in jobs:
            for column in order:
                if column.has(cell):
                    begun = time.monotonic()
                    figures_ = run(column, noted, cell)
                    facts = {("idle_us" if k == "idle" else k): v for k, v in cell._asdict().items()}
                    rows.append({"column": column.key, **noted, "round": round_, **figures_, **facts,
                                 "wall_s": round(time.monotonic() - begun, 3)})
        loads.append({"others": round(watch.others(), 2), "steal": round(watch.steal(), 3)})
        machine.log(f"round {round_ + 1}/{rounds}: {time.monotonic() - start:.1f} s; cores that others kept busy: "
            f"{loads[-1]['others']:.2f}")
    return rows, loads


def figures(row):
    """The metrics of one run."""
    found = {key: row[key] for key in METRICS if key in row}
    return found | {key: value for key, value in row.get("half_us", {}).items() if key in METRICS}


class Results:
    """Runs by group (a congestion control, an MTU: the row's `group_key`), cell and column."""

    def __init__(self, rows, columns, cells, group_key):
        self.columns, self.runs = columns, {}
        fields = ["idle_us" if f == "idle" else f for f in cells[0]._fields]
        for row in rows:
            cell = tuple(row[f] for f in fields)
            self.runs.setdefault((row[group_key], cell, row["column"]), {})[row["round"]] = row

    def rows(self, group, cell, column):
        return self.runs.get((group, tuple(cell), column), {})

    def title(self, key):
        return next((c.title for c in self.columns if c.key == key), key)

    def values(self, group, cell, column, metric):
        """By round, of the runs that went well."""
        return {n: figures(row)[metric] for n, row in self.rows(group, cell, column).items()
                if row["verdict"] == "ok" and metric in figures(row)}

    def bad(self, group, cell, column):
        """"wrong 2/3" and the like, or nothing."""
        verdicts = [row["verdict"] for row in self.rows(group, cell, column).values()]
        worst = next((v for v in ("wrong", "crashed", "failed", "stuck", "skipped") if v in verdicts), None)
        return f"{worst} {sum(v != 'ok' for v in verdicts)}/{len(verdicts)}" if worst else ""

    def median(self, group, cell, column, metric):
        values = self.values(group, cell, column, metric).values()
        return statistics.median(values) if values else None

    def ratio(self, group, cell, peer, metric):
        """Ours over the peer's: the median of the ratios of each round in which both went well."""
        ours, theirs = self.values(group, cell, OURS, metric), self.values(group, cell, peer, metric)
        ratios = [ours[n] / theirs[n] for n in ours if theirs.get(n)]
        return statistics.median(ratios) if ratios else None


def spread_cell(results, metric):
    def cell_text(group, cell, column):
        values, bad = results.values(group, cell, column, metric).values(), results.bad(group, cell, column)
        text = ""
        if values:
            text = number(statistics.median(values))
            if len(values) > 1:
                text += f" ({number(min(values))}-{number(max(values))})"
        return f"{bad} {text}".strip() or "-"
    return cell_text


def with_second(results, metric, second):
    """The second metric's median in brackets."""
    def cell_text(group, cell, column):
        one, two = (results.median(group, cell, column, m) for m in (metric, second))
        text = f"{number(one)} ({number(two)})" if None not in (one, two) else ""
        return f"{results.bad(group, cell, column)} {text}".strip() or "-"
    return cell_text


def millions(results):
    def text(group, cell, column):
        value = results.median(group, cell, column, "messages_s")
        bad = results.bad(group, cell, column)
        return f"{bad} {value / 1e6:.2f}".strip() if value is not None else bad or "-"
    return text


def table(results, group, cells, metric, cell_text, lead):
    """Header and body: what `lead` gives for a cell, a figure a column, and after each peer ours over its."""
    peers = [c for c in results.columns if any(results.rows(group, cell, c.key) for cell in cells)]
    ours = any(c.key == OURS for c in peers)
    head, body = list(lead(cells[0])), []
    for c in peers:
        head += [c.title] + (["ours/it"] if ours and c.key != OURS else [])
    for cell in cells:
        row = list(lead(cell).values())
        for c in peers:
            row.append(cell_text(group, cell, c.key))
            if ours and c.key != OURS:
                ratio = results.ratio(group, cell, c.key, metric)
                row.append(f"{ratio:.2f}x" if ratio is not None else "-")
        body.append(row)
    return head, body


def verdict_lines(results, group, cells, targets, describe):
    """A line for each target (metric, which cells, peer or None for a figure of its own, bound, in words): reached,
    missed and where, or not measured."""
    lines = []
    for metric, applies, peer, bound, words in targets:
        got = {}
        for cell in filter(applies, cells):
            value = results.ratio(group, cell, peer, metric) if peer else results.median(group, cell, OURS, metric)
            if value is not None:
                got[cell] = value
        goal = f"{words}: at {'least' if METRICS[metric] is max else 'most'} " + (
            f"{bound:g}x {results.title(peer)}" if peer else f"{bound:g}")
        short = {c: v for c, v in got.items() if (v < bound if METRICS[metric] is max else v > bound)}
        where = ", ".join(f"{describe(c)}: {v:.4g}" for c, v in (short or got).items())
        verdict = "not measured" if not got else "missed" if short else "reached"
        lines.append(f"{verdict} ({group}): {goal}" + (f"; {where}" if got else ""))
    return lines


def faults(results, describe):
    """What went wrong, once for each cell and column."""
    lines = []
    for (group, cell, column), runs in results.runs.items():
        bad = [row for row in runs.values() if row["verdict"] != "ok"]
        if bad:
            lines.append(f"{results.title(column)}, {group}, {describe(cell)}: {bad[0]['verdict']} in {len(bad)} of "
                         f"{len(runs)} runs: {(bad[0]['what'].splitlines() or [''])[0][:200]}")
    return lines


def bandwidth_panels(results, groups, title, lines):
    """Bandwidth over size: a panel for each group. lines, of each column: (what follows its title, cells)."""
    panels = []
    for group in groups:
        series = []
        for color, column in enumerate(results.columns):
            for dash, (name, some) in enumerate(lines):
                points = [(c.size, results.median(group, c, column.key, "gb_s")) for c in some]
                points = [(x, y) for x, y in points if y is not None]
                if points:
                    series.append({"name": f"{column.title}, {name}", "color": color, "dash": dash, "points": True,
                                   "x": [x for x, _ in points], "y": [y for _, y in points]})
        if series:
            panels.append({"xlabel": f"{title} {group}: size", "ylabel": "GB/s", "xscale": "log", "series": series,
                           "xticks": ticks(sorted({x for s in series for x in s["x"]}))})
    return panels


def write_transports(out, name, heading, about, facts, sections, verdicts, wrong, notes, plot, data):
    """NAME.json, NAME.md, and all of it on the terminal. sections: (title, [(caption, head, body)]); data: what else
    goes into the JSON."""
    if notes:
        verdicts = [line + " (does not count: see the warning)" for line in verdicts]
    (out / f"{name}.json").write_text(json.dumps(
        {"about": about, **data, "targets": verdicts, "faults": wrong, "warnings": notes}, indent=1) + "\n")
    text = [f"# {heading}", ""] + [f"**{n}**\n" for n in notes] + ["- " + f for f in facts]
    print()
    for fact in facts:
        print("# " + fact)
    for title, tables in sections:
        text += ["", f"## {title}"]
        for caption, head, body in tables:
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
    (out / f"{name}.md").write_text("\n".join(text))
    machine.log(f"{out}/{name}.md, .json" + (", .svg" if plot else "; no plot"))
