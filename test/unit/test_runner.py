#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The runner itself: every way a program can go wrong must count as a failure.

Each case writes small scripts into a tree of its own and runs test/run.py on
it. A runner that lets a fault pass would hide every other test's failures.
"""
# TEST-SAN: none
# TEST-LIMIT: 400
# TEST-READS: test/*.py
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import time

RUN = pathlib.Path(__file__).resolve().parent.parent / "run.py"
number = failed = 0
os.environ["RAIL_TEST_PROC_STAT"] = os.devnull  # whatever this machine and its host do
SHM = tempfile.TemporaryDirectory()  # programs that run beside this one must not be charged for what it leaves behind
os.environ["RAIL_TEST_SHM"] = SHM.name


def run(programs, *args, build="", env=None, top=None):
    """Runs {kind/name: text} and returns (exit status, all lines, the last line). A program is below build/."""
    with tempfile.TemporaryDirectory() as scratch:
        top = pathlib.Path(top or scratch)
        builds = [top / "build"] if not build else [top / "build" / b for b in build.split(",")]
        for b in builds:
            b.mkdir(parents=True, exist_ok=True)
            (b / "config.mk").write_text(f"BUILT_SAN := {b.name if b.name != 'build' else ''}\n")
        for name, text in programs.items():
            path = top / name if name.startswith("build/") else top / "test" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text).lstrip())
            path.chmod(0o755)
        argv = [sys.executable, str(RUN), "--tests", str(top / "test")]
        for b in builds:
            argv += ["--build", str(b)]
        done = subprocess.run(argv + list(args), capture_output=True, text=True, timeout=100, env=env)
        lines = done.stdout.splitlines()
        return done.returncode, lines, lines[-1] if lines else done.stderr.strip()


def expect(name, programs, last, status, *args, says=None, **kw):
    """The last line and the exit status, and a line with `says`, or with one of several texts."""
    global number, failed
    number += 1
    got = run(programs, *args, **kw)
    told = (says,) if isinstance(says, str) else says
    good = got[0] == status and got[2] == last and (
        says is None or any(one in line for one in told for line in got[1]))
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
    path = f"{SHM.name}/rail-x"
    expect("shared memory left behind", {"e2e/test_x.sh": f"echo > {path}; echo ok 1; echo 1..1\n"},
           "1 passed, 1 failed, 0 skipped", 1, says=f"leftover shared memory: {path}")


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


def who_ran_beside_whom(name, programs, good, *args, last=None, tries=1):
    """{name: (seconds, key, key)} note their begin and end; good(begin, end, order) is asked of those times and of who
    began one after the other. One of the tries has to be good, where a machine that stands still may spoil one."""
    global number, failed
    number += 1
    while not (fine := is_good(programs, good, args, last, tries == 1)) and tries > 1:
        tries -= 1
    failed += not fine
    print(f"{'ok' if fine else 'not ok'} {number} - {name}", flush=True)


def is_good(programs, good, args, last, tell):
    with tempfile.TemporaryDirectory() as top:
        log = pathlib.Path(top, "times")
        text = {f"unit/test_{n}.sh": f"# {keys[0]}\n# {keys[1]}\ndate +'begin %s.%N {n}' >>{log}\nsleep {seconds}\n"
                                     f"date +'end %s.%N {n}' >>{log}\necho ok 1; echo 1..1\n"
                for n, (seconds, *keys) in programs.items()}
        text["durations.txt"] = "".join(f"unit/test_{n} {key}\n" for n, (_, *keys) in programs.items()
                                        for key in keys if key[:1].isdigit())
        said = run(text, *args)[2]
        words = [line.split() for line in log.read_text().splitlines()]
    times = {(w, n): float(t) for w, t, n in words}
    begin, end = ({n: times[w, n] for n in programs} for w in ("begin", "end"))
    fine = (said == (last or f"{len(programs)} passed, 0 failed, 0 skipped")
            and good(begin, end, sorted(begin, key=begin.get)))
    print("".join(f"# {w}\n" for w in [*words, said]) if tell and not fine else "", end="")
    return fine


def most_at_a_time(begin, end, of=None):
    some = [n for n in begin if of is None or n in of]
    return max(sum(begin[m] <= begin[n] < end[m] for m in some) for n in some)


def cores_are_handed_out():
    who_ran_beside_whom("programs that wait run beside busy ones",
                        {n: (1.0, "1 0.1" if n in "cd" else "", "") for n in "abcd"},
                        lambda begin, end, order: most_at_a_time(begin, end) == 4, "--jobs", "2")
    who_ran_beside_whom("busy ones do not run beside more than there are cores for",
                        {n: (0.4, "1 1.1" if n == "a" else "", "") for n in "abcd"},
                        lambda begin, end, order: most_at_a_time(begin, end) == 2, "--jobs", "2")
    who_ran_beside_whom("a program that wants more cores than there are runs by itself",
                        {n: (0.4, "1 8" if n == "a" else "", "") for n in "abc"},
                        lambda begin, end, order: all(end[n] <= begin["a"] or end["a"] <= begin[n] for n in "bc"),
                        "--jobs", "2")
    who_ran_beside_whom("the longest begins; one that is not known may take as long as its limit",
                        {"a": (0.1, "100 1", ""), "b": (0.1, "TEST-LIMIT: 90", ""), "c": (0.1, "110 1", "")},
                        lambda begin, end, order: order == ["c", "a", "b"], "--jobs", "1")


def quiet_ones_are_among_themselves():
    programs = {"a": (0.3, "TEST-ALONE", ""), "b": (0.8, "TEST-QUIET", ""), "c": (0.8, "", ""), "e": (0.8, "", ""),
                "d": (0.8, "TEST-QUIET", "1 0.4"), "f": (0.8, "TEST-QUIET", "1 0.8")}

    def good(begin, end, _):
        return max(end["c"], end["e"]) <= min(begin[n] for n in "bdf") and begin["a"] >= max(end[n] for n in "bcdef") \
            and most_at_a_time(begin, end, "bdf") == 2 and most_at_a_time(begin, end, "ce") == 2
    who_ran_beside_whom("quiet ones are among themselves, with a core each, and alone is alone", programs, good,
                        "--jobs", "2")


def the_last_questions_keep_no_core():
    """It takes a second to be sure that nobody uses a file any more; the next program runs already."""
    who_ran_beside_whom("what is asked of a program that has ended keeps no other waiting",
                        {"a": (f"0.1; echo > {SHM.name}/rail-x", "TEST-LIMIT: 300", ""), "b": ("0.1", "", "")},
                        lambda begin, end, order: order == ["a", "b"] and begin["b"] - end["a"] < 0.9,
                        "--jobs", "1", last="2 passed, 1 failed, 0 skipped", tries=3)


def the_cause_is_at_the_end():
    """Whatever was printed in between: logs of long runs are cut."""
    global number, failed
    number += 1
    noise = "for i in `seq 1000`; do echo noise; done; "
    _, lines, _ = run({"unit/test_x.sh": "f=${ASAN_OPTIONS#log_path=}; echo overflow > ${f%%:*}.1; " + noise +
                                         "echo '# seed 4711'; echo not ok 1 - a; echo ok 2; echo 1..2\n",
                       "unit/test_y.sh": noise + "echo ok 1 - b; echo 1..1; exit 0\n"}, build="asan")
    last = lines[-60:]
    wanted = ("     | # seed 4711", "     | overflow", "failed: unit/test_x@asan a: not ok; again: make check T=")
    good = all(any(line.startswith(w) for line in last) for w in wanted) and len(lines) > 100
    failed += not good
    print("".join(f"# {line}\n" for line in last) if not good else "", end="")
    print(f"{'ok' if good else 'not ok'} {number} - the cause of a failure is among the last lines", flush=True)


def a_standstill_is_no_failure():
    """The machine's is played by stopping the runner, which cannot tell the difference."""
    global number, failed
    stop = "kill -STOP $PPID; sleep 4; kill -CONT $PPID; sleep 0.5; "
    del os.environ["RAIL_TEST_PROC_STAT"]
    with tempfile.TemporaryDirectory() as top:
        count = {n: pathlib.Path(top, n) for n in "wxyz"}
        note = {n: f"echo ran >>{file}; [ `wc -l <{file}` = 1 ] && " for n, file in count.items()}
        expect("what failed while the machine stood still is run again, once",
               {"unit/test_x.sh": note["x"] + "{ " + stop + "echo not ok 1; } || echo ok 1; echo 1..1\n",
                "unit/test_y.sh": note["y"] + "sleep 5; echo not ok 1; echo 1..1\n"},
               "1 passed, 1 failed, 0 skipped", 1, "--jobs", "2", says="stood still for")
        often = "for i in 1 2 3 4; do kill -STOP $PPID; sleep 0.8; kill -CONT $PPID; sleep 0.1; done; sleep 0.5; "
        expect("or stood still for short times, again and again",
               {"unit/test_w.sh": note["w"] + "{ " + often + "echo not ok 1; } || echo ok 1; echo 1..1\n"},
               "1 passed, 0 failed, 0 skipped", 0, says=("was late by", "stood still for"))  # which, if it did itself
        os.environ["RAIL_TEST_PROC_STAT"] = os.devnull
        expect("what failed otherwise is not", {"unit/test_z.sh": note["z"] + "sleep 1; echo not ok 1; echo 1..1\n"},
               "0 passed, 1 failed, 0 skipped", 1)
        number += 1
        times = {n: len(file.read_text().split()) for n, file in count.items()}
    wanted = {"w": 2, "x": 2, "y": 2, "z": 1}
    failed += times != wanted
    print(f"{'ok' if times == wanted else 'not ok'} {number} - that often: {times}", flush=True)


