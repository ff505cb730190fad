#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rail-kit conform over one plugin of plugin/, the one that the first argument names: what holds for every plugin.

TEST-PLUGINS
TEST-LIMIT: 600
TEST-SAN: asan tsan
TEST-CHECK: --newest
TEST-READS: build/bin/rail-kit build/lib/libnccl-net-{plugin}.so plugin/{plugin}/conform.in*
TEST-READS: build/lib/emu/lib*.so.1
TEST-READS: build/test/broken/libnccl-net-ref.so test/contract/test_conform.py test/e2e/coll.py test/hiding.py

An older version's vtable is common/net/abi_vN.c: arguments and results in another shape, and nothing that keeps time or
threads. Checks of what happens between calls, or that mostly wait, are run through the newest only: NEWEST_ONLY. Under
a sanitizer, and by make check (--newest), there is one pass through the newest.

A plugin that takes more than its library says so in plugin/NAME/conform.ini:
  [conform]
  env = NAME=VALUE        one a line; {build} is the build directory
  env_sanitized = …       these, too, under a sanitizer
  versions = 12 6         of the vtable, the newest first; all without it
  processes = 1           only checks that run in so many processes
  only = …                only these checks, and only in the plain build's whole run: a choice for more versions
  skip = …                of the plain pass through the newest; {measures}, {once}, {newest_only}: see below
  skip_sanitized, skip_brief, skip_older = …   of the other passes
  level = must            of the other passes
  hide = FILE             one a line, empty while checks run (test/hiding.py)
  [conform:WORD]          the same once more, with settings of its own, under this word

With --full, by hand (RAIL_BUILD=build python3 test/contract/test_conform.py NAME --full): every section without `only`
through every version.
"""
import concurrent.futures
import configparser
import json
import os
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True
TEST = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TEST), str(TEST / "e2e")]
from coll import BUILD, ROOT, report  # noqa: E402
from hiding import hiding  # noqa: E402

SANITIZED = BUILD.name in ("asan", "tsan")
BRIEF = "--newest" in sys.argv[1:]
FULL = "--full" in sys.argv[1:]
VERSIONS = "12 11 10 9 8 7 6"
# What measures the machine, or waits for its own sake, once is enough.
MEASURES = "cost,sizes.*gigabyte*,connect.dead_port_is_noticed"
ONCE = (f"{MEASURES},wakeups,peer_death.*stop*,peer_death.no_busy_wait,leaks.idle*,connect.dead_port,"
        "connect.one_process_at_a_time,connect.set_up_rate,close.many_come_and_go")
# … and what an older version of the vtable has no part in: foreign connections, processes, threads, leaks.
NEWEST_ONLY = f"{ONCE},leaks,listen,peer_death,processes,threads"
PARTS = 4  # of a brief or sanitized pass, side by side: most of its checks wait
USUAL = {"env": "", "env_sanitized": "", "versions": VERSIONS, "processes": "", "only": "", "level": "", "skip": "",
         "hide": "", "skip_sanitized": MEASURES, "skip_brief": ONCE, "skip_older": NEWEST_ONLY}


class Settings:
    """A section of a plugin's conform.ini, over USUAL."""

    def __init__(self, name, section):
        words = {"build": str(BUILD), "measures": MEASURES, "once": ONCE, "newest_only": NEWEST_ONLY}
        said = {key: value.format(**words) for key, value in section.items()}
        if unknown := set(said) - set(USUAL):
            raise ValueError(f"plugin/{name}/conform.ini: {', '.join(sorted(unknown))}?")
        self.label = " ".join([name, *section.name.split(":")[1:]])
        env = said["env"].splitlines() + (said["env_sanitized"].splitlines() if SANITIZED else [])
        self.env = dict(line.strip().split("=", 1) for line in env if line.strip())
        self.versions, self.processes, self.level = said["versions"].split(), said["processes"], said["level"]
        self.only = "".join(said["only"].split())
        if FULL:
            self.versions = [] if self.only else VERSIONS.split()
        self.wrapper = hiding(*said["hide"].split())
        self.skip, self.skip_older = said["skip"], said["skip_older"]
        self.short = said["skip_sanitized"] if SANITIZED else said["skip_brief"] if BRIEF else None

    def chosen(self):
        if self.only:
            return ["--only", self.only]
        if not self.processes:
            return []
        names = [c["name"] for c in checks() if c["processes"] == int(self.processes)]
        return ["--only", ",".join(names)]

    def runs(self):
        """(version, options) of each pass."""
        chosen, fewer = self.chosen(), ["--level", self.level] if self.level else []
        if self.short is not None:
            if not self.only:
                yield self.versions[0], [*chosen, *skipping(self.short), *fewer]
            return
        if self.versions:
            yield self.versions[0], [*chosen, *skipping(self.skip)]
        for version in self.versions[1:]:
            yield version, [*chosen, *skipping(self.skip_older), *fewer]


