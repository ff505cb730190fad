# SPDX-License-Identifier: Apache-2.0
"""Part 2: speed, always in turns with what it is compared with, and a verdict against the mark to reach."""
import math
import statistics

import real_nccl
from device import coll, compiled, rows
from steps import Failed, Skip, Step, Verdict, all_of, tap, telling

PART = "2 speed"
ROUNDS = 3
IN_TURNS = "all-reduce in turns"
REDUCE_COPY, RUNTIME, PLUGIN = 0.9, 1.0, 1.0  # to reach


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


def right_rows(status, text):
    """A table's rows, of a program that did well."""
    found = rows(text)
    if status != 0 or not found or any(row["wrong"] for row in found.values()):
        raise Failed(f"status {status}: {telling(text)}")
    return found


def one_round(m, runner, step, names, sizes, table, wrong):
    """One run of each that has not failed: `table`: (size, name) → [us…]; `wrong`: name → why."""
    for name in names:
        library, net, env = configurations(m)[name]
        command = coll(m, library, 2, net, "--only", "all_reduce", "--float", *sizes)
        try:
            found = right_rows(*runner.run(step, command, env=env, limit=40)) if name not in wrong else {}
        except Failed as e:
            wrong[name] = str(e)
            continue
        for size, row in found.items():
            table.setdefault((size, name), []).append(row["us"])
            step.figures[f"{size} {name}"] = statistics.median(table[size, name])


def in_turns(m, sizes, rounds=ROUNDS):
    """Every configuration in every round, each round beginning with another one. Figures: medians in us. One that fails
    is not tried again, and the others go on."""
    def body(runner, step):
        table, wrong, names = {}, {}, list(configurations(m))
        for n in range(rounds):
            first = n % len(names)
            one_round(m, runner, step, names[first:] + names[:first], sizes, table, wrong)
        for (size, name), us in sorted(table.items()):
            runner.say(f"    {size_text(size):>8}  {name:22} {statistics.median(us):9.0f} us")
        all_of([f"{name}: {why}" for name, why in wrong.items()])
        return Verdict(f"{rounds} rounds, {len({size for size, _ in table})} sizes", step.figures)
    return body


def compare(mark, what, against, about):
    """The verdict of figures that "all-reduce in turns" left, as far as both sides have some: time of the best of
    `against` over that of `what`."""
    def body(runner, _step):
        figures = next((s.figures for s in runner.steps if s.name == IN_TURNS), {})
        have = [name for name in against if any(key.endswith(f" {name}") for key in figures)]
        ratios = {}
        for size in sorted({int(key.split()[0]) for key in figures}):
            others = [figures[f"{size} {name}"] for name in have if f"{size} {name}" in figures]
            if others and f"{size} {what}" in figures:
                ratios[size_text(size)] = min(others) / figures[f"{size} {what}"]
        if not ratios:
            raise Skip(f"\"{IN_TURNS}\" has no figures of both sides")
        note, missed = reached(ratios, mark)
        lacks = "".join(f"; no figures of {name}" for name in against if name not in have)
        return Verdict(f"{note}; {about}{lacks}", ratios, missed)
    return body


# Step → the mark, what, against which, and what that compares.
COMPARED = {
    "Railyard against NCCL": (RUNTIME, "Railyard", ("NCCL, Socket", "NCCL, our plugin"), "ours within the GPU (P2P) "
                              "against the faster network of NCCL's, which has nothing else for two ranks on one GPU"),
    "Railyard against NCCL, like for like": (RUNTIME, "Railyard, our plugin", ("NCCL, our plugin",),
                                             "both over our plugin"),
    "our plugin against Socket": (PLUGIN, "NCCL, our plugin", ("NCCL, Socket",), "the networks, both under NCCL")}


def steps(m):
    program, skip = compiled(m, "speed")
    yield Step(PART, "reduceCopy against a copy", [program], limit=45, env=m.env(), judge=reduce_copy, skip=skip)
    sizes = ["--minbytes", 8, "--maxbytes", 16 << 20, "--factor", 8, "--iters", 20, "--most-ms", 400]
    skip = m.no_ranks or ("" if m.nccl else "no NCCL here")
    yield Step(PART, IN_TURNS, body=in_turns(m, sizes), env=m.env_ranks(), limit=40, skip=skip)
    for name, compared in COMPARED.items():
        yield Step(PART, name, uses=(IN_TURNS,), body=compare(*compared), skip=skip)
