#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs test programs and adds their cases up.

A test is a program that prints TAP: a C file test/KIND/NAME.c built into
BUILD/test/KIND/NAME, or a script test/KIND/test_NAME.sh or .py. Comment lines
at the top of its source say how it wants to be run (test/README.md).

Each program runs in a session of its own under a time limit. Besides a
"not ok" line, these count as one failure: a crash, the limit, a nonzero exit
status, a missing or wrong plan, a sanitizer report from any of its processes,
processes or shared memory left behind. The last line is always
"N passed, N failed, N skipped".
"""
import argparse
import fnmatch
import os
import pathlib
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
import choose  # noqa: E402  (from here on no bytecode is written beside the sources)
import durations  # noqa: E402
import guest  # noqa: E402
import hiding  # noqa: E402
import junit  # noqa: E402
import result_cache  # noqa: E402
import schedule  # noqa: E402
import machine_stall  # noqa: E402
from outcome import MARK, Outcome, parse, read_sanitizers, shortened, summary  # noqa: E402
from processes import SHM, ShmWatch, describe, kill_all, leftovers, shm_files, wait  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
KINDS = ["unit", "contract", "verbs", "e2e", "fault", "fuzz", "lab"]
SAN_KINDS = {"unit", "contract", "verbs", "fuzz"}  # run under both sanitizers unless the source says otherwise
DEFAULT_LIMIT = 240
SAN_SLOWDOWN = 3

KEY = re.compile(r"\bTEST-(LIMIT|QUIET|ALONE|SAN|PRELOAD|HIDE|HELPER|CHECK|READS|PLUGINS)\b:?\s*(.*?)\s*(?:\*/)?\s*$")


class Program:
    """One source file in one build directory; with TEST-PLUGINS, for one plugin."""

    def __init__(self, source, kind, build, san, keys, plugin=None):  # san: "asan", "tsan" or ""
        self.source, self.kind, self.build, self.san = source, kind, build, san
        self.name = f"{kind}/{source.stem}" + (f"_{plugin}" if plugin else "")
        self.label = self.name + (f"@{san}" if san else "")
        self.helper = "HELPER" in keys
        self.alone = "ALONE" in keys or kind == "lab"  # they share the guest's devices
        self.quiet = "QUIET" in keys
        self.preload = keys.get("PRELOAD", "").split()
        self.hide = keys.get("HIDE", "").split()
        self.limit = float(keys.get("LIMIT") or DEFAULT_LIMIT) * (SAN_SLOWDOWN if san else 1)
        wanted = set(keys["SAN"].split()) if "SAN" in keys else ({"asan", "tsan"} if kind in SAN_KINDS else set())
        self.wanted = not self.helper and (not san or (san in wanted and not self.preload))
        self.in_check = kind == "unit" or "CHECK" in keys
        self.check_args, self.reads = shlex.split(keys.get("CHECK", "")), keys.get("READS")
        if plugin and self.reads:
            self.reads = self.reads.replace("{plugin}", plugin)
        if source.suffix == ".c":
            self.argv = [str(build / "test" / kind / source.stem)]
        else:
            self.argv = [sys.executable if source.suffix == ".py" else "bash", str(source)]
        self.file, self.cache = self.argv[-1], None
        self.argv += [plugin] if plugin else []

    def run(self, runner, ended):
        return runner.run(self, ended)

    def again(self, case=None):
        """The command that repeats just this."""
        name = self.name
        if case and self.source.suffix == ".c" and re.fullmatch(r"\w+", case):  # its cases are functions
            name = f"'{name} {case}'"
        if self.kind == "lab":
            return f"make lab RUN='--only {name}'"
        usual = {ROOT / "build" / self.san: f" SAN={self.san}", ROOT / "build": ""}
        return f"make check T={name}" + usual.get(self.build, f" BUILD={self.build}")


def read_keys(source):
    with open(source, encoding="utf-8", errors="replace") as f:
        hits = [m for m in (KEY.search(line) for _, line in zip(range(15), f)) if m]
        return {m.group(1): " ".join(n.group(2) for n in hits if n.group(1) == m.group(1)) for m in hits}


def built_with(build):
    """The sanitizer of a build directory, as the Makefile noted it."""
    try:
        m = re.search(r"^BUILT_SAN :=\s*(\S*)", (build / "config.mk").read_text(), re.M)
        return m.group(1) if m else ""
    except OSError:
        return ""


def plugins():
    """Built or not; those that are not are skipped by the program."""
    return sorted({main.parent.name for main in (ROOT / "plugin").glob("*/*_main.c")})


def find_programs(tests, kinds, builds):
    found = []
    for build in builds:
        san = built_with(build)
        for kind in kinds:
            for source in sorted((tests / kind).glob("*")):
                script = source.suffix in (".sh", ".py") and source.stem.startswith("test_")
                if script or source.suffix == ".c":
                    keys = read_keys(source)
                    for plugin in plugins() if "PLUGINS" in keys else [None]:
                        found.append(Program(source, kind, build, san, keys, plugin))
    return [p for p in found if p.wanted]


def matches(program, patterns):
    return not patterns or any(fnmatch.fnmatch(program.label, f"*{p}*") for p in patterns)


# ---- one program ---------------------------------------------------------

def preloaded(build, name):
    """The file of TEST-PRELOAD's word: one of test/preload, or a product."""
    own = build / "test" / f"lib{name}.so"
    return str(own if own.exists() else build / "lib/railyard" / f"lib{name}.so")


