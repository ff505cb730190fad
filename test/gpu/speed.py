# SPDX-License-Identifier: Apache-2.0
"""Part 5: speed, always in turns with what it is compared with, and a verdict against the mark to reach."""
import math
import re
import statistics

import real_nccl
from device import NOT_BUILT, coll
from steps import Failed, Step, Verdict, tap, telling

PART = "5 speed"
ROUNDS = 3
REDUCE_COPY, RUNTIME, PLUGIN = 0.9, 1.0, 1.0  # to reach
# A row of nccl-tests' table, which is gpu_coll's too: size, …, redop, root, then time, algbw, busbw, wrong out of
# place and in place.
ROW = re.compile(r"^\s*(\d+)\s+\d+\s+\w+\s+\w+\s+-?\d+\s+([\d.e+-]+)\s+([\d.e+-]+)\s+([\d.e+-]+)\s+(\S+)", re.M)


def rows(text):
    """Size in bytes → {"us", "algbw", "busbw", "wrong"} out of place."""
    return {int(size): {"us": float(us), "algbw": float(alg), "busbw": float(bus),
                        "wrong": 0 if wrong == "N/A" else float(wrong)}
            for size, us, alg, bus, wrong in ROW.findall(text)}


def reached(ratios, mark):
    """The note of ratios by what they are of, and whether one is below the mark."""
    low = min(ratios.values())
    text = ", ".join(f"{name} {ratio:.2f}x" for name, ratio in ratios.items())
    return f"{text}; to reach {mark}x: {'reached' if low >= mark else 'NOT reached'}", low < mark


def reduce_copy(text, _step):
    verdict = tap(text)
    ratios = {f"{n} source{'s' * (n > 1)}": verdict.figures[f"reduce_copy_{n}_ratio"] for n in (1, 2)}
    note, missed = reached(ratios, REDUCE_COPY)
    return Verdict(f"{verdict.figures['reduce_copy_2']:.0f} GB/s; {note}", verdict.figures, missed)


def size_text(size):
    power = min(int(math.log2(size)) // 10, 3)
    return f"{size >> 10 * power} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def configurations(m):
    """Name → (library, over the network, variables)."""
    socket = {"NCCL_NET_PLUGIN": m.plugin()}
    return {"NCCL, Socket": (m.nccl, True, real_nccl.built_in()), "NCCL, our plugin": (m.nccl, True, real_nccl.ours(m)),
            "Railyard": (m.railyard, False, socket), "Railyard, our plugin": (m.railyard, True, socket)}


def in_turns(m, sizes, rounds=ROUNDS):
    """Every configuration in every round, each round beginning with another one. Figures: medians in us."""
    def body(runner, step):
        table = {}
        for n in range(rounds):
            names = list(configurations(m).items())
            for name, (library, net, env) in names[n % len(names):] + names[:n % len(names)]:
                command = coll(m, library, 2, net, "--only", "all_reduce", "--float", *sizes)
                status, text = runner.run(step, command, env=env, limit=40)
                found = rows(text)
                if status != 0 or not found or any(row["wrong"] for row in found.values()):
                    raise Failed(f"{name}: status {status}: {telling(text)}")
                for size, row in found.items():
                    table.setdefault((size, name), []).append(row["us"])
        figures = {f"{size} {name}": statistics.median(us) for (size, name), us in table.items()}
        for (size, name), us in sorted(table.items()):
            runner.say(f"    {size_text(size):>8}  {name:22} {statistics.median(us):9.0f} us")
        return Verdict(f"{rounds} rounds, {len({size for size, _ in table})} sizes", figures)
    return body


def compare(mark, what, against):
    """The verdict of figures that "all-reduce in turns" left: time of the best of `against` over that of `what`."""
    def body(runner, _step):
        figures = next(s.figures for s in runner.steps if s.name == "all-reduce in turns")
        sizes = sorted({int(key.split()[0]) for key in figures})
        ratios = {size_text(size): min(figures[f"{size} {name}"] for name in against) / figures[f"{size} {what}"]
                  for size in sizes}
        note, missed = reached(ratios, mark)
        return Verdict(note, ratios, missed)
    return body


def steps(m):
    program = m.program("gpu/speed")
    yield Step(PART, "reduceCopy against a copy", [program], limit=45, env=m.env(), judge=reduce_copy,
               skip=m.no_gpu or ("" if program else NOT_BUILT.format("nvcc")))
    sizes = ["--minbytes", 1 << 20, "--maxbytes", 16 << 20, "--factor", 4, "--iters", 20, "--most-ms", 400]
    yield Step(PART, "all-reduce in turns", body=in_turns(m, sizes), env=m.env_ranks(), limit=40,
               skip=m.no_ranks or ("" if m.nccl else "no NCCL here"))
    needs = ("all-reduce in turns",)
    yield Step(PART, "Railyard against NCCL", needs=needs,
               body=compare(RUNTIME, "Railyard", ("NCCL, Socket", "NCCL, our plugin")))
    yield Step(PART, "our plugin against Socket", needs=needs,
               body=compare(PLUGIN, "NCCL, our plugin", ("NCCL, Socket",)))
