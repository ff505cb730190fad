# SPDX-License-Identifier: Apache-2.0
"""Programs of kind `lab`: all of them in one boot of the lab, where the same runner runs them.

The inner runner prints a line of JSON for each program that has ended (--events); here it
becomes the outcome that the outer runner shows and counts like any other. Where no lab is
possible the programs are skipped with the reason, but under CI that is a failure.
"""
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile

import schedule
from outcome import MARK, Outcome

BOOT = pathlib.Path(__file__).resolve().parent / "lab/boot.py"
INSIDE = "RAIL_LAB_TOPOLOGY"  # set in the guest, and by lab/devices.py: here are devices, run the programs as they are
NOT_POSSIBLE = 125
SPARE = 360  # seconds to boot, and for the runner itself, beside the programs' limits


def apart(programs):
    """(those to run here, those for the guest)."""
    inside = INSIDE in os.environ
    return ([p for p in programs if inside or p.kind != "lab"], [p for p in programs if not inside and p.kind == "lab"])


def event(program, outcome):
    print(json.dumps({"label": program.label, "cases": outcome.cases, "output": outcome.output,
                      "evidence": outcome.evidence, "seconds": outcome.seconds, "cpu": outcome.cpu,
                      "remark": outcome.remark}), flush=True)


def command(args):
    """The inner runner's command line: it chooses what the outer one chose."""
    argv = ["python3", "test/run.py", "--events", "--kind", "lab", "--tests", str(args.tests.resolve())]
    for build in args.build:
        argv += ["--build", str(build)]
    for pattern in args.only or []:
        argv += ["--only", pattern]
    return shlex.join(argv + ["--repeat", str(args.repeat)])


class Guest:
    """The boot and all that runs in it, as one program among the quiet ones: what must not be kept waiting for a core
    may be beside it, and there is nothing in it that the host's other processes could disturb but by taking cores."""

    def __init__(self, runner, programs, args, finish):
        self.label, self.alone, self.quiet = "lab", False, True
        self.seconds = sum(p.seconds for p in programs)
        self.cores = 1.0  # emulated, it keeps one and a half busy; what mostly sleeps may be beside it
        self.all = runner, programs, args, finish

    def run(self, _, ended):
        run(*self.all)
        ended()
        return schedule.REPORTED


def run(runner, programs, args, finish):
    """Boots, and calls finish(program, outcome) for each as it ends."""
    waiting = list(programs)
    seconds = sum(p.limit for p in programs) + SPARE
    scratch = tempfile.mkdtemp(prefix="rail-test-")
    boot = [sys.executable, str(BOOT), "--limit", str(seconds), "--out", str(args.build[0] / "lab/out"),
            *[word for build in args.build for word in ("--keep", str(build))], "--", command(args)]
    try:
        with open(f"{scratch}/stderr", "w+", encoding="utf-8", errors="replace") as stderr:
            mark = runner.next_mark()
            env = os.environ | {"TMPDIR": scratch, MARK: os.environ.get(MARK, "") + mark}
            child = subprocess.Popen(boot, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True,
                                     errors="replace", env=env, start_new_session=True)
            with runner.lock:
                runner.running[mark] = child.pid
            for line in child.stdout:
                take(line, waiting, finish)
            status = child.wait()
            with runner.lock:
                del runner.running[mark]
            stderr.seek(0)
            never_ended(waiting, status, stderr.read(), finish)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def take(line, waiting, finish):
    try:
        record = json.loads(line)
        program = next(p for p in waiting if p.label == record["label"])
        outcome = Outcome()
        for name, verdict, reason in record["cases"]:
            outcome.add(name, verdict, reason)
        outcome.evidence = [(name, lines) for name, lines in record["evidence"]]
        outcome.output, outcome.remark = record["output"], record["remark"]
        outcome.seconds, outcome.cpu = record["seconds"], record["cpu"]
    except (ValueError, KeyError, TypeError, StopIteration):
        return  # not an event: whatever it was, a program without one is a failure below
    waiting.remove(program)
    finish(program, outcome)


def never_ended(waiting, status, stderr, finish):
    """What is left when the boot is over: skipped if it could not begin, else failed."""
    lines = [line.removeprefix("lab: ") for line in stderr.splitlines() if line.startswith("lab: ")]
    reason = lines[-1] if lines else f"the lab ended with status {status}"
    for program in waiting:
        outcome = Outcome()
        outcome.output = stderr
        if status == NOT_POSSIBLE and os.environ.get("CI") != "true":
            outcome.add("all", "skip", reason)
        else:
            outcome.add("run", "fail", f"it did not end: {reason}", stderr.splitlines())
        finish(program, outcome)
