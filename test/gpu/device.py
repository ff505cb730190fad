# SPDX-License-Identifier: Apache-2.0
"""Parts 1 and 2: the kernels, and the runtime with buffers on the GPU; without one the same sources in emulation."""
import re

import places
from steps import Failed, Skip, Step, Verdict, last_line, tap, telling

KERNELS, RUNTIME = "1 kernels", "2 runtime"
NOT_BUILT = "not built: no {} where `make tests` ran"


def sanitized(tool, program):
    def body(runner, step):
        status, text = runner.run(step, [places.sanitizer(), "--tool", tool, "--error-exitcode", "9", program, "--few"])
        if "not supported" in text and status != 0:
            raise Skip(f"compute-sanitizer refuses the device: {last_line(text)}")
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
    for name in ("kernels", "blocks"):
        program = m.program(f"gpu/{name}")
        skip = m.no_gpu or ("" if program else NOT_BUILT.format("nvcc"))
        yield Step(KERNELS, name, [program], env=m.env(), limit=90, skip=skip)
        for tool in ("memcheck", "racecheck"):
            yield Step(KERNELS, f"{name}, {tool}", body=sanitized(tool, program), env=m.env(), limit=60, needs=(name,),
                       skip=skip or ("" if places.sanitizer() else "no compute-sanitizer here"))
    program = m.program("gpu/waits")
    yield Step(KERNELS, "calls beside a kernel", [program], env=m.env(), limit=40,
               skip=m.no_gpu or ("" if program else NOT_BUILT.format("nvcc")))


def coll(m, library, ranks, net, *more):
    """gpu_coll's command."""
    return [m.build / "test/gpu/gpu_coll", "--library", library, "--ranks", ranks, "--limit", 25,
            *(["--hosts"] if net else []), *more]


def rail_coll(m, *runs):
    """A step's body: rail-coll with each of the options; every element must be right. Figures: the largest size's
    bus bandwidth in place, in GB/s."""
    def body(runner, step):
        figures, env = {}, {}
        if m.no_gpu:
            image = runner.out / "fakegpu.image"
            image.write_text("fakegpu image\n")
            env = {"RAIL_CUDA_LIB": m.program("libfakegpu.so"), "RAIL_CUDA_KERNELS": image}
        for words in runs:
            status, text = runner.run(step, [m.build / "bin/rail-coll", *words], env)
            rows = re.findall(r"^ +(\d+) .* (\S+) +(\S+) *$", text, re.M)
            if status != 0 or "Out of bounds values : 0 OK" not in text or not rows:
                raise Failed(f"rail-coll {' '.join(map(str, words))}: status {status}: {telling(text)}")
            size, bandwidth, _ = rows[-1]
            if not m.no_gpu and bandwidth != "N/A":
                figures[f"{' '.join(map(str, words[:3]))}, {size} B"] = float(bandwidth)
        return Verdict(f"{len(runs)} runs", figures)
    return body


def rail_coll_steps(m, where, env, no_fake):
    sizes = ("-b", 8, "-e", "16K", "-f", 32, "-n", 2, "-w", 1) if m.no_gpu else ("-b", 8, "-e", "64M", "-f", 128)
    net = ("--net-only", "--plugin", m.plugin())
    memory, mixed = ("--memory", "device", *sizes), ("--memory", "host,device", *sizes)
    together = [("all_reduce", "-g", n, *memory) for n in (1, 2, 4)]
    apart = [("all_reduce", "-r", n, *memory) for n in (2, 4)]
    others = [("sendrecv", "-r", 2, *memory), ("all_reduce", "-r", 2, "-G", 5, *memory)]
    for name, runs, more, shared in (
            ("one process", [*together, ("alltoall", "-g", 4, *memory), ("all_gather", "-t", 2, *memory)], {}, False),
            ("processes", [*apart, *others], {}, True),
            ("processes, no P2P", apart, {"NCCL_P2P_DISABLE": "1"}, True),
            ("processes over the socket plugin", [(*words, *net) for words in apart], {}, True),
            ("ranks with host and device buffers",
             [("all_reduce", "-g", 3, *mixed), ("all_reduce", "-r", 4, *mixed), ("alltoall", "-r", 2, *mixed),
              ("all_reduce", "-r", 2, *mixed, *net)], {}, True)):
        yield Step(RUNTIME, f"rail-coll, {name}{where}", body=rail_coll(m, *runs), limit=45, env={**env, **more},
                   skip=(shared and m.not_shared) or no_fake or "")


def runtime(m):
    # In emulation a thread stands for each thread of a block: small sizes.
    where, env, sizes = "", m.env_ranks(), ["--maxbytes", 1 << 20, "--factor", 16, "--iters", 5, "--most-ms", 50]
    if m.no_gpu:
        where, env, sizes = ", emulated", {k: v for k, v in m.env().items() if k != "TEST_REAL_GPU"}, [
            "--maxbytes", 1 << 15, "--factor", 64, "--iters", 2, "--most-ms", 50]
    no_fake = m.no_gpu and not m.program("libfakegpu.so") and NOT_BUILT.format("C++17 compiler")
    for name, more in (("calls", {}), ("streams", {}), ("wait", {}), ("p2p", {}), ("mixed", {}),
                       ("calls", {"NCCL_P2P_DISABLE": "1"})):
        program = m.program(f"e2e/test_device_{name}")
        emulated = m.no_gpu if more else ""  # once is enough, and make test has the rest
        cases = ["shared_memory", "ll", "tree", "both", "threads"] if more else []
        yield Step(RUNTIME, f"{name}{'' if not more else ', no P2P'}{where}", [program, *cases], env={**env, **more},
                   limit=100, skip=m.not_shared or emulated or no_fake or
                   ("" if program else NOT_BUILT.format("C++17 compiler")))
    for net in (False, True):
        for ranks in (1, 2, 4):
            if net and ranks == 1:
                continue
            over = "the socket plugin" if net else "its own choice"
            command = coll(m, m.railyard, ranks, net, *sizes)
            yield Step(RUNTIME, f"{ranks} processes over {over}{where}", command, limit=45,
                       env={**env, "NCCL_NET_PLUGIN": m.plugin()}, skip=m.not_shared or no_fake or "")
    yield from rail_coll_steps(m, where, env, no_fake)