def environment(program, mark, scratch):
    # Not make's: a test that calls make must not meet our flags or job server. Not what the caller's shell sets for
    # the product (NCCL_SHM_DISABLE, RAIL_CHUNK...), nor what ~/.nccl.conf does; RAIL_TEST_* and RAIL_LAB_* are for the
    # tests.
    env = {k: v for k, v in os.environ.items()
           if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")
           and (k.startswith(("RAIL_TEST_", "RAIL_LAB_")) or not k.startswith(("NCCL_", "RAIL_")))}
    # Marks add up, so that a runner inside a test does not hide its programs from the outer one.
    env |= {MARK: os.environ.get(MARK, "") + mark, "RAIL_BUILD": str(program.build), "TMPDIR": scratch,
            "PYTHONDONTWRITEBYTECODE": "1", "NCCL_CONF_FILE": "/dev/null",
            # It compares two paths within a quarter of this; by default that is less than a crowded machine keeps a
            # process waiting. fault/test_ib_detect, whose clock is its own, has the default.
            "RAIL_IB_PATH_TIMEOUT": "8s"}
    if program.preload:
        env["LD_PRELOAD"] = ":".join(preloaded(program.build, name) for name in program.preload)
        env["RAIL_FAIL_IN"] = "@program,librailyard.so,libnccl-net-"
    # Reports go to files, so that one from a child whose output is not read is seen as well.
    report = f"log_path={scratch}/sanitizer"
    if program.san == "asan":
        env["ASAN_OPTIONS"] = f"{report}:detect_leaks=1:exitcode=99:allocator_may_return_null=1:strict_string_checks=1"
        env["UBSAN_OPTIONS"] = "print_stacktrace=1:halt_on_error=1:abort_on_error=1"
        env["LSAN_OPTIONS"] = f"suppressions={ROOT}/config/lsan.supp:print_suppressions=0"
    if program.san == "tsan":
        env["TSAN_OPTIONS"] = (f"{report}:exitcode=66:die_after_fork=0:second_deadlock_stack=1:"
                               f"suppressions={ROOT}/config/tsan.supp")
    return env


def signal_name(number):
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return str(number)


def fixed_layout():
    """setarch -R, where allowed: gcc 12's sanitizers do not stand newer kernels' address randomisation."""
    prefix = ["setarch", "-R"]
    works = shutil.which("setarch") and subprocess.run(prefix + ["true"], stderr=subprocess.DEVNULL).returncode == 0
    return prefix if works else []


