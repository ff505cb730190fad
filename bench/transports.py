#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Transports side by side: transports.py socket|ib|ofi. Our plugin, other programs, any other ncclNet plugin.

A round goes through all cells (size, connections or queue pairs, window, transfers or ping-pong) and runs every column
of a cell one right after the other, forwards in one round and backwards in the next. Shown are medians over the rounds;
a ratio is taken within each round first. tcp.py, verbs.py and ofi.py define the columns, the cells and the targets.
"""
import argparse
import os
import pathlib
import sys
import types

sys.dont_write_bytecode = True
import machine
import ofi
import report
import tcp
import verbs
from columns import bind
from program import Failed
from report import OURS

ROOT = pathlib.Path(__file__).resolve().parent.parent
QUIET = 0.2  # cores that others may keep busy


def size_of(text):
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    return int(text[:-1] if factor > 1 else text) * factor


def pairs(values, separator, what, parser):
    for value in values:
        left, found, right = value.partition(separator)
        if not found or not left or not right:
            parser.error(f"{what}: '{value}' has no {separator}")
        yield left, right


def environments(o, parser):
    env = {}
    for name, assignment in pairs(o.env, ":", "--env", parser):
        for variable, value in pairs([assignment], "=", "--env", parser):
            env.setdefault(name, {})[variable] = value
    return env


def named_plugin(value):
    """"NAME=PATH", or a path whose NAME is that of libnccl-net-NAME.so."""
    name, found, path = value.partition("=")
    return (name, path) if found else (pathlib.Path(value).stem.removeprefix("lib").removeprefix("nccl-net-"), value)


def chosen(columns, only, env, parser):
    """Those that --only names, or all."""
    keys = [c.key for c in columns]
    wanted = only.split(",") if only else keys
    for name in [*wanted, *env]:
        if name not in keys:
            parser.error(f"no such column: {name}; there are {', '.join(keys)}")
    if len(set(keys)) != len(keys):
        parser.error(f"two columns have one name: {', '.join(keys)}")
    return [c for c in columns if c.key in wanted]


def arguments(fabric):
    p = argparse.ArgumentParser(prog=f"{os.path.basename(sys.argv[0])} {fabric.NAME}",
                                description=fabric.__doc__.split("\n\n")[0])
    p.add_argument("--build", required=True, type=pathlib.Path, help="build directory")
    p.add_argument("--out", type=pathlib.Path, help="where results go; BUILD/bench when not given")
    p.add_argument("--plugin", action="append", default=[], metavar="[NAME=]PATH",
                   help="one more ncclNet plugin as a column; may be repeated; the lab sees nothing below /tmp")
    p.add_argument("--env", action="append", default=[], metavar="COLUMN:VAR=VALUE",
                   help="an environment variable for one column; may be repeated")
    p.add_argument("--ours", metavar="PATH", help=f"our plugin, when it is not BUILD/lib/{fabric.LIBRARY}")
    p.add_argument("--only", metavar="COLUMNS", help=f"columns, with commas ({fabric.COLUMNS_HELP})")
    p.add_argument("--sizes", help=f"message sizes, with commas ({fabric.SIZES})")
    p.add_argument("--metrics", default=",".join(fabric.METRICS), help=fabric.METRICS_HELP)
    fabric.add_arguments(p)
    p.add_argument("--rounds", type=int, help="rounds; 3, or 1 with --quick")
    p.add_argument("--seconds", type=float,
                   help="timed seconds of a cell; {}, or {} with --quick".format(*fabric.SECONDS))
    p.add_argument("--warmup", type=float, help="seconds before; {}, or {} with --quick".format(*fabric.WARMUP))
    p.add_argument("--bind", action="store_true",
                   help="each of the two processes of every program bound to a core of its own")
    p.add_argument("--quick", action="store_true", help=fabric.QUICK_HELP)
    p.add_argument("--wait", type=float, default=fabric.WAIT,
                   help=f"seconds to wait for a quiet machine ({fabric.WAIT})")
    o = p.parse_args(sys.argv[2:])
    try:
        o.sizes = [size_of(x) for x in (o.sizes or (fabric.QUICK_SIZES if o.quick else fabric.SIZES)).split(",")]
    except ValueError as why:
        p.error(f"--sizes: {why}")
    o.metrics = o.metrics.split(",")
    o.rounds = o.rounds or (1 if o.quick else 3)
    o.seconds = o.seconds or fabric.SECONDS[o.quick]
    o.warmup = o.warmup if o.warmup is not None else fabric.WARMUP[o.quick]
    o.build = o.build.resolve()
    o.out = o.out or o.build / "bench"
    if set(o.metrics) - set(fabric.METRICS) or min(o.sizes) < 8 or o.rounds < 1:
        p.error(f"wants --metrics of {','.join(fabric.METRICS)}, sizes from 8, --rounds from 1")
    try:
        fabric.check_arguments(o, p)
    except ValueError as why:
        p.error(f"a list of numbers, with commas: {why}")
    return p, o


def plugins_of(o, fabric):
    """[(key, title, path)]"""
    plugins = [(OURS, "Railyard", str(o.ours or o.build / "lib" / fabric.LIBRARY))]
    return plugins + [(name, name, str(pathlib.Path(path).resolve()) if "/" in path else path)
                      for name, path in map(named_plugin, o.plugin)]


def write(fabric, o, columns, about, cells, rows):
    o.out.mkdir(parents=True, exist_ok=True)
    shown = [types.SimpleNamespace(key=c.key, title=c.title) for c in columns]
    results, groups = report.Results(rows, shown, cells, fabric.GROUP), fabric.groups(about)
    more, data = fabric.extra_sections(o, about)
    sections = [(fabric.section_title(g), fabric.tables(results, g, cells)) for g in groups] + more
    verdicts = [line for g in groups
                for line in report.verdict_lines(results, g, cells, fabric.targets(g), fabric.describe)]
    plot = report.draw(o.out / f"{fabric.NAME}.svg", fabric.HEADING, fabric.panels(results, about, cells))
    report.write_transports(o.out, fabric.NAME, fabric.HEADING, about, fabric.facts(about), sections, verdicts,
                            report.faults(results, fabric.describe), fabric.notes(about, QUIET), plot,
                            {"runs": rows, **data})


def main():
    fabric = {"socket": tcp, "ib": verbs, "ofi": ofi}.get(sys.argv[1] if len(sys.argv) > 1 else "")
    if not fabric:
        sys.exit("usage: transports.py socket|ib|ofi --build DIR [option...]")
    parser, o = arguments(fabric)
    plugins, env = plugins_of(o, fabric), environments(o, parser)
    columns = chosen(fabric.make_columns(o, plugins, env), o.only, env, parser)
    about = machine.describe(ROOT, os.environ.get("CC", "gcc"))
    about |= {"rounds": o.rounds, "timed_s": o.seconds, "warmup_s": o.warmup}
    try:
        about["bound"] = bind(columns, o.bind)
        about["others_before"] = round(machine.wait_until_quiet(QUIET, o.wait), 2)
        rows, cells = fabric.measure(o, columns, plugins, env, parser, about)
    except Failed as why:
        print(f"bench: {why}", file=sys.stderr)
        return 1
    write(fabric, o, columns, about, cells, rows)
    return 1 if any(r["verdict"] != "ok" and r["column"] in fabric.MUST_BE_RIGHT for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
