# SPDX-License-Identifier: Apache-2.0
"""How long each program takes, and how many cores it keeps busy then: test/durations.txt, which is committed, for a
clone that has just been made has no other memory. Lines of LABEL SECONDS CORES."""


class Durations:
    def __init__(self, tests):
        self.file, self.rows = tests / "durations.txt", {}
        if self.file.exists():
            for line in self.file.read_text().splitlines():
                label, seconds, cores = line.split()
                self.rows[label] = float(seconds), float(cores)

    def tell(self, program):
        """A program that is not known is taken for one core, and for as long as it may take."""
        program.seconds, program.cores = self.rows.get(program.label, (program.limit, 1.0))

    def note(self, done, sources):
        """Of a run in which each program had the machine for itself. sources: the labels that there are."""
        for program, outcome in done:
            if not outcome.count("fail") and outcome.count("pass"):
                cores = outcome.cpu / max(outcome.seconds, 0.01)
                self.rows[program.label] = round(outcome.seconds, 1), max(0.1, round(cores, 1))
        rows = sorted((label, *row) for label, row in self.rows.items() if label in sources)
        self.file.write_text("".join(f"{label} {seconds} {cores}\n" for label, seconds, cores in rows))
