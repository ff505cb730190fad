#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The contract programs can fail: each planted defect of test/preload/brokenplug.c is noticed, and none is seen
where there is none.

TEST-LIMIT: 240
TEST-SAN: none
"""
import concurrent.futures
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("RAIL_BUILD", ROOT / "build")).resolve()
REAL = os.environ.get("RAIL_TEST_PLUGIN", str(BUILD / "lib/libnccl-net-socket.so"))
LIMIT = 100

# defect → the cases that must fail; at least one case each, in every one of them.
DEFECTS = {
    "connect_dirty": ["connect dead_port", "connect a_handle_of_junk"],
    "no_request": ["requests request_and_done_are_always_written"],
    "full_is_error": ["order full_table_is_not_an_error", "requests request_and_done_are_always_written"],
    "no_done": ["requests done_is_written_while_a_request_is_not"],
    "test_in_order": ["order only_the_newest_is_tested"],
    "early_done": ["requests a_finished_send_needs_its_buffer_no_more"],
    "size_truncated": ["sizes against_guard_pages"],
    "send_size_zero": ["requests a_send_reports_its_size"],
    "corrupt_byte": ["flood on_one_thread from_another_process", "sizes sizes_at_random"],
    "one_byte_more": ["sizes receive_larger_than_send"],
    "group_swapped": ["grouped every_count_every_rotation same_tags_in_many_groups three_hundred_random_groups"],
    "group_shifted": ["grouped every_count_every_rotation the_group_shrinks"],
    "messages_swapped": ["order oldest_first"],
    "optional_followed": ["optional the_hint_is_not_a_pointer"],
    "oversize_silent": ["sizes send_larger_than_receive"],
    "oversize_remote": ["sizes send_larger_than_receive"],
    "bytewise_copy": ["tear ll", "tear ll128"],
    "arrays_kept": ["sizes unaligned"],
}

PROGRAMS = sorted(p.stem for p in (ROOT / "test/contract").glob("test_*.c"))
ALONE = {"test_sizes_huge",  # it measures the machine; the runner runs it by itself
         "test_zerocopy"}  # stands before the C library's calls, which a plugin inside another one does not see


def run(defect, program, cases):
    env = dict(os.environ, RAIL_TEST_PLUGIN=str(BUILD / "test/libbrokenplug.so"), RAIL_BROKEN_REAL=REAL,
               RAIL_BROKEN=defect)
    if defect != "none":
        env |= {"RAIL_TEST_PATIENCE_MS": "2000"}
    try:
        done = subprocess.run([str(BUILD / "test/contract" / program), *cases], env=env, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                              timeout=LIMIT)
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired as e:
        return "no end", str(e.stdout)


def noticed(defect, text):
    """None when every case failed, else why not."""
    program, *cases = text.split()
    for case in cases:
        status, output = run(defect, "test_" + program, [case])
        if status == 0:
            return f"{program} {case} passes:\n{output}"
        if status == "no end":
            return f"{program} {case} hangs on it:\n{output}"
        if isinstance(status, int) and status > 1:
            return f"{program} {case} could not run, status {status}:\n{output}"
        if status == 1 and f"not ok 1 - {case}" not in output:
            return f"{program} did not run {case}:\n{output}"
        if "brokenplug:" in output:
            return output
    return None


def passes(program):
    status, output = run("none", program, [])
    return None if status == 0 else f"with no defect {program} ends with {status}:\n{output}"


def declared():
    """The defects brokenplug knows, so that none is left untried."""
    text = (ROOT / "test/preload/brokenplug.c").read_text()
    table = text[text.index("#define DEFECTS(X)"):text.index("enum defect")]
    return {word.split(")")[0] for word in table.split("X(")[1:]} - {"", "none"}


def main():
    jobs = [(f"{d} is noticed by {t}", noticed, (d, t)) for d, texts in DEFECTS.items() for t in texts]
    jobs += [(f"{p} passes without a defect", passes, (p,)) for p in PROGRAMS if p not in ALONE]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda job: job[1](*job[2]), jobs))
    names = [job[0] for job in jobs] + ["every planted defect is tried"]
    untried = declared() ^ set(DEFECTS)
    results.append(f"not in both lists: {', '.join(sorted(untried))}" if untried else None)
    for number, (name, why) in enumerate(zip(names, results), 1):
        if why:
            failed += 1
            print("".join(f"# {line}\n" for line in why.splitlines()), end="")
        print(f"{'not ok' if why else 'ok'} {number} - {name}")
    print(f"1..{len(results)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
