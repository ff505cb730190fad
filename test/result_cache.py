# SPDX-License-Identifier: Apache-2.0
"""`make check` does not run a program again that passed, while what its result depends on has the same contents.

A C program depends on its binary and on each product of the build whose file name stands in that binary. A script
depends on the files that its TEST-READS line names (build/ is the build directory); without such a line it is always
run. What passed is kept in BUILD/check.json.
"""
import hashlib
import json
import os
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
SETTING = re.compile(r"RAIL_TEST_(?!MARK)")


class ResultCache:
    def __init__(self, build):
        self.file, self.contents = build / "check.json", {}
        self.products = sorted(p for d in ("lib", "bin", "test") for p in (build / d).glob("*") if p.is_file())
        try:
            self.passed = json.loads(self.file.read_text())
        except (OSError, ValueError):
            self.passed = {}
        self.digests = {}

    def read(self, path):
        if path not in self.contents:
            self.contents[path] = hashlib.sha256(path.read_bytes()).digest()
        return self.contents[path]

    def depends_on(self, program):
        """The files; None: not known."""
        if program.source.suffix == ".c":
            binary = pathlib.Path(program.argv[0])
            text = binary.read_bytes()
            # libnetfix_%s.so is a family of products: one whose name begins as some string does up to its %.
            families = tuple(m.decode() for m in re.findall(rb"([\w.-]{6,})%s\.so", text))
            return [binary, *(p for p in self.products if p.name.encode() in text or p.name.startswith(families))]
        if program.reads is None:
            return None
        found = [program.source]
        for pattern in program.reads.split():
            top, rest = (program.build, pattern[len("build/"):]) if pattern.startswith("build/") else (ROOT, pattern)
            found += sorted(top.glob(rest)) or ([] if "*" in rest else [top / rest])
        return found

    def digest(self, program):
        """Of everything that the result depends on; None when that is not known or not all there."""
        if program.label not in self.digests:
            try:
                files = self.depends_on(program)
                settings = sorted(f"{k}={v}" for k, v in os.environ.items() if SETTING.match(k))
                parts = None if files is None else [
                    repr((program.argv, settings)).encode(), *(self.read(f) for f in files)]
            except OSError:
                parts = None
            self.digests[program.label] = parts and hashlib.sha256(b"".join(parts)).hexdigest()
        return self.digests[program.label]

    def knows(self, program):
        """(passed, skipped) cases of its last run, if that holds for what is there now."""
        entry, digest = self.passed.get(program.label), self.digest(program)
        return (entry["passed"], entry["skipped"]) if entry and digest and entry["digest"] == digest else None

    def note(self, program, outcome):
        """At once: a run that is interrupted keeps what it has."""
        self.passed.pop(program.label, None)
        if self.digest(program) and not outcome.count("fail"):
            self.passed[program.label] = {"digest": self.digest(program), "passed": outcome.count("pass"),
                                          "skipped": outcome.count("skip")}
        temporary = self.file.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.passed, indent=1, sort_keys=True))
        temporary.replace(self.file)
