# SPDX-License-Identifier: Apache-2.0
"""What a test program did: its TAP and its sanitizers' reports, read; and of what went wrong, what one needs to see."""
import pathlib
import re

MARK = "RAIL_TEST_MARK"  # in the environment of every process of a program
# What LeakSanitizer says of a process that is killed while it looks for leaks, and of a thread that ends then: no
# finding, if it is all that it says.
ASIDE = re.compile(r"(==\d+==(Running thread \d+ was not suspended\. False leaks are possible\.|"
                   r"Unable to get registers from thread \d+\.)\n)*")
RESULT = re.compile(r"(not )?ok\b\s*(\d+)?\s*-?\s*(.*)$")
PLAN = re.compile(r"1\.\.(\d+)\s*(?:#\s*skip\S*\s*(.*))?$", re.I)
SKIP = re.compile(r"(.*?)\s*#\s*skip\b:?\s*(.*)$", re.I)
# At the end of a run, where a reader looks first and a log that was cut still has it:
MOST_CASES, MOST_LINES, MOST_COLUMNS, MOST_SLOW = 20, 40, 600, 10


class Outcome:
    """Cases as (name, "pass" | "fail" | "skip", reason); evidence: (name, lines) of those that failed with something
    to show; remark: what the runner has to say of the run itself; seconds; cpu: seconds of processor time."""

    def __init__(self):
        self.cases, self.evidence, self.output, self.remark = [], [], "", ""
        self.seconds, self.cpu = 0.0, 0.0

    def add(self, name, verdict, reason="", evidence=()):
        self.cases.append((name, verdict, reason))
        if evidence:
            self.evidence.append((name, list(evidence)))

    def count(self, verdict):
        return sum(v == verdict for _, v, _ in self.cases)

    def is_certain(self):
        """Of what failed, something has nothing to do with time: a crash, a report of a sanitizer."""
        return any(verdict == "fail" and name in ("crash", "sanitizer") for name, verdict, _ in self.cases)


def parse(output, outcome):
    """Reads TAP. Returns what is wrong with the whole, or None."""
    plan, bail, number, remarks = None, None, 0, []
    for line in output.splitlines():
        if line.startswith("Bail out!"):
            bail = line
        elif m := PLAN.match(line):
            plan = int(m.group(1))
            if plan == 0 and m.group(2) is not None:
                outcome.add("all", "skip", m.group(2) or "no reason given")
        elif m := RESULT.match(line):
            number += 1
            name, skip = m.group(3) or f"case {number}", SKIP.match(m.group(3))
            if m.group(1):
                outcome.add(name, "fail", "not ok", remarks)
            elif skip:
                outcome.add(skip.group(1) or f"case {number}", "skip", skip.group(2) or "no reason given")
            else:
                outcome.add(name, "pass")
            remarks = []
        else:
            remarks.append(line)
    if bail:
        return bail
    if plan is None:
        return "it printed no plan (1..N), so it did not reach its end"
    if plan != number:
        return f"the plan says {plan} cases, it printed {number}"
    return "it ran no case" if not outcome.cases else None


def read_sanitizers(folder, output, outcome):
    """The reports that its processes left in a folder; gcc's UBSAN next to ASAN writes to the output instead."""
    texts = [(f.name, f.read_text(errors="replace")) for f in sorted(pathlib.Path(folder).glob("sanitizer*"))]
    reports = [f"--- {name}\n{text}" for name, text in texts if not ASIDE.fullmatch(text)]
    undefined = [line for line in output.splitlines() if re.match(r"\S+:\d+:\d+: runtime error: ", line)]
    if reports or undefined:
        outcome.output += "".join(reports)
        outcome.add("sanitizer", "fail", "a process reported an error",
                    undefined + [line for report in reports for line in report.splitlines()[:MOST_LINES]])


def shortened(lines, most):
    return lines if len(lines) <= most else [*lines[:most // 2], f"… {len(lines) - most} lines left out …",
                                             *lines[-(most // 2):]]


def print_evidence(done):
    """done: (program, outcome) of each run."""
    found = [(p.label, name, lines) for p, o in done for name, lines in o.evidence]
    for label, name, lines in found[:MOST_CASES]:
        print(f"seen in {label} {name}:")
        for line in shortened(lines, MOST_LINES):
            print(f"     | {line[:MOST_COLUMNS]}")


def summary(done, unchanged=()):
    """The end of a report. done: (program, outcome) of each run; unchanged: (passed, skipped) of each program that was
    not run, because it passed and did not change since. The exit status."""
    skips = [(p.label, name, reason) for p, o in done for name, verdict, reason in o.cases if verdict == "skip"]
    for label, name, reason in sorted(set(skips)):
        print(f"skipped: {label} {name}: {reason}")
    print_evidence(done)
    slowest = sorted(done, key=lambda d: -d[1].seconds)[:MOST_SLOW]
    if slowest:
        print("slowest: " + ", ".join(f"{p.label} {o.seconds:.1f} s" for p, o in slowest))
    busiest = sorted(done, key=lambda d: -d[1].cpu)[:MOST_SLOW]
    if len(busiest) > 1:
        print(f"processor time: {sum(o.cpu for _, o in done):.1f} s, most of it: "
              + ", ".join(f"{p.label} {o.cpu:.1f} s" for p, o in busiest))
    for p, o in done:
        if o.remark:
            print(f"{p.label}: {o.remark}")
    failures = [(p, name, reason) for p, o in done for name, verdict, reason in o.cases if verdict == "fail"]
    for p, name, reason in failures:
        print(f"failed: {p.label} {name}: {reason}; again: {p.again(name if reason == 'not ok' else None)}")
    if unchanged:
        known, total = len(unchanged), len(unchanged) + len(done)
        print(f"{known} of {total} programs did not change since they passed: not run again")
    passed, skipped = (sum(o.count(v) for _, o in done) + sum(counts[i] for counts in unchanged)
                       for i, v in enumerate(("pass", "skip")))
    print(f"{passed} passed, {len(failures)} failed, {skipped} skipped", flush=True)
    return 1 if failures or not passed else 0
