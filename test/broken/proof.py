#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every planted defect of the reference plugin is caught by the check that names it; the reference passes all.

As a module: the table and how to try a row. As a program: writes the table with what the kit says, see --help.
"""
import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("RAIL_BUILD", ROOT / "build")).resolve()
CAUGHT = ("fail", "crash", "hang")
REFERENCE = "ref"
LONG = "*gigabyte*,flood.from_another_process"

# Defect → the checks that must catch it, all of them. NAME@N: through the vtable of version N.
CAUGHT_BY = {
    # lifecycle
    "init_once": "lifecycle.contexts_are_independent",
    "init_leaves_ctx": "lifecycle.context_is_written",
    "finalize_null": "lifecycle.finalize_of_null",
    "finalize_leaks": "lifecycle.finalize_reclaims_half_open",
    "context_shared": "lifecycle.contexts_are_independent",
    "thread_outlives": "lifecycle.no_thread_outlives_the_library",
    "exit_hangs": "lifecycle.exit_with_all_open",
    # properties
    "name_moves": "properties.strings_stay_where_they_are",
    "name_twice": "properties.devices_are_told_apart",
    "props_hole": "properties.every_field_is_written",
    "props_devices": "properties.values_are_in_range",
    "p2p_bytes_zero": "properties.values_are_in_range",
    "p2p_bytes_huge": "properties.values_are_in_range",
    "speed_unknown": "properties.values_make_sense",
    "pci_path_name": "properties.pci_path_is_in_sysfs",
    "device_type": "properties.values_are_in_range",
    "guid_random": "properties.processes_agree",
    "devices_grow": "lifecycle.devices_stay",
    "fuse_no_pci": "properties.fused_without_pci properties.fused_without_pci@9",
    "fuse_one_refused": "properties.a_device_made_of_one@10",
    "v8_props_shifted": "properties.values_are_in_range@8",
    # listen, accept
    "handle_hole": "listen.handle_is_written_whole",
    "handle_overrun": "listen.handle_is_not_overrun",
    "listen_close_error": "listen.closed_without_accept",
    "listens_few": "listen.a_thousand_listens",
    "one_guest": "connect.several_to_one_listener",
    "accept_impatient": "connect.accept_long_before_connect",
    "accept_once_eintr": "connect.interrupted",
    "foreign_blocks": "listen.silence_does_not_delay",
    "foreign_hangs": "listen.silence_does_not_delay",
    "foreign_accepted": "listen.garbage",
    "foreign_crashes": "listen.garbage",
    "foreign_leaks": "listen.closed_with_foreign_clients listen.foreign_clients_leave_nothing",
    "files_run_out": "listen.silence_does_not_use_up_all_files",
    # connect
    "connect_sleeps": "connect.no_call_waits",
    "connect_dirty": "connect.dead_port connect.a_handle_of_junk",
    "connect_waits_for_accept": "connect.no_call_waits",
    "handle_address": "connect.handle_may_move",
    "handle_trusted": "connect.a_handle_of_junk",
    "in_progress_escapes": "connect.connect_long_before_accept",
    "dead_port_for_ever": "connect.dead_port_is_noticed",
    "dev_handle_junk": "connect.device_handle_is_left_alone",
    "streams_crossed": "connect.several_to_one_listener_at_once",
    # requests
    "no_request": "requests.request_and_done_are_always_written requests.request_and_done_are_always_written@8",
    "no_done": "requests.done_is_written_while_a_request_is_not requests.done_is_written_while_a_request_is_not@8",
    "full_is_error": "requests.full_table_is_not_an_error",
    "table_of_8": "requests.all_requests_outstanding",
    "request_reused": "requests.full_table_is_not_an_error",
    "test_in_order": "order.only_the_newest_is_tested",
    "early_done": "requests.a_finished_send_needs_its_buffer_no_more",
    "send_size_zero": "requests.a_send_reports_its_size",
    "sizes_null": "requests.sizes_may_be_null",
    "sizes_overrun": "requests.a_receive_writes_its_size",
    "consumed_frees": "optional.irecv_consumed_of_a_finished_request",
    "test_blocks": "requests.done_is_written_while_a_request_is_not",
    "test_sleeps": "cost.no_call_is_long",
    "arrays_kept": "sizes.arrays_are_the_callers",
    # sizes
    "size_truncated": "sizes.against_guard_pages",
    "size_int": "sizes.two_gigabytes_and_five",
    "size_unreported": "requests.a_receive_writes_its_size",
    "zero_never_done": "sizes.against_guard_pages",
    "short_write": "sizes.sixteen_megabytes_and_three",
    "corrupt_byte": "flood.on_one_thread",
    "one_byte_more": "sizes.receive_larger_than_send",
    "oversize_silent": "sizes.send_larger_than_receive",
    "oversize_remote": "sizes.send_larger_than_receive",
    "oversize_overrun": "sizes.send_larger_than_receive",
    "v6_sizes_widened": "grouped.every_count_every_rotation@8",
    "v6_swapped": "sizes.against_guard_pages@6",
    # order, groups
    "messages_swapped": "order.oldest_first",
    "heads_interleave": "order.newest_first",
    "tag_ignored": "grouped.every_count_every_rotation",
    "group_swapped": "grouped.every_count_every_rotation",
    "group_shifted": "grouped.every_count_every_rotation",
    "sizes_by_arrival": "grouped.every_count_every_rotation",
    "group_done_early": "grouped.every_count_every_rotation",
    "group_n_kept": "grouped.the_group_shrinks",
    # optional receives, lines
    "optional_followed": "optional.the_hint_is_not_a_pointer",
    "optional_returned": "optional.the_hint_is_not_a_pointer",
    "flush_zero": "flush.of_a_group",
    "flush_spoils": "flush.after_a_receive",
    "flush_after_error": "flush.after_the_sender_has_gone",
    "optional_dropped": "optional.the_hint_is_not_a_pointer",
    "bytewise_copy": "tear.ll",
    "torn_line": "tear.ll128",
    # memory
    "dereg_null": "mr.dereg_of_null mr.dereg_of_null@11 mr.dereg_of_null@8",
    "dereg_lazy": "mr.nothing_is_read_after_dereg mr.nothing_is_written_after_dereg",
    "mr_race": "mr.while_traffic_runs",
    "mr_pages": "mr.odd_and_overlapping_ranges",
    "mr_cache": "mr.odd_and_overlapping_ranges",
    "cuda_accepted": "mr.device_memory_is_refused_if_not_supported",
    # close
    "close_null": "close.null close.null@11 close.null@8",
    "close_error": "close.never_used",
    "close_error_after_death": "close.a_closed_peer_is_noticed",
    "close_busy": "close.with_requests_outstanding",
    "close_slow": "close.soon",
    "close_waits": "close.never_used",
    "close_resets": "close.the_last_message_still_arrives",
    "close_hidden": "processes.a_forked_bystander_does_not_hide_a_close",
    "close_is_error": "close.the_receiver_closes_at_once",
    "close_is_loud": "close.the_receiver_closes_at_once",
    # death
    "death_unnoticed": "peer_death.killed_sender_between_messages",
    "death_other_error": "peer_death.killed_receiver_mid_transfer",
    "reset_is_success": "peer_death.reset_by_the_sender",
    "sigpipe": "close.a_closed_peer_is_noticed",
    "eintr_is_death": "threads.signals",
    "test_after_error": "close.calls_after_an_error",
    # threads, processes
    "global_lock": "connect.no_call_waits",
    "static_buffer": "processes.comms_on_different_threads",
    "attr_race": "attrs.attributes_from_two_threads",
    "profiler_null": "attrs.profiler_is_not_called_without_a_handle",
    "inheritable": "processes.programs_started_meanwhile",
    # cost
    "fd_leak": "leaks.a_thousand_connections",
    "memory_leak": "leaks.a_thousand_connections",
    "message_leak": "leaks.ten_thousand_messages",
    "thread_leak": "leaks.a_thousand_connections",
    "idle_spin": "leaks.idle_connections_cost_nothing",
}


@dataclasses.dataclass
class Defect:
    name: str
    what: str
    origin: str


def defects():
    """The rows of ref_defects.h."""
    text = (ROOT / "test/broken/ref_defects.h").read_text()
    return [Defect(*m) for m in re.findall(r'^ *X\((\w+), "([^"]*)", "([^"]*)"\)', text, re.M)]


def library(name):
    return BUILD / "test/broken" / f"libnccl-net-{name if name == REFERENCE else 'broken-' + name}.so"


def conform(name, *options, limit=None):
    """The results of one run of the kit, as its report has them; a text when there is no report."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        command = [str(BUILD / "bin/rail-kit"), "conform", str(library(name)), "--json", str(report), *options]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, errors="replace", timeout=limit)
        except subprocess.TimeoutExpired:
            return f"{' '.join(command)}: no end after {limit} s"
        if done.returncode > 1 or not report.exists():
            return f"{' '.join(command)}: status {done.returncode}\n{done.stdout}"
        return json.loads(report.read_text())["results"]