def a_host_that_is_busy_is_no_failure():
    """What it withholds is played by a file in the place of /proc/stat. A crash counts at once."""
    global number, failed
    with tempfile.TemporaryDirectory() as top:
        stat = pathlib.Path(top, "stat")
        stat.write_text("cpu  0 0 0 0 0 0 0 0 0 0\n")
        os.environ["RAIL_TEST_PROC_STAT"] = str(stat)
        count = {n: pathlib.Path(top, n) for n in "xyz"}
        note = {n: f"echo ran >>{file}; echo cpu 0 0 0 0 0 0 0 `wc -l <{file}`00 0 0 >{stat}; "
                   f"[ `wc -l <{file}` = 1 ] && " for n, file in count.items()}
        expect("what failed while the host withheld time is run again, once",
               {"unit/test_x.sh": note["x"] + "{ echo not ok 1; echo 1..1; exit 0; }; echo ok 1; echo 1..1\n"},
               "1 passed, 0 failed, 0 skipped", 0, says="the host withheld 1.0 s of the processors")
        stat.write_text("cpu  0 0 0 0 0 0 0 0 0 0\n")
        expect("a crash is not", {"unit/test_y.sh": note["y"] + "kill -SEGV $$; echo ok 1; echo 1..1\n"},
               "0 passed, 1 failed, 0 skipped", 1)
        stat.write_text("cpu  0 0 0 0 0 0 0 0 0 0\n")
        expect("nor what failed while it withheld little",
               {"unit/test_z.sh": note["z"].replace("00 0 0 >", "0 0 0 >") + "{ echo not ok 1; echo 1..1; exit 0; }\n"},
               "0 passed, 1 failed, 0 skipped", 1)
        os.environ["RAIL_TEST_PROC_STAT"] = os.devnull
        number += 1
        times = {n: len(file.read_text().split()) for n, file in count.items() if file.exists()}
    wanted = {"x": 2, "y": 1, "z": 1}
    failed += times != wanted
    print(f"{'ok' if times == wanted else 'not ok'} {number} - that often: {times}", flush=True)


