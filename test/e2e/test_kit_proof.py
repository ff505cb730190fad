#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The kit sees what it should: each defect of test/broken/ is caught by the check that names it, and the reference
plugin, which has none, passes every check.

TEST-LIMIT: 600
TEST-SAN: none
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "broken"))
import proof  # noqa: E402
from coll import report  # noqa: E402


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


if __name__ == "__main__":
    sys.exit(report(cases()))