# What is only seen when two threads meet, which on a busy machine they may not do in one run.
BY_CHANCE = "tear.ll", "tear.ll128", "mr.while_traffic_runs", "attrs.attributes_from_two_threads"
TRIES = 10


def try_check(name, check):
    """What the kit says about one defect: a result of its report, or a text."""
    result = try_once(name, check)
    for _ in range(TRIES - 1 if check in BY_CHANCE else 0):
        if not missed(result):
            break
        result = try_once(name, check)
    return result


def try_once(name, check):
    check, _, abi = check.partition("@")
    results = conform(name, "--only", check, *(["--abi", abi] if abi else []), limit=120)
    if isinstance(results, str):
        return results
    found = [r for r in results if r["name"] == check]
    return found[0] if found else f"{check} was not run, but {', '.join(r['name'] for r in results) or 'nothing'}"


def try_all(names, jobs=4):
    """{(defect, check): result}, the slow ones side by side."""
    rows = [(n, c) for n in names for c in CAUGHT_BY.get(n, "").split()]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        return dict(zip(rows, pool.map(lambda row: try_check(*row), rows)))


def missed(result):
    """None when the check caught it, else why not."""
    if isinstance(result, str):
        return result
    return None if result["status"] in CAUGHT else f"{result['name']}: {result['status']} {result['seen']}".rstrip()


