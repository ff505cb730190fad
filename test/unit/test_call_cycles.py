#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# The sources of a module do not call each other in circles.
# TEST-SAN: none
# TEST-READS: config/call_cycles.py test/e2e/coll.py build/lib/*.so build/bin/rail-kit build/lib/emu/lib*.so.1
import pathlib
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "config"), str(ROOT / "test/e2e")]
import call_cycles  # noqa: E402
from coll import BUILD, report  # noqa: E402


def planted():
    edges = {"a": {"b": []}, "b": {"c": []}, "c": {"a": []}, "d": {"a": [], "e": []}, "e": {}}
    found = call_cycles.circles(edges)
    return "" if found == [["a", "b", "c"]] else f"found {found}"


def cases():
    yield "a circle is found", planted()
    calls = call_cycles.graph(BUILD)
    built = {f"plugin/{main.parent.name}" for main in (ROOT / "plugin").glob("*/*_main.c")
             if (BUILD / f"lib/libnccl-net-{main.parent.name}.so").exists()}
    emulated = {name for name, library in (("emu", "libibverbs.so.1"), ("emu/cm", "librdmacm.so.1"))
                if (BUILD / "lib/emu" / library).exists()}
    for name in sorted({"common", "core", "kit", "loader"} | built | emulated):
        found = "\n".join(" ".join(part) for part in call_cycles.circles(calls[name]))
        yield f"{name} has none", found if len(calls[name]) > 1 else f"no objects in {BUILD}/obj/{name}"


if __name__ == "__main__":
    sys.exit(report(cases()))
