#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The runner itself: every way a program can go wrong must count as a failure.

Each case writes small scripts into a tree of its own and runs test/run.py on
it. A runner that lets a fault pass would hide every other test's failures.
"""
# TEST-SAN: none
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import time

RUN = pathlib.Path(__file__).resolve().parent.parent / "run.py"
number = failed = 0


def run(programs, *args, build="", env=None):
    """Runs {kind/name: text} and returns (exit status, all lines, the last line)."""
    with tempfile.TemporaryDirectory() as top:
        top = pathlib.Path(top)
        builds = [top / "build"] if not build else [top / "build" / b for b in build.split(",")]
        for b in builds:
            b.mkdir(parents=True)
            (b / "config.mk").write_text(f"BUILT_SAN := {b.name if b.name != 'build' else ''}\n")
        for name, text in programs.items():
            path = top / "test" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text).lstrip())
        argv = [sys.executable, str(RUN), "--tests", str(top / "test")]
        for b in builds:
            argv += ["--build", str(b)]
        done = subprocess.run(argv + list(args), capture_output=True, text=True, timeout=100, env=env)
        lines = done.stdout.splitlines()
        return done.returncode, lines, lines[-1] if lines else done.stderr


def expect(name, programs, last, status, *args, says=None, **kw):
    global number, failed
    number += 1
    got = run(programs, *args, **kw)
    good = got[0] == status and got[2] == last and (says is None or any(says in line for line in got[1]))
    if not good:
        failed += 1
        print(f"# expected exit {status}, {last!r}, a line with {says!r}; got exit {got[0]}:")
        for line in got[1]:
            print(f"#   {line}")
    print(f"{'ok' if good else 'not ok'} {number} - {name}", flush=True)


GOOD = """
    echo 'ok 1 - a'
    echo 'ok 2 - b # SKIP no such card'
    echo 1..2
