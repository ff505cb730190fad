#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Proves that every RAIL_ parameter in a table is known to the whole product, so
# that a plugin does not call the runtime's variables unknown, and the reverse.
# TEST-SAN: none
# TEST-READS: common/base/param_names.c core/*/*_param.c plugin/*/*_param.c
import pathlib
import re

root = pathlib.Path(__file__).resolve().parents[2]
known = re.findall(r'"(RAIL_[A-Z0-9_*]+)"', (root / "common/base/param_names.c").read_text())
tables = sorted((root / "core").glob("*/*_param.c")) + sorted((root / "plugin").glob("*/*_param.c"))
folders = tuple(f"RAIL_{main.parent.name.upper()}_" for main in (root / "plugin").glob("*/*_main.c"))


def is_known(name):
    return name.startswith(folders) or any(name == k or (k.endswith("*") and name.startswith(k[:-1])) for k in known)


def check(number, ok, what, why=""):
    if not ok:
        print(f"# {why}")
    print(f"{'ok' if ok else 'not ok'} {number} - {what}")
    return ok


names = [n for t in tables for n in re.findall(r'\.name = "(RAIL_[A-Z0-9_]+)"|\{"(RAIL_[A-Z0-9_]+)"', t.read_text())]
names = [a or b for a, b in names]
missing = [n for n in names if not is_known(n)]
good = check(1, len(names) >= 10, "tables name parameters", f"found only {names}")
good &= check(2, not missing, "every one is in common/base/param_names.c, or begins with its plugin's name",
              f"missing: {', '.join(missing)}")
good &= check(3, known == sorted(known), "the list is sorted", "common/base/param_names.c is not sorted")
print("1..3")
raise SystemExit(0 if good else 1)
