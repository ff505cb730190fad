#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which sources of a module call each other in circles. Reads the objects of a build: a source depends on the source of
the same module that defines a symbol it refers to. A module is plugin/NAME, core, common, loader, kit, emu, emu/cm."""
import argparse
import collections
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def module(source):
    parts = source.parts
    return "/".join(parts[:2]) if parts[0] == "plugin" or parts[:2] == ("emu", "cm") else parts[0]


def symbols(objects):
    """{object: (symbols that it defines, symbols that it refers to)}"""
    out = subprocess.run(["nm", "-A", *objects], capture_output=True, text=True, check=True).stdout if objects else ""
    found = {path: (set(), set()) for path in objects}
    for line in out.splitlines():
        path, _, rest = line.partition(":")
        *_, kind, name = rest.split()
        defined, wanted = found[path]
        (wanted if kind == "U" else defined if kind in "TDBRVW" else set()).add(name)
    return found


def graph(build, only=()):
    """{module: {source: {source that it refers to: the symbols}}}"""
    sources = {}
    for top in ("common", "loader", "core", "plugin", "kit", "emu"):
        for path in (build / "obj" / top).rglob("*.o"):
            source = path.relative_to(build / "obj").with_suffix("")
            # Objects stay behind when their source is renamed.
            if (ROOT / f"{source}.c").exists() and (not only or module(source) in only):
                sources[str(path)] = source
    found = {sources[path]: both for path, both in symbols(list(sources)).items()}
    calls = collections.defaultdict(dict)
    for source, (_, wanted) in found.items():
        near = {s for s in found if module(s) == module(source) and s != source}
        used = {str(s): sorted(found[s][0] & wanted) for s in near}
        calls[module(source)][str(source)] = {s: names for s, names in used.items() if names}
    return calls


def circles(edges):
    """Tarjan's strongly connected components with more than one source."""
    index, low, stack, out = {}, {}, [], []

    def visit(v):
        index[v] = low[v] = len(index)
        stack.append(v)
        for w in edges[v]:
            if w not in index:
                visit(w)
            if w in stack:
                low[v] = min(low[v], low[w])
        if low[v] == index[v]:
            part = stack[stack.index(v):]
            del stack[stack.index(v):]
            if len(part) > 1:
                out.append(sorted(part))

    for v in sorted(edges):
        if v not in index:
            visit(v)
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    p.add_argument("--edges", action="store_true", help="which symbols make each edge of a circle")
    p.add_argument("module", nargs="*", help="plugin/socket, core, …; all unless named")
    args = p.parse_args()
    sys.setrecursionlimit(10000)
    calls, bad = graph(args.build, args.module), 0
    for name in sorted(calls):
        found = circles(calls[name])
        units = sum(map(len, found))
        bad += units
        print(f"{name}: {len(calls[name])} sources, {units} in {len(found)} circles")
        for part in found:
            print("  " + " ".join(pathlib.Path(s).name for s in part))
            for s in part if args.edges else ():
                for t in sorted(set(calls[name][s]) & set(part)):
                    print(f"    {pathlib.Path(s).name} -> {pathlib.Path(t).name}: {', '.join(calls[name][s][t])}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