"""


def shm_left_behind():
    name = f"rail-runner-{os.getpid()}"
    try:
        expect("shared memory left behind", {"e2e/test_x.sh": f"echo > /dev/shm/{name}; echo ok 1; echo 1..1\n"},
               "1 passed, 1 failed, 0 skipped", 1, says=f"leftover shared memory: /dev/shm/{name}")
    finally:
        pathlib.Path("/dev/shm", name).unlink(missing_ok=True)


def escaped_child_is_killed():
    """A child in a session of its own is found by its environment, reported and killed."""
    global number, failed
    seconds = f"98.{os.getpid()}"
    expect("a process left behind, in another session",
           {"e2e/test_x.sh": f"setsid sleep {seconds} >/dev/null 2>&1 & sleep 0.3; echo ok 1; echo 1..1\n"},
           "1 passed, 1 failed, 0 skipped", 1, says="leftover processes")
    alive = [p for p in pathlib.Path("/proc").glob("[0-9]*/cmdline") if seconds.encode() in read(p)]
    number += 1
    failed += bool(alive)
    print(f"{'not ok' if alive else 'ok'} {number} - it is killed", flush=True)


def read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


def hang_ends_at_the_limit():
    global number, failed
    start = time.monotonic()
    expect("a hang, with a child in another session that ignores SIGTERM",
           {"e2e/test_x.sh": "# TEST-LIMIT: 1\ntrap '' TERM\nsetsid sleep 97 &\necho ok 1\nsleep 97\n"},
           "1 passed, 1 failed, 0 skipped", 1, says="no end after 1 s")
    number += 1
    late = time.monotonic() - start > 30
    failed += late
    print(f"{'not ok' if late else 'ok'} {number} - the limit holds", flush=True)


def alone_runs_last_and_alone():
    take = "mkdir $RAIL_BUILD/{0} && sleep 0.4; {1}; rmdir $RAIL_BUILD/{0}; echo ok 1; echo 1..1\n"
    expect("a program that wants to be alone is",
           {"unit/test_a.sh": "# TEST-ALONE\n! ls -d $RAIL_BUILD/busy* >/dev/null 2>&1 && echo ok 1; echo 1..1\n",
            "unit/test_b.sh": take.format("busy1", "true"), "unit/test_c.sh": take.format("busy2", "true")},
           "3 passed, 0 failed, 0 skipped", 0, "--jobs", "3")


def the_cause_is_at_the_end():
    """Whatever was printed in between: logs of long runs are cut."""
    global number, failed
    number += 1
    noise = "for i in `seq 1000`; do echo noise; done; "
    _, lines, _ = run({"unit/test_x.sh": "f=${ASAN_OPTIONS#log_path=}; echo overflow > ${f%%:*}.1; " + noise +
                                         "echo '# seed 4711'; echo not ok 1 - a; echo ok 2; echo 1..2\n",
                       "unit/test_y.sh": noise + "echo ok 1 - b; echo 1..1; exit 0\n"}, build="asan")
    last = lines[-60:]
    wanted = ("     | # seed 4711", "     | overflow", "failed: unit/test_x@asan a: not ok")
    good = all(line in last for line in wanted) and len(lines) > 100
    failed += not good
    print("".join(f"# {line}\n" for line in last) if not good else "", end="")
    print(f"{'ok' if good else 'not ok'} {number} - the cause of a failure is among the last lines", flush=True)


def junit_is_written():
    global number, failed
    number += 1
    with tempfile.TemporaryDirectory() as top:
        out = pathlib.Path(top, "r.xml")
        run({"unit/test_x.sh": GOOD + "printf 'a\\001b\\n'; exit 3\n"}, "--junit", str(out))
        text = out.read_text() if out.exists() else ""
    good = 'message="no such card"' in text and "exit status 3" in text
    failed += not good
    print(f"{'ok' if good else 'not ok'} {number} - JUnit output", flush=True)


expect("passes and skips add up", {"unit/test_x.sh": GOOD}, "1 passed, 0 failed, 1 skipped", 0, says="no such card")
expect("a whole program skipped", {"unit/test_x.sh": "echo '1..0 # SKIP no veth here'", "unit/test_y.sh": GOOD},
       "1 passed, 0 failed, 2 skipped", 0, says="no veth here")
expect("not ok", {"unit/test_x.sh": "echo not ok 1 - a; echo ok 2 - b; echo 1..2; exit 1"},
       "1 passed, 1 failed, 0 skipped", 1)
expect("not ok, exit status 0", {"unit/test_x.sh": "echo not ok 1 - a; echo 1..1"}, "0 passed, 1 failed, 0 skipped", 1)
expect("a skip marked not ok is a failure", {"unit/test_x.sh": "echo 'not ok 1 - a # SKIP b'; echo 1..1"},
       "0 passed, 1 failed, 0 skipped", 1)
expect("a crash", {"unit/test_x.sh": "echo ok 1; echo 1..1; kill -SEGV $$"}, "1 passed, 1 failed, 0 skipped", 1,
       says="SIGSEGV")
expect("a crash before anything was said", {"unit/test_x.sh": "kill -KILL $$"}, "0 passed, 1 failed, 0 skipped", 1,
       says="SIGKILL")
expect("exit status without a failed case", {"unit/test_x.sh": "echo ok 1; echo 1..1; exit 7"},
       "1 passed, 1 failed, 0 skipped", 1, says="exit status 7")
expect("no plan", {"unit/test_x.sh": "echo ok 1"}, "1 passed, 1 failed, 0 skipped", 1, says="no plan")
expect("no output at all", {"unit/test_x.sh": "true"}, "0 passed, 1 failed, 0 skipped", 1, says="no plan")
expect("fewer cases than planned", {"unit/test_x.sh": "echo 1..3; echo ok 1; echo ok 2"},
       "2 passed, 1 failed, 0 skipped", 1, says="the plan says 3 cases, it printed 2")
expect("a plan of none, without a reason", {"unit/test_x.sh": "echo 1..0"}, "0 passed, 1 failed, 0 skipped", 1,
       says="it ran no case")
expect("bail out", {"unit/test_x.sh": "echo 1..1; echo ok 1; echo 'Bail out! no disk'"},
       "1 passed, 1 failed, 0 skipped", 1, says="no disk")
expect("a program that is not built", {"unit/test_x.c": "int main;\n"}, "0 passed, 1 failed, 0 skipped", 1,
       says="is not built")
expect("python scripts", {"unit/test_x.py": "print('ok 1 - a\\n1..1')\n"}, "1 passed, 0 failed, 0 skipped", 0)
expect("helpers and other files are no tests",
       {"unit/test_x.sh": GOOD, "unit/part.sh": "exit 1\n", "unit/rank.c": "// TEST-HELPER\n"},
       "1 passed, 0 failed, 1 skipped", 0)
expect("no make variables reach a test", {"unit/test_x.sh": "[ -z \"${MAKEFLAGS-}\" ] && echo ok 1; echo 1..1\n"},
       "1 passed, 0 failed, 0 skipped", 0, env={**os.environ, "MAKEFLAGS": " -j3"})
expect("only by pattern", {"unit/test_x.sh": GOOD, "e2e/test_x.sh": "exit 1\n"}, "1 passed, 0 failed, 1 skipped", 0,
       "--only", "unit/*")
expect("a pattern that matches nothing is an error", {"unit/test_x.sh": GOOD}, "0 passed, 0 failed, 0 skipped", 1,
       "--only", "nowhere")
expect("repeat", {"unit/test_x.sh": "echo ok 1; echo 1..1"}, "5 passed, 0 failed, 0 skipped", 0, "--repeat", "5")
expect("several builds add up; by default only unit and contract run under sanitizers",
       {k: "# {}\necho ok 1; echo 1..1\n".format(key) for k, key in {
           "unit/test_a.sh": "", "contract/test_b.sh": "TEST-SAN: tsan", "e2e/test_c.sh": "",
           "e2e/test_d.sh": "TEST-SAN: asan tsan", "unit/test_e.sh": "TEST-SAN: none"}.items()},
       "10 passed, 0 failed, 0 skipped", 0, build="build,asan,tsan")
expect("a sanitizer's report from a child whose output nobody reads",
       {"unit/test_x.sh": "f=${ASAN_OPTIONS#log_path=}; echo bad > ${f%%:*}.1; echo ok 1; echo 1..1\n"},
       "1 passed, 1 failed, 0 skipped", 1, build="asan", says="sanitizer")
expect("an undefined-behaviour report that ends nothing",
       {"unit/test_x.sh": "echo 'a.c:5:1: runtime error: shift'; echo ok 1; echo 1..1\n"},
       "1 passed, 1 failed, 0 skipped", 1, build="asan", says="sanitizer")
expect("what a leak checker says besides, or of a process that is killed, is no report",
       {"unit/test_x.sh": "f=${ASAN_OPTIONS#log_path=}; f=${f%%:*}; : > $f.0; echo '==7==Running thread 8 was not "
                          "suspended. False leaks are possible.' > $f.1; echo '==9==Unable to get registers from "
                          "thread 9.' > $f.2; echo ok 1; echo 1..1\n"},
       "1 passed, 0 failed, 0 skipped", 0, build="asan")
expect("what it says besides does not hide a report",
       {"unit/test_x.sh": "f=${ASAN_OPTIONS#log_path=}; printf '==9==Unable to get registers from thread 9.\\nleak\\n' "
                          "> ${f%%:*}.2; echo ok 1; echo 1..1\n"},
       "1 passed, 1 failed, 0 skipped", 1, build="asan", says="leak")
the_cause_is_at_the_end()
hang_ends_at_the_limit()
escaped_child_is_killed()
if os.path.isdir("/dev/shm"):
    shm_left_behind()
alone_runs_last_and_alone()
junit_is_written()
print(f"1..{number}")
sys.exit(1 if failed else 0)
