# SPDX-License-Identifier: Apache-2.0
"""Steps one after the other, each with a deadline and a log file of its own, then a table and JSON.

Knows nothing of GPUs. A step is a command (or several, for measurements in turns) and a check of what it printed.
Whatever happens to it, the next one is run, and all have a line in the table.
"""
import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import time
import typing

OK, FAILED, MISSED, SKIPPED, CUT = "ok", "failed", "missed", "skipped", "cut"
GRACE = 10  # seconds for killed processes to vanish: one that waits for a device may not
LEAST = 3   # seconds that are worth a try
LOG_END, MORE_END = 1 << 20, 20000  # bytes of a step's log, and of a file beside it, that all.log has at most
OURS = re.compile(r"\d{2,}-.+\.(log|railtrace)")  # what steps leave in logs/
# Variables of launchers and libraries: steps set their own.
DROP = ("NCCL_", "RAIL_", "SLURM_", "OMPI_", "PMIX_", "TORCH_", "TORCHELASTIC_")
DROP_NAMES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LD_PRELOAD"}
KEEP = {"RAIL_TEST_MARK"}  # test/run.py finds stray processes by it


class Failed(Exception):
    """A check failed; the text says why."""


class Skip(Exception):
    """It turns out that the step cannot be done here; the text says why."""


class Cut(Exception):
    """The time of the whole did not suffice: says nothing of what the step looks at."""


@dataclasses.dataclass
class Verdict:
    note: str = ""
    figures: dict = dataclasses.field(default_factory=dict)
    missed: bool = False  # all was right, and slower than it should be


@dataclasses.dataclass
class Step:
    """`command`: words; or a function that gives them when the step begins (it may raise Skip or Failed).
    `judge(text, step)`: of the output of a command that ended with 0; None: TAP.
    `needs`: names of steps that must be ok; `uses`: of those that are run before it, however they end.
    `reserve`: seconds of the whole that it leaves to those after it."""
    part: str
    name: str
    command: typing.Any = None
    limit: float = 60
    env: dict = dataclasses.field(default_factory=dict)
    judge: typing.Optional[typing.Callable] = None
    skip: str = ""
    needs: tuple = ()
    uses: tuple = ()
    reserve: float = 0
    body: typing.Optional[typing.Callable] = None  # instead of a command: body(runner, step) -> Verdict
    # The outcome. A body that may fail half-way puts figures here as it gets them.
    result: str = ""
    note: str = ""
    seconds: float = 0.0
    figures: dict = dataclasses.field(default_factory=dict)
    log: typing.Optional[pathlib.Path] = None


def file_name(text):
    return re.sub(r"[^\w.-]+", "-", text).strip("-")


def environment(changes):
    """This process' environment without what belongs to launchers and libraries, with the changes; "+NAME" puts its
    value in front of a list of folders."""
    env = {k: v for k, v in os.environ.items() if k in KEEP or not k.startswith(DROP) and k not in DROP_NAMES}
    for name, value in changes.items():
        if name.startswith("+"):
            old = env.get(name[1:])
            env[name[1:]] = f"{value}:{old}" if old else str(value)
        else:
            env[name] = str(value)
    return env


def tap(text, _step=None):
    """The check for programs that print TAP: their cases counted; Failed with the first that is not ok."""
    lines = re.findall(r"^(ok|not ok)\b(?: \d+)?(?: - )?(.*)$", text, re.M)
    bad = [what for word, what in lines if word == "not ok"]
    if bad:
        raise Failed(f"{len(bad)} of {len(lines)} cases failed: {bad[0]}")
    skipped = [what for _, what in lines if "# SKIP" in what]
    if not lines:
        raise Failed("it printed no case")
    if len(skipped) == len(lines):
        raise Skip(skipped[0].split("# SKIP", 1)[1].strip())
    note = f"{len(lines) - len(skipped)} cases" + (f", {len(skipped)} skipped" if skipped else "")
    return Verdict(note, figures_of(text))


def figures_of(text):
    """Lines "# figure NAME VALUE UNIT"."""
    return {name: float(value) for name, value in re.findall(r"^# figure (\S+) (\S+)", text, re.M)}


def all_of(wrong):
    """Several failures as one."""
    if wrong:
        raise Failed("; ".join(wrong))