def what_passed_is_not_run_again():
    """Until its binary, or a product that the binary names, or a file that a script says it reads, has changed."""
    global number, failed
    with tempfile.TemporaryDirectory() as top:
        log = pathlib.Path(top, "ran")
        note = f"echo $0 $* >>{log}; echo ok 1; echo 1..1\n"
        programs = {
            "unit/a.c": "", "build/test/unit/a": "#!/bin/sh\n# libx.so libfix_%s.so\n" + note,
            "unit/b.c": "", "build/test/unit/b": f"#!/bin/sh\necho $0 >>{log}; echo not ok 1; echo 1..1\n",
            "unit/test_c.sh": "# TEST-READS: build/data/*\n" + note, "unit/test_d.sh": note,
            "e2e/test_e.sh": "# TEST-CHECK: 'one case' two\n# TEST-READS:\n" + note, "e2e/test_f.sh": note,
            "build/lib/libx.so": "1", "build/lib/liby.so": "1", "build/lib/libfix_1.so": "1", "build/data/1": "1"}

        def ran(**changes):
            log.write_text("")
            end = run(programs | changes, "--check", "--jobs", "1", top=top)[2]
            words = log.read_text().replace(".sh", "").split()
            return "".join(sorted(w[-1] for w in words if w.startswith("/"))), end
        for what, want, changes in [
            ("at first everything that it has is run", "abcde", {}), ("then what failed or does not say", "bd", {}),
            ("a product that nobody names", "bd", {"build/lib/liby.so": "2"}),
            ("a product that a binary names", "abd", {"build/lib/libx.so": "2"}),
            ("one of a family that it names", "abd", {"build/lib/libx.so": "2", "build/lib/libfix_1.so": "2"}),
            ("a file that a script reads", "abcd", {"build/data/1": "2"}),
        ]:
            number += 1
            got, end = ran(**changes)
            good = got == want and end == "4 passed, 1 failed, 0 skipped"
            failed += not good
            print(("" if good else f"# {got}, {end}\nnot ") + f"ok {number} - make check: {what}", flush=True)