def run_reference(runs):
    """All checks once; those that do not take long for the sake of a figure or of gigabytes, so many times."""
    results = [conform(REFERENCE)]
    if runs > 1:
        results.append(conform(REFERENCE, "--repeat", str(runs - 1), "--level", "must,should", "--skip", LONG))
    for r in results:
        if isinstance(r, str):
            sys.exit(r)
    return [r for part in results for r in part]


# ---- the document ----

def cell(text):
    """As it fits into a table: one line, no addresses, times or places of this machine."""
    text = " ".join(text.split()).replace(str(BUILD), "build").replace(str(ROOT), "")
    text = re.sub(r"0x[0-9a-f]{6,}", "0x…", text)
    return (text[:157] + "…" if len(text) > 158 else text).replace("|", "\\|")


def table(results):
    yield "| defect | what the plugin does | where from | the check that names it | what the kit said |"
    yield "|---|---|---|---|---|"
    for d in defects():
        for (name, check), result in results.items():
            if name != d.name:
                continue
            said = result if isinstance(result, str) else f"{result['status']}: {result['seen']}"
            yield f"| `{d.name}` | {cell(d.what)} | {cell(d.origin)} | `{check}` | {cell(said)} |"


def document(results, reference, runs):
    bad = sum(1 for r in results.values() if missed(r))
    once = {r["name"]: r["level"] for r in reference}
    counts = {level: list(once.values()).count(level) for level in ("MUST", "SHOULD", "OBSERVED")}
    failed = [r for r in reference if r["bad"]]
    skipped = sorted({f"`{r['name']}` ({cell(r['seen'])})" for r in reference if r["status"] == "skip"})
    yield "# Does the kit see what it should?"
    yield ""
    yield "Written by `make kit-proof`. `test/broken/` holds one small plugin that keeps the whole contract and, by its"
    yield f"file's name, breaks it in one of {len(defects())} ways. The kit knows nothing of it."
    yield ""
    yield (f"- The reference: {runs} runs of all checks that a v12 plugin without fused devices has "
           f"({counts['MUST']} MUST, {counts['SHOULD']} SHOULD, {counts['OBSERVED']} OBSERVED; figures and messages of "
           f"gigabytes once), {len(failed) or 'no'} failures.")
    if skipped:
        yield f"  Skipped: {', '.join(skipped)}."
    for r in failed:
        yield f"  - `{r['name']}`: {r['status']}: {cell(r['seen'])}"
    yield f"- The defects: {len(defects())}, each tried with the check that names it: {bad or 'none'} not caught."
    yield ""
    yield from table(results)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", metavar="FILE", help="write the document; without it failures are printed")
    parser.add_argument("--only", metavar="NAMES", help="these defects, separated by commas, and no reference")
    parser.add_argument("--runs", type=int, default=20, help="of the reference (20)")
    args = parser.parse_args()
    names = args.only.split(",") if args.only else [d.name for d in defects()]
    results = try_all(names)
    for (name, check), result in results.items():
        why = missed(result)
        if why or not args.write:
            said = why or f"{result['status']}: {result['seen']}"
            print(f"{'MISSED' if why else 'caught'} {name} by {check}: {cell(said)}", flush=True)
    if args.only:
        return any(missed(r) for r in results.values())
    reference = run_reference(args.runs)
    for r in reference:
        if r["bad"]:
            print(f"the reference: {r['name']}: {r['status']}: {r['seen']} ({r['again']})")
    if args.write:
        (ROOT / args.write).write_text("\n".join(document(results, reference, args.runs)) + "\n")
    return any(missed(r) for r in results.values()) or any(r["bad"] for r in reference)


if __name__ == "__main__":
    sys.exit(main())