def write(path, data):
    """The whole file or the old one, also when this process is killed at any moment."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    part.replace(path)


class Runner:
    """`spent`: seconds of the budget that are gone already."""

    def __init__(self, out, budget, say=print, facts=None, least=LEAST, spent=0.0):
        self.out = pathlib.Path(out)
        self.logs = self.out / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.empty()
        self.end = time.monotonic() + budget - spent
        self.budget, self.say, self.facts = budget, say, facts or {}
        self.least = least
        self.steps, self.interrupted, self.running = [], "", None

    def empty(self):
        """An earlier run's files would be counted and replayed with ours."""
        for path in self.logs.iterdir():
            if OURS.fullmatch(path.name):
                path.unlink()
        for name in ("results.json", "results.md", "all.log"):
            (self.out / name).unlink(missing_ok=True)

    # ---- one command ----

    def left(self):
        return self.end - time.monotonic()

    def run(self, step, command, env=None, limit=None):
        """Runs the command, its output added to the step's log. (exit status, output); Failed after the deadline."""
        if self.interrupted:
            raise Failed(self.interrupted)
        own, left = limit or step.limit, self.left() - step.reserve
        if left < self.least:
            kept = f", {step.reserve:.0f} s of them kept for later steps" if step.reserve else ""
            raise Cut(f"not begun: the {self.budget:.0f} s of the whole are used up{kept}")
        limit = min(own, left)
        words = [str(w) for w in command]
        with open(step.log, "a+b") as log:
            log.write(f"$ {' '.join(words)}\n".encode())
            log.flush()
            begin = log.tell()
            try:
                process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                           env=environment({**step.env, **(env or {})}), start_new_session=True)
            except OSError as e:
                raise Failed(f"cannot be started: {e}") from None
            self.running = process
            try:
                status = process.wait(timeout=limit)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                self.running = None
                stuck = kill_session(process)
            log.seek(begin)
            text = log.read().decode(errors="replace")
        step.figures.update(figures_of(text))  # also of what fails afterwards
        if self.interrupted:
            raise Failed(self.interrupted)
        if status is None and limit < own:
            raise Cut(f"by the budget after {limit:.0f} of its {own:.0f} s{stuck}; last: {last_line(text)}")
        if status is None:
            raise Failed(f"still running after {limit:.0f} s, killed{stuck}; last: {last_line(text)}")
        return status, text

    def interrupt(self, number, _frame=None):
        """Signal handler: ends the step at hand; the rest is skipped, and the table comes all the same."""
        self.interrupted = f"interrupted by {signal.Signals(number).name}"
        if self.running:
            kill_session(self.running)

    # ---- one step ----

    def judge(self, step):
        if step.skip:
            raise Skip(step.skip)
        if self.interrupted:
            raise Skip(self.interrupted)
        for name in step.needs:
            before = next((s for s in self.steps if s.name == name), None)
            if before is None:
                raise Skip(f"needs \"{name}\", which was not run")
            if before.result == SKIPPED:
                raise Skip(before.note)
            if before.result == CUT:
                raise Cut(f"needs \"{name}\", which was cut")
            if before.result == FAILED:
                raise Skip(f"needs \"{name}\", which failed")
        if step.body:
            return step.body(self, step)
        status, text = self.run(step, step.command() if callable(step.command) else step.command)
        if status == 77:
            raise Skip(last_line(text))
        if status != 0:
            raise Failed(f"ended with status {status}: {telling(text)}")
        return (step.judge or tap)(text, step)

    def do(self, step):
        step.log = self.logs / f"{len(self.steps) + 1:02d}-{file_name(step.name)}.log"
        begin = time.monotonic()
        self.write_json(step.name)
        try:
            verdict = self.judge(step)
            step.result, step.note, step.figures = MISSED if verdict.missed else OK, verdict.note, verdict.figures
        except Skip as e:
            step.result, step.note = SKIPPED, str(e)
        except Cut as e:
            step.result, step.note = CUT, str(e)
        except Failed as e:
            step.result, step.note = FAILED, str(e)
        except (OSError, ValueError, KeyError, IndexError) as e:  # output that the check did not expect
            step.result, step.note = FAILED, f"its output cannot be judged: {type(e).__name__}: {e}"
        step.seconds = time.monotonic() - begin
        self.steps.append(step)
        self.say(row(step))
        self.write_all("; the run is not at its end")

    # ---- all of them ----

    def counts(self):
        return {r: sum(s.result == r for s in self.steps) for r in (OK, FAILED, MISSED, SKIPPED, CUT)}

    def last_words(self):
        c = self.counts()
        cut = f", {c[CUT]} CUT BY THE BUDGET of {self.budget:.0f} s" if c[CUT] else ""
        return f"{c[OK]} passed, {c[FAILED]} failed, {c[MISSED]} too slow, {c[SKIPPED]} skipped{cut}"

    def write_json(self, at_hand=None):
        steps = [{"part": s.part, "name": s.name, "result": s.result, "seconds": round(s.seconds, 2), "note": s.note,
                  "figures": s.figures, "log": s.log.name if s.log.exists() else None} for s in self.steps]
        text = json.dumps({"facts": self.facts, "counts": self.counts(), "at hand": at_hand, "steps": steps}, indent=1)
        write(self.out / "results.json", f"{text}\n".encode())

    def table(self):
        lines, part = [], None
        for s in self.steps:
            if s.part != part:
                part = s.part
                lines += ["", part]
            lines.append(row(s))
        return "\n".join(lines)

    def markdown(self, text):
        """To be kept with other results."""
        lines = ["# GPU suite", "", *(f"- {name}: {value}" for name, value in self.facts.items()), ""]
        lines += ["```text", text.strip(), "```"]
        for s in self.steps:
            if s.figures:
                lines += ["", f"{s.part}, {s.name}:", "", "| | |", "|---|---|"]
                lines += [f"| {name} | {value:.4g} |" for name, value in s.figures.items()]
        return "\n".join(lines) + "\n"

    def everything(self):
        """all.log: every step's log, and the ends of the files beside it."""
        whole = []
        for s in self.steps:
            whole.append(f"\n==== {s.name}: {s.result}, {s.seconds:.1f} s {s.note}\n".encode())
            whole.append(end_of(s.log, LOG_END) if s.log.exists() else b"")
            for more in sorted(self.logs.glob(f"{s.log.stem}.*.log")):
                whole.append(f"---- {more.name}, its end\n".encode() + end_of(more, MORE_END))
        return b"".join(whole)

    def write_all(self, state=""):
        """After each step: what there is outlives whatever ends us."""
        text = f"{self.table()}\n\n{self.last_words()}; {self.budget - self.left():.0f} s{state}"
        self.write_json()
        write(self.out / "results.md", self.markdown(text).encode())
        write(self.out / "all.log", self.everything())
        return text

    def finish(self):
        """Table, files; the exit status: what the budget cut was not looked at, so not well."""
        self.say(f"{self.write_all()}; logs in {self.logs}")
        return 1 if self.counts()[FAILED] or self.counts()[CUT] or self.interrupted else 0


