#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-SAN: none
# TEST-CORES: 0.5
"""What the documents show is there: make targets, programs with their subcommands and options, files, links, counts."""
import functools
import glob
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "broken")]
import proof  # noqa: E402
from coll import BUILD, ROOT, main, run  # noqa: E402

# The change log tells of what was; it may name what is gone.
DOCUMENTS = sorted(set(ROOT.glob("*.md")) - {ROOT / "CHANGELOG.md"}
                   | {file for folder in ("bench", "demo", "docs", "test") for file in ROOT.glob(f"{folder}/**/*.md")})
PROGRAMS = sorted(p.name for p in (ROOT / "tools").iterdir() if (BUILD / "bin" / p.name).exists())
PARTS = "bench common config core debian demo docs include kit loader packaging plugin test tools".split()
SOURCES = ("common/", "core/", "kit/", "loader/", "plugin/", "tools/")


# ---- what a document shows ----

def fences(text):
    """(line number, line) of code blocks, fenced or indented behind an empty line."""
    fenced = indented = False
    before = ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced, before = not fenced, line
            continue
        indented = line.startswith("    ") and (indented or not before.strip())
        if fenced or indented:
            yield number, line.strip()
        before = line


def spans(text):
    """(line number, text) of what stands between backquotes; one may go over the end of a line."""
    prose = re.sub(r"^ *```.*?^ *```", lambda m: "\n" * m.group().count("\n"), text, flags=re.M | re.S)
    for match in re.finditer(r"(`+)(.+?)\1", prose, re.S):
        if match.group(2).count("\n") <= 1:
            yield prose.count("\n", 0, match.start()) + 1, " ".join(match.group(2).split())


@functools.cache
def shown():
    """(document, line number, code) of everything in code type."""
    found = []
    for path in DOCUMENTS:
        text = path.read_text()
        found += [(path, n, code.replace("\\|", "|")) for part in (fences, spans) for n, code in part(text)]
    return found


def complain(problems):
    assert not problems, "\n".join(f"{path.relative_to(ROOT)}:{line}: {what}" for path, line, what in problems)


def commands(code, program):
    """The words behind each call of the program, to the end of its command."""
    for match in re.finditer(rf"(?:^|[\s(;|&=])((?:[\w./$-]*/)?{program})(?=\s|$)([^;|&#)]*)", code):
        yield match.group(1), match.group(2).split()


# ---- make ----

@functools.cache
def targets():
    names = set()
    for file in (ROOT / "Makefile", *ROOT.glob("config/*.mk")):
        for match in re.finditer(r"^([a-z][a-z -]*):(?!=)", file.read_text(), re.M):
            names |= set(match.group(1).split())
    return names


def make_targets():
    problems = []
    for path, line, code in shown():
        for _, words in commands(code, "make"):
            for word in words:
                if word.startswith("build/"):
                    if subprocess.run(["make", "-n", word], cwd=ROOT, capture_output=True).returncode != 0:
                        problems.append((path, line, f"make has no rule for {word}"))
                elif re.fullmatch(r"[a-z][a-z-]*", word) and word not in targets():
                    problems.append((path, line, f"make has no target {word}"))
                elif not re.fullmatch(r"[a-z][a-z-]*|-j\d*", word):
                    break  # a variable; what follows may be its value
    complain(problems)


# ---- programs ----

@functools.cache
def help_of(program, subcommand=None):
    done = run([BUILD / "bin" / program, *([subcommand] if subcommand else []), "--help"])
    assert done.returncode == 0, done
    return done.stdout


def names(text, option):
    return re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text)


def wrong_words(program, words):
    """What the program does not know."""
    subcommand = None
    if program == "rail-kit" and words and not words[0].startswith("-"):
        subcommand = words[0].strip(",.:")
        if not re.fullmatch(r"[a-z]+", subcommand):
            return  # SUBCOMMAND, …
        if not re.search(rf"^  {subcommand} ", help_of(program), re.M):
            yield f"{program} has no subcommand {subcommand}"
            return
        subcommand = None if subcommand == "help" else subcommand
    if program == "rail-coll" and words and re.fullmatch(r"[a-z][a-z_]+", words[0]) \
            and not names(help_of(program), words[0]):
        yield f"{program} has no collective {words[0]}"
    for word in words:
        option = re.match(r"--[a-z][a-z-]*|-[A-Za-z](?=$)", word)
        if option and not names(help_of(program, subcommand), option.group()):
            yield f"{program}{' ' + subcommand if subcommand else ''} has no option {option.group()}"


def programs_and_options():
    problems = []
    for path, line, code in shown():
        for folder, word in re.findall(r"build/(bin|bench)/([\w-]+)(?![\w.-])", code):
            if word not in PROGRAMS if folder == "bin" else not (ROOT / f"bench/{word}.c").exists():
                problems.append((path, line, f"there is no program {word}"))
        for program in PROGRAMS:
            for _, words in commands(code, program):
                problems += [(path, line, what) for what in wrong_words(program, words)]
    complain(problems)


