# SPDX-License-Identifier: Apache-2.0
"""The results of a run: a table on the terminal, and JSON, Markdown and a plot in a folder."""
import json
import shutil
import subprocess

RATIO_AFTER = {"ompi-shm": "shm", "ompi-tcp": "net"}  # column → whose ratio to it follows
# column → color, dash type, point type (0: none)
STYLES = {"shm": ("#1b6ca8", 1, 7), "ompi-shm": ("#1b6ca8", 2, 6), "net": ("#c0392b", 1, 5),
          "ompi-tcp": ("#c0392b", 2, 4), "memcpy": ("#777777", 3, 0)}


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


def gnuplot(path, lines):
    """Has the picture drawn. Returns its path, or None where there is no gnuplot."""
    if not shutil.which("gnuplot"):
        return None
    done = subprocess.run(["gnuplot"], input="\n".join(lines) + "\n", text=True, capture_output=True)
    if done.returncode != 0:
        print("bench: no plot; gnuplot says: " + done.stderr.strip())
        return None
    return path


def draw(path, columns, about, summary):
    """An SVG by gnuplot. Returns its path, or None where there is no gnuplot."""
    script = ["set terminal svg size 900,540 font 'sans,13' background '#ffffff'", f"set output '{path}'",
              "set logscale x 2", "set logscale y 10", "set grid", "set key right bottom",
              f"set title 'All-reduce, float32, {about['ranks']} ranks on one machine'",
              "set xlabel 'size'", "set ylabel 'bus bandwidth, GB/s'", "set format y '%g'",
              "set xtics ('8 B' 8, '64 B' 64, '512 B' 512, '4 KiB' 4096, '32 KiB' 32768, '256 KiB' 262144, "
              "'2 MiB' 2097152, '16 MiB' 16777216, '64 MiB' 67108864)"]
    plots, data = [], []
    for c in columns:
        color, dash, point = STYLES[c.key]
        how = f"with {'linespoints' if point else 'lines'} lw 2 dt {dash} lc rgb '{color}'"
        how += f" pt {point} ps 0.6" if point else ""
        plots.append(f"'-' using 1:2 {how} title '{c.title}'")
        plots.append(f"'-' using 1:2:3 with filledcurves fs transparent solid 0.12 noborder lc rgb '{color}' notitle")
        values = summary["busbw"][c.key].items()
        data.append("\n".join(f"{s} {v['median']:.6g}" for s, v in values) + "\ne")
        data.append("\n".join(f"{s} {v['min']:.6g} {v['max']:.6g}" for s, v in values) + "\ne")
    script.append("plot " + ", ".join(plots))
    return gnuplot(path, script + data)


def write(out, columns, about, times, summary, targets, quiet, say):
    out.mkdir(parents=True, exist_ok=True)
    tables = [rows_of(columns, summary, bandwidth_cell), rows_of(columns, summary, time_cell)]
    lines, notes = verdicts(targets, columns), warnings(about, quiet)
    if notes:  # a spinning peer suffers most from a busy machine: such ratios flatter us
        lines = [line + " (does not count: see the warning)" for line in lines]
    plot = draw(out / "allreduce.svg", columns, about, summary)
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
    say(f"{out}/allreduce.md, .json" + (", .svg" if plot else "; no plot, gnuplot is missing"))