def row(s):
    return f"  {s.result:8} {s.seconds:6.1f} s  {s.name:44} {s.note}".rstrip()


def end_of(path, most):
    """A file's last bytes, at most so many."""
    with open(path, "rb") as f:
        size = f.seek(0, os.SEEK_END)
        f.seek(max(0, size - most))
        cut = f"... {size - most} bytes before\n".encode() if size > most else b""
        return cut + f.read()


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it printed nothing"


def telling(text):
    """The line that says best what went wrong: a rank's own words, a case, an error, else the last."""
    for pattern in (r"^# (rank \d+: (?!another rank).+)$", r"^(not ok\b.*)$",
                    r"^(.*(?:\b[Ee]rror\b|ERROR|[Ff]ailure|[Ff]ailed|cannot|undefined symbol).*)$"):
        if found := re.search(pattern, text, re.M):
            return found.group(1).strip()[:300]
    return last_line(text)


def session_members(leader):
    """Processes of the session that the leader began: its process groups may be several."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fields = pathlib.Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(entry))
    return found


def kill_session(process):
    """Nothing of a command outlives it. "" or what could not be ended."""
    deadline = time.monotonic() + GRACE
    while True:
        members = session_members(process.pid)
        for pid in members:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        process.poll()
        if not members:
            return ""
        if time.monotonic() > deadline:
            return f" (process {members[0]} cannot be ended)"
        time.sleep(0.05)
