# SPDX-License-Identifier: Apache-2.0
"""Results of alternating columns: by round and cell, as tables, verdicts, a plot, JSON and Markdown."""
import json
import statistics
import time

import machine
from report import gnuplot, markdown_table, number, size_name, text_table

OURS = "railyard"
COLORS = ["#c0392b", "#1b6ca8", "#2e8b57", "#8e44ad", "#d35400", "#16a085"]
# What is measured: key in a run's figures, and whether the greater one is the better
METRICS = {"gb_s": max, "messages_s": max, "cpu_s_per_gb": min, "p50": min, "p99": min}


def alternate(columns, jobs, rounds, run, say):
    """Every column of a job one right after the other, forwards in one round and backwards in the next. `jobs`: (what
    to note in a row, cell); run(column, noted, cell) gives a row's figures. Returns the rows, a dictionary for each run
    of a program, and what others used of the machine, for each round."""
    rows, loads = [], []
    for number_ in range(rounds):
        order = columns if number_ % 2 == 0 else columns[::-1]
        start, watch = time.monotonic(), machine.Watch()
        for noted, cell in jobs:
            for column in order:
                if column.has(cell):
                    begun = time.monotonic()
                    figures_ = run(column, noted, cell)
                    facts = {("idle_us" if k == "idle" else k): v for k, v in cell._asdict().items()}
                    rows.append({"column": column.key, **noted, "round": number_, **figures_, **facts,
                                 "wall_s": round(time.monotonic() - begun, 3)})
        loads.append({"others": round(watch.others(), 2), "steal": round(watch.steal(), 3)})
        say(f"round {number_ + 1}/{rounds}: {time.monotonic() - start:.1f} s; cores that others kept busy: "
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
        text = f"{number(one)} ({number(two)})" if one is not None else ""
        return f"{results.bad(group, cell, column)} {text}".strip() or "-"
    return cell_text


def millions(results):
    def text(group, cell, column):
        value = results.median(group, cell, column, "messages_s")
        bad = results.bad(group, cell, column)
        return f"{bad} {value / 1e6:.2f}".strip() if value is not None else bad or "-"
    return text


def table(results, group, cells, metric, cell_text, lead):
    """Header and body: what `lead` says of a cell; a cell a column; after each peer that has figures, ours over its."""
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


def judge(results, group, cells, targets, describe):
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


def draw(path, panels, sizes, top):
    """Figures over size. panels: (title, lines), a line: (title, color, dash type, [(size, figure)])."""
    if not sizes or not top or not panels:
        return None
    tics = ", ".join(f"'{size_name(s)}' {s}" for s in sizes)
    script = [f"set terminal svg size {600 * len(panels)},560 font 'sans,13' background '#ffffff'",
              f"set output '{path}'", f"set multiplot layout 1,{len(panels)}", "set logscale x 2", "set grid",
              "set key below maxrows 4", f"set xrange [{sizes[0] / 2}:{sizes[-1] * 2}]",
              f"set yrange [0:{1.05 * top:.3g}]", "set ylabel 'GB/s'", f"set xtics ({tics}) rotate by -35"]
    for title, lines in panels:
        plots = [f"'-' using 1:2 with linespoints lw 2 dt {dash} pt 7 ps 0.5 lc rgb '{color}' title '{name}'"
                 for name, color, dash, _ in lines]
        data = ["\n".join(f"{x} {y:.6g}" for x, y in points) + "\ne" for _, _, _, points in lines]
        if plots:
            script += [f"set title '{title}'", "plot " + ", ".join(plots)] + data
    return gnuplot(path, script + ["unset multiplot"])


def write(out, name, heading, about, facts, sections, verdicts, wrong, notes, plot, data, say):
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
    say(f"{out}/{name}.md, .json" + (", .svg" if plot else "; no plot"))