def settings_of(name):
    ini = configparser.ConfigParser(defaults=USUAL, interpolation=None)
    ini.read_string("[conform]")
    ini.read(ROOT / "plugin" / name / "conform.ini")
    return [Settings(name, ini[section]) for section in ini.sections()]


def skipping(patterns):
    return ["--skip", "".join(patterns.split())] if patterns else []


def checks(*options):
    """Those that these options choose."""
    command = [str(BUILD / "bin/rail-kit"), "conform", "-", "--list", "--json", "-", *options]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def conform(plugin, version, options, env, wrapper):
    command = [*wrapper, str(BUILD / "bin/rail-kit"), "conform", str(plugin), "--abi", version, "--json", "-", *options]
    done = subprocess.run(command, env=os.environ | env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, errors="replace")
    try:
        return done.returncode, json.loads(done.stdout)["results"], done.stderr
    except (ValueError, KeyError):
        return done.returncode, [], f"{' '.join(command)}: no report\n{done.stdout}{done.stderr}"


def lines(label, status, results, errors):
    for r in results:
        name = f"{label} {r['name']}"
        if r["status"] == "skip":
            yield f"{name} # SKIP {r['seen']}", ""
        else:
            yield name, "\n".join([f"{r['status']}: {r['seen']}", *r["log"], r["again"]]) if r["bad"] else ""
    if not results or status not in (0, 1):
        yield f"{label} ends with a report", f"exit status {status}\n{errors}"
    elif errors.strip():
        yield f"{label} says nothing else", errors


def passes(name):
    """(settings, version, options) of each; a brief or sanitized one is cut into parts."""
    for settings in settings_of(name):
        for version, options in settings.runs():
            if not BRIEF and not SANITIZED:
                yield settings, version, options
                continue
            names = [c["name"] for c in checks(*options)]
            for i in range(PARTS):
                yield settings, version, ["--only", ",".join(names[i::PARTS])]


def cases(name):
    plugin, at_a_time = BUILD / f"lib/libnccl-net-{name}.so", PARTS if BRIEF or SANITIZED else 2
    if not plugin.exists():
        yield f"the {name} plugin # SKIP it is not built: what plugin/{name}/build.mk needs is missing", ""
        return
    for settings in settings_of(name):
        if settings.processes:
            names = settings.chosen()[1].split(",")
            yield "there are such checks", "" if len(names) > 100 else f"only {len(names)} found"
    runs = list(passes(name))
    with concurrent.futures.ThreadPoolExecutor(at_a_time) as pool:
        results = pool.map(lambda run: conform(plugin, run[1], run[2], run[0].env, run[0].wrapper), runs)
        for (settings, version, _), result in zip(runs, results):
            yield from lines(f"{settings.label} v{version}", *result)


if __name__ == "__main__":
    sys.exit(report(cases(sys.argv[1])))