class Runner:
    def __init__(self):
        self.shm, self.lock, self.running, self.stopping = ShmWatch(), threading.Lock(), {}, False
        self.number, self.san_prefix, self.watch = 0, fixed_layout(), machine_stall.Watch()

    def next_mark(self):
        with self.lock:
            self.number += 1
            return f"<{os.getpid()}-{self.number}>"

    def stop(self):  # for an interrupt from the keyboard or CI
        self.stopping = True
        with self.lock:
            running = list(self.running.items())
        for mark, session in running:
            kill_all(session, mark)

    def run(self, program, ended=lambda: None):
        """Its outcome. ended() is called when its processes are gone, before the last questions are asked. What failed
        while the machine, or a processor of it, stood still, or its host withheld processor time, is run again, once,
        and that counts; but no crash, and no report of a sanitizer, is a matter of time."""
        since, stolen, outcome = time.monotonic(), self.watch.stolen(), self.run_once(program, ended)
        trouble = self.watch.trouble_since(since, stolen)
        if not trouble or not outcome.count("fail") or outcome.is_certain() or self.stopping:
            return outcome
        first = ", ".join(f"{name}: {reason}" for name, verdict, reason in outcome.cases if verdict == "fail")
        outcome = self.run_once(program, ended)
        outcome.remark = f"{trouble} while it ran and failed ({first}): run again"
        return outcome

    def run_once(self, program, ended):
        outcome = Outcome()
        if self.stopping:
            outcome.add("run", "fail", "interrupted")
            return outcome
        if not os.path.exists(program.file):
            outcome.add("run", "fail", f"{program.file} is not built")
            return outcome
        argv = hiding.hiding(*program.hide) + (self.san_prefix if program.san else []) + program.argv
        scratch = tempfile.mkdtemp(prefix="rail-test-")
        try:
            self.run_in(program, argv, scratch, outcome, ended)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return outcome

    def run_in(self, program, argv, scratch, outcome, ended):
        mark, shm_before, start = self.next_mark(), shm_files(), time.monotonic()
        with tempfile.TemporaryFile() as out:
            try:
                child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT,
                                         env=environment(program, mark, scratch), start_new_session=True)
            except OSError as e:
                outcome.add("run", "fail", f"cannot start: {e}")
                return
            with self.lock:
                self.running[mark] = child.pid
            timed_out = not wait(child, program.limit, outcome)
            if timed_out:
                kill_all(child.pid, mark)
                wait(child, None, outcome)
            outcome.seconds, left = time.monotonic() - start, [] if timed_out else leftovers(child.pid, mark)
            described = ", ".join(describe(pid) for pid in left[:5])
            if left:
                kill_all(child.pid, mark)
            with self.lock:
                del self.running[mark]
            ended()
            out.seek(0)
            outcome.output = out.read().decode(errors="replace")

        stream_fault = parse(outcome.output, outcome)
        last = outcome.output.splitlines()[-20:]
        if timed_out:
            outcome.add("time limit", "fail", f"no end after {program.limit:.0f} s, killed", last)
        elif child.returncode < 0:
            outcome.add("crash", "fail", f"ended by signal {signal_name(-child.returncode)}", last)
        elif stream_fault:
            status = f"; exit status {child.returncode}" if child.returncode else ""
            outcome.add("plan", "fail", stream_fault + status, last)
        elif child.returncode and not outcome.count("fail"):
            outcome.add("exit status", "fail", f"exit status {child.returncode} though no case failed", last)
        if left:
            outcome.add("leftover processes", "fail", described)
        if names := self.shm.left_since(shm_before):
            outcome.add("leftover shared memory", "fail", ", ".join(str(SHM / n) for n in names))
        if program.san:
            read_sanitizers(scratch, outcome.output, outcome)


# ---- the whole run -------------------------------------------------------

def show(program, outcome, width):
    bad = [c for c in outcome.cases if c[1] == "fail"]
    verdict = "FAIL" if bad else "ok  "
    times = f"{outcome.seconds:8.2f} s {outcome.cpu:7.2f} cpu"
    print(f"{verdict} {program.label:<{width}} {len(outcome.cases):5d} cases {times}", flush=True)
    if outcome.remark:
        print(f"     {outcome.remark}", flush=True)
    if bad:
        for name, _, reason in bad:
            print(f"     {name}: {reason}")
        lines = shortened(outcome.output.splitlines(), 400)
        print("".join(f"     | {line}\n" for line in lines), end="", flush=True)


