# SPDX-License-Identifier: Apache-2.0
"""Parts 1, 5 and 6: the kernels, the runtime with buffers on the GPU, the kernels under compute-sanitizer; without a
GPU the same sources in emulation."""
import re

import places
from steps import Failed, Skip, Step, Verdict, all_of, last_line, tap, telling

PREPARED, KERNELS, RUNTIME, SANITIZERS = "0 prepared", "1 kernels", "5 runtime", "6 sanitizers"
NOT_BUILT = "not built: no {} where `make tests` ran"
# A row of nccl-tests' table, which is gpu_coll's and rail-coll's too: size, …, redop, root, then time, algbw, busbw,
# wrong out of place and in place.
ROW = re.compile(r"^\s*(\d+)\s+\d+\s+\w+\s+\w+\s+-?\d+\s+([\d.e+-]+)\s+([\d.e+-]+)\s+([\d.e+-]+)\s+(\S+)", re.M)


def rows(text):
    """Size in bytes → {"us", "algbw", "busbw", "wrong"} out of place."""
    return {int(size): {"us": float(us), "algbw": float(alg), "busbw": float(bus),
                        "wrong": 0 if wrong == "N/A" else float(wrong)}
            for size, us, alg, bus, wrong in ROW.findall(text)}


def prepared(m, build_status, log):
    """What went wrong before the first step: the rest is tried all the same, with what there is."""
    def told(name, why, text):
        def body(_runner, step):
            step.log.write_text(text)
            raise Failed(why)
        return Step(PREPARED, name, body=body)
    if build_status:
        text = log.read_text(errors="replace") if log.exists() else ""
        yield told("make tests", f"ended with status {build_status}: {telling(text)}", text)
    if m.broken:
        yield told("probe of the GPU", f"{m.broken[0]}: {telling(m.broken[1])}", m.broken[1])


def sanitized(tool, program):
    def body(runner, step):
        status, text = runner.run(step, [places.sanitizer(), "--tool", tool, "--error-exitcode", "9", program, "--few"])
        # Its own sentence, and no more: CUDA's errors have "not supported" in their names, too.
        if status != 0 and "Device not supported" in text:
            raise Skip("compute-sanitizer refuses the device: Device not supported")
        if status == 77:
            raise Skip(last_line(text))
        if status != 0:
            raise Failed(f"ended with status {status}: {telling(text)}")
        return tap(text)
    return body


def kernels(m):
    if m.no_gpu:
        for name in ("reduce", "fifo", "block"):
            program = m.program(f"unit/test_device_{name}")
            yield Step(KERNELS, f"{name}, emulated", [program], env={"RAIL_BUILD": m.build}, limit=60,
                       skip="" if program else NOT_BUILT.format("C++17 compiler"))
    # First what only a real driver can tell.
    for name, program, limit in (("calls beside a kernel", "waits", 40), ("kernels", "kernels", 90),
                                 ("blocks", "blocks", 90)):
        program, skip = compiled(m, program)
        yield Step(KERNELS, name, [program], env=m.env(), limit=limit, skip=skip)


def compiled(m, name):
    """A program of nvcc's, and why it cannot run."""
    program = m.program(f"gpu/{name}")
    return program, m.no_gpu or ("" if program else NOT_BUILT.format("nvcc"))


def sanitizers(m):
    for name in ("kernels", "blocks"):
        program, skip = compiled(m, name)
        for tool in ("memcheck", "racecheck"):
            yield Step(SANITIZERS, f"{name}, {tool}", body=sanitized(tool, program), env=m.env(), limit=60,
                       needs=(name,), skip=skip or ("" if places.sanitizer() else "no compute-sanitizer here"))


def coll(m, library, ranks, net, *more):
    """gpu_coll's command."""
    return [m.build / "test/gpu/gpu_coll", "--library", library, "--ranks", ranks, "--limit", 25,
            *(["--hosts"] if net else []), *more]


