#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The kit sees what it should: each defect of test/broken/ is caught by the check that names it, and the reference
plugin, which has none, passes every check.

TEST-LIMIT: 600
TEST-ALONE
TEST-SAN: none
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "broken"))
import proof  # noqa: E402


def cases():
    results = proof.try_all(list(proof.CAUGHT_BY))
    for (name, check), result in results.items():
        yield f"{name} is caught by {check}", proof.missed(result)
    untried = {d.name for d in proof.defects()} ^ set(proof.CAUGHT_BY)
    yield "every planted defect is tried", untried and f"not in both lists: {', '.join(sorted(untried))}"
    reference = proof.conform(proof.REFERENCE, limit=300)
    bad = [reference] if isinstance(reference, str) else [
        f"{r['name']}: {r['status']}: {r['seen']}\n{r['again']}" for r in reference if r["bad"]]
    yield "the reference passes all checks", "\n".join(bad)


def main():
    failed = number = 0
    for number, (name, why) in enumerate(cases(), 1):
        if why:
            failed += 1
            print("".join(f"# {line}\n" for line in why.splitlines()), end="")
        print(f"{'not ok' if why else 'ok'} {number} - {name}", flush=True)
    print(f"1..{number}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