def names_as_they_are_typed():
    programs = {"unit/test_sock.sh": GOOD, "unit/test_addr.sh": GOOD, "fuzz/test_addr.sh": GOOD,
                "unit/test_case.sh": "[ \"$*\" = 'a b' ] && echo ok 1; echo 1..1\n"}
    for name in ("sock", "test_sock", "unit/sock", "unit/test_sock", "test/unit/test_sock.sh"):
        expect(f"a test called {name}", programs, "1 passed, 0 failed, 1 skipped", 0, "--one", name)
    expect("one case of it", programs, "1 passed, 0 failed, 0 skipped", 0, "--one", "case a b")
    expect("a name that is two tests", programs, "addr may be any of unit/test_addr, fuzz/test_addr", 2,
           "--one", "addr")
    expect("a name that is none", programs, "no test is called 'sokc'; near are unit/test_sock", 2, "--one", "sokc")
    expect("a failure says how to repeat it",
           {"unit/test_x.c": "", "build/test/unit/test_x": "#!/bin/sh\necho not ok 1 - a; echo 1..1\n"},
           "0 passed, 1 failed, 0 skipped", 1, says="not ok; again: make check T='unit/test_x a' BUILD=")
    expect("the slowest are named", {"unit/test_x.sh": "sleep 1; " + GOOD}, "1 passed, 0 failed, 1 skipped", 0,
           says="slowest: unit/test_x 1.")
    expect("so are those that computed most",
           {"unit/test_x.sh": "sleep 1; " + GOOD, "unit/test_y.sh": "for i in {1..100000}; do :; done; " + GOOD},
           "2 passed, 0 failed, 2 skipped", 0, says=" s, most of it: unit/test_y ")


def durations_are_written():
    global number, failed
    number += 1
    with tempfile.TemporaryDirectory() as top:
        programs = {"durations.txt": "unit/test_gone 5.0 1.0\nunit/test_x 9.0 1.0\n",
                    "unit/test_x.sh": "sleep 1; " + GOOD,
                    "unit/test_y.sh": "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done; " + GOOD}
        run(programs, "--write-durations", top=top)
        rows = [line.split() for line in pathlib.Path(top, "test/durations.txt").read_text().splitlines()]
    good = [r[0] for r in rows] == ["unit/test_x", "unit/test_y"] and 1 <= float(rows[0][1]) < 9 \
        and rows[0][2] == "0.1" and (float(rows[1][2]) > 0.1 or float(rows[1][1]) > 2)  # it was kept waiting for a core
    failed += not good
    print(("" if good else f"# {rows}\nnot ") + f"ok {number} - durations are written", flush=True)


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
expect("what a test hides is empty for it alone, where that can be done",
       {"unit/test_x.sh": "# TEST-HIDE: /proc/version\n[ -z \"$(cat /proc/version)\" ] || ! unshare --mount sh -c "
                          "'mount --bind /dev/null /proc/version' && echo ok 1; echo 1..1\n",
        "unit/test_y.sh": "[ -n \"$(cat /proc/version)\" ] && echo ok 1; echo 1..1\n"},
       "2 passed, 0 failed, 0 skipped", 0)
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
    the_last_questions_keep_no_core()
alone_runs_last_and_alone()
cores_are_handed_out()
quiet_ones_are_among_themselves()
a_standstill_is_no_failure()
a_host_that_is_busy_is_no_failure()
what_passed_is_not_run_again()
names_as_they_are_typed()
durations_are_written()
junit_is_written()
print(f"1..{number}")
sys.exit(1 if failed else 0)
