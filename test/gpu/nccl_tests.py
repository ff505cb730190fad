# SPDX-License-Identifier: Apache-2.0
"""Part 4: nccl-tests, built outside the repository, as two processes on one GPU: NCCL with our plugin, NCCL with
its own Socket, librailyard.so; side by side."""
import os
import pathlib

import places
import real_nccl
from speed import right_rows, size_text
from steps import Failed, Step, Verdict, all_of

PART = "4 nccl-tests"
HERE = pathlib.Path(__file__).resolve().parent
PROGRAMS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "sendrecv", "alltoall", "gather",
            "scatter")
SIZES = ["-b", "4K", "-e", "4M", "-f", "32", "-n", "5", "-w", "1", "-c", "1"]
BUILD = "build of the programs"


def columns(m):
    """Name → (the folder of its libnccl.so.2, ranks as hosts, variables)."""
    return {"NCCL, our plugin": (os.path.dirname(m.nccl), True, real_nccl.ours(m)),
            "NCCL, Socket": (os.path.dirname(m.nccl), True, real_nccl.built_in()),
            "Railyard": (os.path.dirname(m.railyard), False, {"NCCL_NET_PLUGIN": m.plugin()})}


def build(m, sources, folder):
    def command():
        sm = places.smi("compute_cap").replace(".", "") or "90"
        return ["bash", HERE / "nccl_tests.sh", sources, folder, m.nccl, places.nccl_include(), sm]
    return Step(PART, BUILD, command, limit=150, env={"CUDA_HOME": places.cuda_home() or ""})


def one(m, name, folder):
    def body(runner, step):
        program = folder / "build" / f"{name}_perf"
        texts, wrong = [], []
        for column, (library, hosts, env) in columns(m).items():
            command = [*LAUNCH, *(["--hosts"] if hosts else []), "--", program, *SIZES]
            path = m.env_ranks(library, str(folder / "mpi/lib"))
            try:
                status, text = runner.run(step, command, env={**path, **env, "NCCL_TESTS_DEVICE": 0}, limit=30)
                found = right_rows(status, text)
            except Failed as e:
                wrong.append(f"{column}: {e}")
                continue
            step.figures.update({f"{size} {column}": row["us"] for size, row in found.items()})
            texts.append(f"{column} {found[max(found)]['algbw']:.2f}")
        all_of(wrong)
        return Verdict(f"GB/s at {size_text(max(found))}: {', '.join(texts)}", step.figures)
    return body


LAUNCH = [os.environ.get("PYTHON") or "python3", HERE / "ranks.py", "-n", 2]


def why_not(m, given):
    if m.no_ranks:
        return m.no_ranks
    if not m.nccl:
        return "no NCCL here"
    return "" if given else "NCCL_TESTS does not say where nccl-tests are (sources, or what nccl_tests.sh built)"


def steps(m, given, work):
    """`given`: sources, or the folder that nccl_tests.sh made of them; "" for none."""
    skip, folder, needs = why_not(m, given), work, ()
    if given and (pathlib.Path(given) / "build" / "all_reduce_perf").exists():
        folder = pathlib.Path(given).resolve()
    else:
        step = build(m, given, work)
        missing = "no nvcc here" if not places.cuda_home() else "no nccl.h here" if not places.nccl_include() else ""
        step.skip = skip or missing
        needs = (BUILD,)
        yield step
    for name in PROGRAMS:
        yield Step(PART, name, body=one(m, name, folder), limit=90, skip=skip, needs=needs)
