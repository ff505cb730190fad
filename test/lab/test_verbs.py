#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-LIMIT: 300
"""The suite of test/verbs on RDMA devices: what the emulated device does is what others do, but for the deviations that
the cases name."""
import os
import subprocess
import sys

sys.dont_write_bytecode = True
from lab import BUILD, hosts, report

PROGRAMS = ("test_verbs_objects", "test_verbs_data", "test_verbs_errors")
# The programs are linked with the emulated library: the system's comes first here.
SYSTEM = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")


def cases():
    devices = ",".join((host.nics[0].rdma for host in hosts[:2]))
    env = os.environ | {"LD_LIBRARY_PATH": ":".join(SYSTEM), "RAIL_TEST_VERBS_DEVICES": devices}
    for name in PROGRAMS:
        done = subprocess.run([BUILD / "test/verbs" / name], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, errors="replace", timeout=250)
        seen, ended = [], False
        for line in done.stdout.splitlines():
            ended |= line.startswith("1..")
            if line.startswith(("ok ", "not ok ")):
                case = f"{name}: {line.split(' - ', 1)[1]}"
                yield case, "" if line.startswith("ok ") else "\n".join(seen)
                seen = []
            else:
                seen.append(line)
        if not ended or done.returncode not in (0, 1):
            yield f"{name} ends", f"exit status {done.returncode}\n{done.stdout}"


if __name__ == "__main__":
    sys.exit(report(cases()))
