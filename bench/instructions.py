# SPDX-License-Identifier: Apache-2.0
"""What the plugins' counts of instructions share: bench/exchange under callgrind, a run for each kind of call. The same
program gives the same numbers, on any machine of its kind."""
import collections
import pathlib
import re
import shutil
import tempfile

from program import Failed, execute

MESSAGES = 1000
CALLS = {"irecv": "irecv", "isend": "isend", "test, waiting": "test_waiting", "test, received": "test_received",
         "test, sent": "test_sent"}
MESSAGE = ("irecv", "isend", "test, received", "test, sent")  # what one message takes at least

Edge = collections.namedtuple("Edge", "where callee_where cost")


def read_profile(text):
    """The edges between objects in a callgrind file, and what was counted below them."""
    names, edges = {}, []
    here, after_call = {"ob": "", "cob": None}, False
    for line in text.splitlines():
        if m := re.fullmatch(r"(c?ob)=\((\d+)\)(?: (.*))?", line):
            kind, number, name = m.groups()
            here[kind] = names.setdefault(number, name)
        elif line.startswith("calls="):
            after_call = True
        elif after_call:
            edges.append(Edge(here["ob"], here["cob"] or here["ob"], int(line.split()[1])))
            after_call, here["cob"] = False, None
    return edges


def exchange(build, plugin, size, env, under=()):
    """Runs the fixed list of calls; what it prints."""
    return execute([*under, str(build / "bench/exchange"), str(plugin), str(size), str(MESSAGES)], env)


def count(build, plugin, size, env, call, is_provider):
    """For one call of that kind: (the plugin's, the provider's that it calls). is_provider tells its object."""
    plugin = str(plugin)
    with tempfile.NamedTemporaryFile(prefix="rail-bench-") as out:
        exchange(build, plugin, size, env, ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out.name}",
                                            "--collect-atstart=no", f"--toggle-collect=call_{call}*"])
        edges = read_profile(pathlib.Path(out.name).read_text())
    whole = sum(e.cost for e in edges if e.callee_where == plugin != e.where)
    below = sum(e.cost for e in edges if e.where == plugin and is_provider(e.callee_where))
    if whole <= below:
        raise Failed(f"callgrind saw nothing of {plugin} in call_{call}")
    return (whole - below) / MESSAGES, below / MESSAGES


def missing(build, files):
    """None, or why it cannot be counted here."""
    if not shutil.which("valgrind"):
        return "valgrind is missing; config/setup.sh bench brings it"
    absent = [f for f in ("bench/exchange", *files) if not (build / f).exists()]
    return f"{', '.join(absent)} is not built" if absent else None