def rail_coll(m, *runs):
    """A step's body: rail-coll with each of the options; every element must be right. Figures: the largest size's
    bus bandwidth out of place, which every collective has, in GB/s."""
    def body(runner, step):
        wrong, env = [], {}
        if m.no_gpu:
            image = runner.out / "fakegpu.image"
            image.write_text("fakegpu image\n")
            env = {"RAIL_CUDA_LIB": m.program("libfakegpu.so"), "RAIL_CUDA_KERNELS": image}
        for words in runs:
            try:
                status, text = runner.run(step, [m.build / "bin/rail-coll", *words], env)
                step.figures.update({} if m.no_gpu else largest(words, text))
                if status != 0 or "Out of bounds values : 0 OK" not in text or not rows(text):
                    raise Failed(f"status {status}: {telling(text)}")
            except Failed as e:
                wrong.append(f"rail-coll {' '.join(map(str, words))}: {e}")
        all_of(wrong)
        return Verdict(f"{len(runs)} runs", step.figures)
    return body


def largest(words, text):
    """The figure of the largest size, by the options that tell the runs of a step from each other."""
    found = rows(text)
    what = words[:words.index("--memory")] if "--memory" in words else words
    name = " ".join(map(str, [*what, *(["--net-only"] if "--net-only" in words else [])]))
    return {f"{name}, {max(found)} B": found[max(found)]["busbw"]} if found else {}


def rail_coll_steps(m, where, env, no_fake):
    sizes = ("-b", 8, "-e", "16K", "-f", 32, "-n", 2, "-w", 1) if m.no_gpu else ("-b", 8, "-e", "64M", "-f", 128)
    net = ("--net-only", "--plugin", m.plugin())
    memory = ("--memory", "device", *sizes)
    together = [("all_reduce", "-g", n, *memory) for n in (1, 2, 4)]
    apart = [("all_reduce", "-r", n, *memory) for n in (2, 4)]
    others = [("sendrecv", "-r", 2, *memory), ("all_reduce", "-r", 2, "-G", 5, *memory)]
    for name, runs, more, shared in (
            ("one process", [*together, ("alltoall", "-g", 4, *memory), ("all_gather", "-t", 2, *memory)], {}, False),
            ("processes", [*apart, *others], {}, True),
            ("processes, no P2P", apart, {"NCCL_P2P_DISABLE": "1"}, True),
            ("processes over the socket plugin", [(*words, *net) for words in apart], {}, True)):
        yield Step(RUNTIME, f"rail-coll, {name}{where}", body=rail_coll(m, *runs), limit=45, env={**env, **more},
                   skip=(shared and m.not_shared) or no_fake or "")


def runtime(m):
    # In emulation a thread stands for each thread of a block: small sizes.
    where, env, sizes = "", m.env_ranks(), ["--maxbytes", 1 << 20, "--factor", 16, "--iters", 5, "--most-ms", 50]
    if m.no_gpu:
        where, env, sizes = ", emulated", {k: v for k, v in m.env().items() if k != "TEST_REAL_GPU"}, [
            "--maxbytes", 1 << 15, "--factor", 64, "--iters", 2, "--most-ms", 50]
    no_fake = m.no_gpu and not m.program("libfakegpu.so") and NOT_BUILT.format("C++17 compiler")
    # What gives figures comes before the long ones.
    for net in (False, True):
        for ranks in (1, 2, 4):
            if net and ranks == 1:
                continue
            over = "the socket plugin" if net else "its own choice"
            command = coll(m, m.railyard, ranks, net, *sizes)
            yield Step(RUNTIME, f"{ranks} processes over {over}{where}", command, limit=45,
                       env={**env, "NCCL_NET_PLUGIN": m.plugin()}, skip=m.not_shared or no_fake or "")
    yield from rail_coll_steps(m, where, env, no_fake)
    for name, more in (("calls", {}), ("streams", {}), ("wait", {}), ("p2p", {}), ("kinds", {}),
                       ("calls", {"NCCL_P2P_DISABLE": "1"})):
        program = m.program(f"e2e/test_device_{name}")
        emulated = m.no_gpu if more else ""  # once is enough, and make test has the rest
        cases = ["shared_memory", "ll", "tree", "both", "threads"] if more else []
        yield Step(RUNTIME, f"{name}{'' if not more else ', no P2P'}{where}", [program, *cases], env={**env, **more},
                   limit=100, skip=m.not_shared or emulated or no_fake or
                   ("" if program else NOT_BUILT.format("C++17 compiler")))
