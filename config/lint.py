#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make lint: what the compilers do not say.

Headers compile alone (public ones as C++ too), files and functions have a
length, modules include only modules below them, sources begin with what they are for, includes are sorted, no path of
somebody's machine, no TODO, then clang-tidy and cppcheck. Looks at the files git knows.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILE_LIMIT, FUNCTION_LIMIT, COLUMN_LIMIT = 500, 100, 120
FLAGS = ["-D_GNU_SOURCE", "-Iinclude", "-I."]
WARN = ["-Wall", "-Wextra", "-Werror"]
C_LIKE = (".c", ".h", ".cc", ".cu", ".cuh")

# Module → what it may include. Arrows go downward only.
MAY_INCLUDE = {
    "include": {"rail"},
    "common": {"common", "rail"},
    "loader": {"loader", "common", "rail"},
    "plugin": {"plugin", "common", "rail"},
    "plugin/railtrace": {"plugin", "loader", "common", "rail"},
    "core": {"core", "loader", "common", "rail"},
    "emu": {"emu"},
    "ghost": {"ghost"},
    "kit": {"kit", "loader", "common", "rail", "plugin/railtrace/trace_file.h", "plugin/railtrace/trace_rules.h"},
    "tools": {"tools", "kit", "loader", "common", "rail"},
}
# Inside of common: each folder includes itself and those that are named here.
COMMON_MAY_INCLUDE = {"base": set(), "net": {"base", "conn"}, "conn": {"base"}, "obs": {"base"}}
MACHINE_PATH = re.compile(r"(?<![\w.$}>-])/(?:home|root|work|Users|mnt|tmp/brief)/\w")
TODO = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b")
INCLUDED = re.compile(r'#include ["<]([^">]+)[">]')
PURPOSE = re.compile(r"/\* SPDX-License-Identifier: Apache-2\.0\n(?: \*\n)? \* \S")
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([\w.-]+)/([\w./-]+)[">]')

problems = []


def problem(where, what):
    problems.append(f"{where}: {what}")


def tracked():
    # What is about to be added counts as well, what git ignores does not.
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted(f for f in set(out.stdout.split("\n")) if f and (ROOT / f).is_file())


class Exceptions:
    """The list of argued exceptions; remembers which were needed."""

    def __init__(self):
        self.limits, self.used = {}, set()
        for number, line in enumerate((ROOT / "config/lint-exceptions.txt").read_text().splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            m = re.match(r"(\S+) (\d+) (\d{4}-\d\d-\d\d) \S.*", line)
            if m:
                self.limits[m.group(1)] = int(m.group(2))
            else:
                problem(f"config/lint-exceptions.txt:{number}", "wants NAME LIMIT YYYY-MM-DD REASON")

    def over(self, name, length, limit):
        if length <= limit:
            return False
        self.used.add(name)
        return length > self.limits.get(name, limit)

    def report_unused(self):
        for name in sorted(set(self.limits) - self.used):
            problem("config/lint-exceptions.txt", f"the exception for {name} is not needed any more")


def functions(lines):
    """(name, first line, length) of each function: a signature from column 0 to `{`, then up to `}` in column 0."""
    head, first, name = "", 0, None
    for number, line in enumerate(lines, 1):
        if name:
            if line.rstrip() == "}":
                yield name, first, number - first + 1
                name = None
        elif head or re.match(r"[A-Za-z_]", line):
            first = first if head else number
            head += line.split("//")[0].rstrip() + " "
            if head.endswith("{ "):
                m = re.match(r"[^={;]*?(\w+)\s*\(", head)
                name = m.group(1) if m and not head.startswith(("typedef", "extern \"")) else None
                head = ""
            elif re.search(r"[;}:] $", head) or line.startswith("#"):
                head = ""


def check_text(name, exceptions):
    path = ROOT / name
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    lines = text.splitlines()
    code = path.suffix in (*C_LIKE, ".py", ".sh", ".mk")
    if code and exceptions.over(name, len(lines), FILE_LIMIT):
        problem(name, f"{len(lines)} lines; the limit is {FILE_LIMIT}")
    if code and "SPDX-License-Identifier: Apache-2.0" not in "\n".join(lines[:2]):
        problem(name, "no SPDX line at the top")
    if name != "config/lint.py":
        for number, line in enumerate(lines, 1):
            if m := MACHINE_PATH.search(line):
                problem(f"{name}:{number}", f"a path of somebody's machine: {m.group(0)}…")
            if code and TODO.search(line):
                problem(f"{name}:{number}", "TODO is not allowed; do it, or describe the limit in the documents")
            if code and len(line) > COLUMN_LIMIT:
                problem(f"{name}:{number}", f"{len(line)} columns; the limit is {COLUMN_LIMIT}")
    if path.suffix == ".c" and name.split("/")[0] in MAY_INCLUDE and not PURPOSE.match(text):
        problem(name, "the comment at the top does not say what the file is for")
    if path.suffix in C_LIKE:
        check_c(name, lines, exceptions)


def check_c(name, lines, exceptions):
    for function, first, length in functions(lines):
        if exceptions.over(f"{name}:{function}", length, FUNCTION_LIMIT):
            problem(f"{name}:{first}", f"{function} has {length} lines; the limit is {FUNCTION_LIMIT}")
    parts = name.split("/")
    if name.endswith((".c", ".h")):
        check_include_order(name, lines)
    module = "/".join(parts[:2]) if "/".join(parts[:2]) in MAY_INCLUDE else parts[0]
    for number, line in enumerate(lines, 1):
        m = INCLUDE.match(line)
        if not m or module not in MAY_INCLUDE or not (ROOT / m.group(1)).is_dir() and m.group(1) != "rail":
            continue
        if not {m.group(1), "/".join(m.groups())} & MAY_INCLUDE[module]:
            problem(f"{name}:{number}", f"{module} must not include {m.group(1)}/")
        folder = m.group(2).split("/")[0]
        if parts[0] == "plugin" and m.group(1) == "plugin" and parts[1] != folder:
            problem(f"{name}:{number}", "a plugin must not include another's headers")
        if parts[0] == m.group(1) == "common" and folder not in COMMON_MAY_INCLUDE[parts[1]] | {parts[1]}:
            problem(f"{name}:{number}", f"common/{parts[1]} must not include common/{folder}")


def check_include_order(name, lines):
    """By name within a block, which an empty line or anything else ends: a source's own header, the system's, ours."""
    before = ""
    for number, line in enumerate(lines, 1):
        m = INCLUDED.match(line)
        if m and m.group(1) < before:
            problem(f"{name}:{number}", f"{m.group(1)} belongs before {before}")
        before = m.group(1) if m else ""


def run(argv, where):
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    if not done.returncode:
        return
    # One line a finding; the path that leads to it shows when the tool is run by hand on the file.
    lines = (done.stdout + done.stderr).replace(f"{ROOT}/./", "").replace(f"{ROOT}/", "").splitlines()
    found = [line for line in lines if re.search(r":\d+(:\d+)?: (fatal )?(error|warning|portability)", line)]
    for line in found or [f"{where}: {argv[0]} failed: {' '.join(lines)[:500]}"]:
        problems.append(line.replace(",-warnings-as-errors", ""))


def header_commands(files):
    # Of the device's headers, those that need no CUDA, behind what stands in for it; nvcc compiles the rest.
    for h in (f for f in files if f.endswith(".cuh") and not FOREIGN.search((ROOT / f).read_text())):
        yield ["g++", "-std=c++17", *FLAGS, *WARN, "-Wno-unused-function", "-Wno-unused-variable", "-Wno-unknown-pragmas",
               "-fsyntax-only", "-x", "c++", "-include", "test/device/emu.cuh", "-include", h, "/dev/null"], h
    # Headers that are one body for several instruction sets name what they need in their includer.
    for h in (f for f in files if f.endswith(".h")):
        yield ["gcc", "-std=c11", *FLAGS, *WARN, "-Wno-unused-function", "-Wno-unused-variable", "-fsyntax-only", "-x", "c",
               "-include", h, "/dev/null"], h
        if h.startswith("include/rail/"):
            yield ["g++", "-std=c++11", *FLAGS, *WARN, "-Wpedantic", "-fsyntax-only", "-x", "c++", "-include", h,
                   "/dev/null"], f"{h} as C++"


# Programs for Open MPI or CUDA, whose headers a machine for lint need not have.
FOREIGN = re.compile(r"^#include <(?:mpi|nccl|cuda_runtime_api)\.h>", re.M)


def tidy_commands(files):
    for c in (f for f in files if f.endswith(".c") and not f.endswith("_impl.c")):
        if FOREIGN.search((ROOT / c).read_text(errors="replace")):
            continue
        yield ["clang-tidy", "--quiet", c, "--", "-std=c11", *FLAGS], c


def queue_header():
    """cppcheck reads no system header; of this one it needs the macros."""
    done = subprocess.run(["gcc", "-E", "-H", "-x", "c", "-"], input="#include <sys/queue.h>\n", capture_output=True,
                          text=True)
    return [f"--include={line[2:]}" for line in done.stderr.splitlines() if line.startswith(". ")]


def cppcheck_command():
    # The calls of ghost's driver are declared by one macro: cppcheck takes all of them for one function.
    modules = ("common", "loader", "core", "plugin", "kit", "emu", "ghost", "tools")
    modules = [r for r in modules if list((ROOT / r).rglob("*.c"))]
    return ["cppcheck", "--quiet", "--std=c11", "--error-exitcode=1", "--inline-suppr", "--enable=warning,portability",
            "--suppress=missingIncludeSystem", "--suppress=*:*_impl.c", "--suppress=ctunullpointer:ghost/*",
            "--suppress=ctuuninitvar:ghost/*", *queue_header(), "-j", str(os.cpu_count() or 1), *FLAGS, *modules]


def main():
    parser = argparse.ArgumentParser(description="headers alone, lengths, layers, clang-tidy, cppcheck")
    parser.add_argument("--text", action="store_true", help="only what is seen in the text: seconds instead of minutes")
    text_only = parser.parse_args().text
    files, exceptions = tracked(), Exceptions()
    for name in files:
        check_text(name, exceptions)
    exceptions.report_unused()
    commands = [*header_commands(files), *tidy_commands(files), (cppcheck_command(), "cppcheck")]
    if text_only:
        commands = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda c: run(*c), commands))
    found = sorted(set(problems))  # a header's fault shows in each file that includes it
    print("".join(f"{line}\n" for line in found) + f"lint: {len(files)} files, {len(found)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