def scripts_and_options():
    """An option of a script stands in the script, or in one beside it."""
    problems = []
    for path, line, code in shown():
        for match in re.finditer(r"(?:python3|bash|sh) ([\w./-]+\.(?:py|sh))([^;|&#)]*)", code):
            script = next((p for p in (ROOT / match.group(1), path.parent / match.group(1)) if p.exists()), None)
            if not script:
                problems.append((path, line, f"there is no {match.group(1)}"))
                continue
            text = "".join(p.read_text() for p in (script, *script.parent.glob("*.py")))
            options = re.findall(r"(?<=\s)--[a-z][a-z-]*", match.group(2))
            known = text + ("--help" if "argparse" in text else "")
            problems += [(path, line, f"{match.group(1)} has no option {o}") for o in options if o not in known]
    complain(problems)


# ---- files ----

def is_there(name, folder):
    """A file, a folder, a pattern, or the beginning of a name: `core/transport/rt_net` is rt_net.c and rt_net.h."""
    for top in (folder, ROOT):
        if name.startswith("build/"):
            top, name = BUILD, name[len("build/"):]
        if any(glob.glob(f"{top}/{name}{end}") for end in ("", ".*", "*")):
            return True
    return False


def files():
    problems = []
    for path, line, code in shown():
        dated = path.parent.name == "results" and re.match(r"\d{4}-\d\d-\d\d-", path.name)
        for word in re.findall(r"(?<![\w./<~$}-])((?:build/(?:bin|lib|test)|%s)/[\w./*-]+)" % "|".join(PARTS), code):
            name = word.rstrip(".,/")
            placeholder = re.search(r"[A-Z]{3,}|vN|\bmine\b|(?<![a-z])my_", name.replace("README", ""))
            if name.startswith("build/test") or "…" in code or placeholder:
                continue  # built by make tests, a place for any name, or the reader's own plugin
            if dated and name.startswith(SOURCES):
                continue  # figures of a day name the sources of that day
            if not is_there(name, path.parent):
                problems.append((path, line, f"there is no {name}"))
    complain(problems)


def anchors(path):
    """GitHub's anchors of the headings."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    return {re.sub(r"[^\w\- ]", "", h.replace("`", "").strip().lower()).replace(" ", "-")
            for h in re.findall(r"^#+ (.*)$", text, re.M)}


def links():
    problems = []
    for path in (*DOCUMENTS, ROOT / "CHANGELOG.md"):
        text = path.read_text()
        for match in re.finditer(r"\]\(([^)\s]+)\)|<img src=\"([^\"]+)", text):
            line, target = text.count("\n", 0, match.start()) + 1, match.group(1) or match.group(2)
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            file = (path.parent / name).resolve() if name else path
            if not file.exists():
                problems.append((path, line, f"the link {target} leads nowhere"))
            elif anchor and file.suffix == ".md" and anchor not in anchors(file):
                problems.append((path, line, f"the link {target}: no heading has that anchor"))
    complain(problems)


# ---- counts ----

def counts():
    """Numbers of checks and of planted defects are those of today; records under docs/results keep theirs."""
    checks = json.loads(run([BUILD / "bin/rail-kit", "conform", "--list", "--json", "-"]).stdout)
    today = {"checks": len(checks), "planted defects": len(proof.defects())}
    problems = []
    for path in DOCUMENTS:
        if path.parent == ROOT / "docs/results":
            continue
        text = path.read_text()
        for what, number in today.items():
            for match in re.finditer(rf"\b(some |about )?(\d+|a? ?hundred|dozens?)\s+(?:of\s+)?{what}", text):
                line = text.count("\n", 0, match.start()) + 1
                if match.group(2) != str(number) or match.group(1):
                    problems.append((path, line, f"'{' '.join(match.group().split())}': there are {number}"))
    complain(problems)


# ---- files to copy ----

def script(plugin, reports, **changes):
    return run([ROOT / "docs/ci/rail-kit.sh", plugin, reports], RAILYARD=BUILD, **changes)


def the_script_for_a_ci():
    """With all checks left out it is quick; the contract itself is other tests' matter."""
    with tempfile.TemporaryDirectory() as folder:
        known = pathlib.Path(folder) / "known"
        known.write_text("* not in this test\n")
        done = script(BUILD / "test/broken/libnccl-net-ref.so", f"{folder}/good", KNOWN=known)
        assert done.returncode == 0 and "all steps passed" in done.stdout, done
        assert {"inspect.json", "conform.xml", "fault.xml", "all_reduce.json", "bench.json"} <= \
            set(os.listdir(f"{folder}/good")), os.listdir(f"{folder}/good")
        done = script(BUILD / "test/libnetfix_nodev.so", f"{folder}/bad")
        assert done.returncode == 1 and "failed: conform fault collectives alltoall bench;" in done.stdout, done
        done = script("/nonexistent.so", f"{folder}/none")
        assert done.returncode == 2 and "no file /nonexistent.so" in done.stderr, done


main([("make targets", make_targets), ("programs, subcommands, options", programs_and_options),
      ("scripts and their options", scripts_and_options), ("files", files), ("links", links), ("counts", counts),
      ("the script for a CI", the_script_for_a_ci)])