def run_all(runner, programs, args):
    width = max((len(p.label) for p in programs), default=0)
    done = []

    lock = threading.Lock()  # the guest's programs end in a thread of its own

    def finish(program, outcome):
        with lock:
            finish_one(program, outcome)

    def finish_one(program, outcome):
        done.append((program, outcome))
        if program.cache:
            program.cache.note(program, outcome)
        if args.events:
            guest.event(program, outcome)
        else:
            show(program, outcome, width)

    programs, in_guest = guest.apart(programs)
    if in_guest:
        programs.append(guest.Guest(runner, in_guest, args, finish))
    rounds = schedule.rounds(programs, max(1, args.jobs))
    if args.write_durations:
        rounds = [([p], 1) for some, _ in rounds for p in some]
    try:
        for some, cores in rounds:
            since = runner.watch.processors()
            schedule.side_by_side(some, cores, lambda p, ended: p.run(runner, ended), finish)
            if len(some) > 1 and not args.events:
                print(f"{len(some)} programs beside each other: {runner.watch.use_since(since)}", flush=True)
    except BaseException:
        runner.stop()
        raise
    return done


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--build", action="append", type=pathlib.Path, metavar="DIR",
                   help="build directory, may be given several times (default: build)")
    p.add_argument("--tests", type=pathlib.Path, default=ROOT / "test", metavar="DIR", help="where the sources lie")
    p.add_argument("--kind", action="append", choices=KINDS, help="only this kind, may be given several times")
    p.add_argument("--only", action="append", metavar="PATTERN",
                   help="only programs whose label KIND/NAME[@SAN] has this")
    p.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="programs at a time (default: cores)")
    p.add_argument("--repeat", type=int, default=1, metavar="N", help="run each program N times")
    p.add_argument("--junit", metavar="FILE", help="write the results as JUnit XML")
    p.add_argument("--events", action="store_true", help="a line of JSON for each program instead of the report")
    p.add_argument("--list", action="store_true", help="list the programs and stop")
    p.add_argument("--write-durations", action="store_true",
                   help="one program after the other, and note in durations.txt how long each took")
    p.add_argument("--check", action="store_true", help="what make check runs, but for what passed and did not change")
    p.add_argument("--one", metavar="NAME [CASE...]", help="just this program, and of it just these cases")
    p.add_argument("--needs", action="store_true", help="print what make has to build for these programs, and stop")
    args = p.parse_args()
    args.build = [b.resolve() for b in args.build or [pathlib.Path("build")]]
    return args


def needs(program):
    """make's targets. A script may use any product, a unit test loads plugins and libraries for preloading."""
    binary = os.path.relpath(program.file) if program.source.suffix == ".c" else ""
    return {"unit": "unit-needs ", "fuzz": ""}.get(program.kind if binary else "", "products ") + binary


def check_only(programs, build):
    """Takes out what passed and did not change; the rest notes how it ends."""
    cache, unchanged = result_cache.ResultCache(build), []
    for p in list(programs):
        p.argv += p.check_args
        p.cache = cache
        if counts := cache.knows(p):
            programs.remove(p)
            unchanged.append(counts)
    return unchanged


def no_core_dumps():
    # A limit of 1 is the one that stops both files (too small) and a piped handler (the kernel's special case).
    for limit in (1, 0):
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))
            return
        except (ValueError, OSError):
            continue


def main():
    args = options()
    programs = known = find_programs(args.tests.resolve(), args.kind or KINDS, args.build)
    times = durations.Durations(args.tests.resolve())
    for p in programs:
        times.tell(p)
    if args.one:
        name, *cases = shlex.split(args.one) or [""]
        program, problem = choose.choose(programs, name, built_with(args.build[0]))
        if not program:
            print(problem, file=sys.stderr)
            return 2
        if args.needs:
            print(needs(program))
            return 0
        program.argv += cases
        programs = [program]
    programs = [p for p in programs if matches(p, args.only) and (p.in_check or not args.check)]
    if args.needs:
        print("\n".join(os.path.relpath(p.file) for p in programs if p.source.suffix == ".c"))
        return 0
    if args.list:
        for p in programs:
            print(p.label)
        return 0
    if not programs:
        print("no test program matches", file=sys.stderr)
        print("0 passed, 0 failed, 0 skipped")
        return 1
    unchanged = check_only(programs, args.build[0]) if args.check else []
    no_core_dumps()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    runner = Runner()
    try:
        done = run_all(runner, programs * args.repeat, args)
    except (KeyboardInterrupt, SystemExit) as e:
        runner.stop()
        print("interrupted", file=sys.stderr)
        return e.code if isinstance(e, SystemExit) else 130
    if args.write_durations:
        times.note(done, {p.label for p in known})
    if args.junit:
        junit.write(args.junit, done)
    return 0 if args.events else summary(done, unchanged)


if __name__ == "__main__":
    sys.exit(main())
