#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-LIMIT: 600
"""How the lab's guest starts and ends: status, output and files come back, and a bad end is said. Its devices are
lab/test_lab.py's."""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
from coll import ROOT, Skip, expect, main

BOOT = str(ROOT / "test/lab/boot.py")
SMALL = ["--hosts", "2", "--nics", "1"]
UP = "lab: up in "


def boot(*args, **changes):
    done = subprocess.run([sys.executable, BOOT, *SMALL, *args], text=True, capture_output=True, cwd=ROOT, timeout=250,
                          env=os.environ | changes)
    need(done)
    return done


def need(done):
    if done.returncode == 125 and "RAIL_LAB_ACCEL" not in done.stderr:
        assert os.environ.get("CI") != "true", done.stderr
        raise Skip(done.stderr.strip().removeprefix("lab: "))


def case_result():
    """One boot for all of it: what comes back, however much, and while a process of the command's still runs."""
    with tempfile.TemporaryDirectory() as out:
        command = """echo "it's" here; echo there >&2; pwd; head -c 1000000 /dev/zero | tr '\\0' x >"$RAIL_LAB_OUT/file"
            touch test/lab/new /tmp/new; echo $NCCL_DEBUG; seq 200000; ls -d / >/dev/stderr; sleep 100 & exit 7"""
        done = boot("--out", out, command, NCCL_DEBUG="WARN")
        expect(done, 7, "there\n/\n", UP)
        said = done.stdout.splitlines()
        assert said[:3] == ["it's here", str(ROOT), "WARN"], said[:10]
        assert said[3:] == [str(i) for i in range(1, 200001)], f"{len(done.stdout)} bytes"
        assert (pathlib.Path(out) / "file").read_text() == "x" * 1000000
        assert not (ROOT / "test/lab/new").exists(), "the guest wrote into the host's root"
    print("# " + done.stderr.split("\n")[0] if UP in done.stderr else "# ?")


def case_time_limit():
    done = boot("--limit", "8", "echo started; sleep 100")  # an emulated guest beside other work is slow
    expect(done, 124, "no end after 8 s")
    assert done.stdout == "started\n", done.stdout


def case_panic():
    expect(boot("echo c >/proc/sysrq-trigger; sleep 100"), 126, "ended without a result", "Kernel panic")


def case_killed():
    """SIGKILL leaves no guest behind."""
    with subprocess.Popen([sys.executable, BOOT, *SMALL, "sleep 100"], text=True, stderr=subprocess.PIPE) as child:
        try:
            assert child.stderr.readline().startswith(UP)
            (qemu,) = [int(p) for p in pathlib.Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()]
            child.send_signal(signal.SIGKILL)
            deadline = time.monotonic() + 5
            while pathlib.Path(f"/proc/{qemu}/stat").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            assert not pathlib.Path(f"/proc/{qemu}/stat").exists(), "the guest lives on"
        finally:
            child.kill()


def case_bad_words():
    expect(boot("true", RAIL_LAB_ACCEL="warp"), 125, "RAIL_LAB_ACCEL=warp: tcg or kvm")
    expect(boot("--hosts", "9", "true"), 2, "--hosts 9: 2 to 8")


if __name__ == "__main__":
    main([(name.removeprefix("case_"), case) for name, case in list(globals().items()) if name.startswith("case_")])
