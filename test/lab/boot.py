#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Boots the lab and runs a command inside: boot.py [options] -- COMMAND.

The guest is a Debian kernel in QEMU with this machine's own root below an
overlay, so the command finds what was just built where it was built. Its output
is streamed, its exit status is ours; what it writes to $RAIL_LAB_OUT is in the
directory --out afterwards. The network inside: test/lab/network.py.
"""
import argparse
import contextlib
import json
import os
import pathlib
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import kernel  # noqa: E402
import network  # noqa: E402
from kernel import Impossible  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
QEMU = "qemu-system-x86_64"
BOOT_LIMIT = 300  # 4 s on a quiet machine, two minutes on one with a load of 50
NOT_POSSIBLE, TIMED_OUT, BROKEN = 125, 124, 126  # exit statuses of our own
LAST_LINES = 20
REASON = re.compile(r"Kernel panic|\bBUG\b|Oops|Out of memory|blocked for more than")
PASSED_ON = ("NCCL_", "RAIL_", "ASAN_", "UBSAN_", "LSAN_", "TSAN_", "PYTHON")
NOT_PASSED_ON = ("RAIL_LAB_",)


def need_tools():
    """Looks for what config/setup.sh lab installs, and has it do so when we are root."""
    done = subprocess.run(["bash", str(ROOT / "config/setup.sh"), "lab", "rdma"], cwd=ROOT, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if done.returncode:
        raise Impossible("the lab " + " ".join(done.stderr.split()).removeprefix("setup: "))
    if os.uname().machine != "x86_64":
        raise Impossible(f"the lab's guest is x86_64 and shares this machine's programs, not {os.uname().machine}")


def job(args, top, hosts):
    """The guest's part of the work as a file that bash reads."""
    env = {k: v for k, v in os.environ.items() if k.startswith(PASSED_ON) and not k.startswith(NOT_PASSED_ON)}
    env |= {"PATH": os.environ.get("PATH", os.defpath), "HOME": "/root", "TERM": os.environ.get("TERM", "dumb"),
            "PYTHONDONTWRITEBYTECODE": "1", "RAIL_LAB_TOP": str(top), "RAIL_LAB_JOB": args.command,
            "RAIL_LAB_SHELL": "1" if args.shell else "", "RAIL_LAB_HOSTS": " ".join(h["name"] for h in hosts)}
    env |= {f"RAIL_LAB_HCA_{h['name']}": "=" + ",".join(n["rdma"] for n in h["nics"]) for h in hosts}
    if lang := os.environ.get("LANG"):
        env["LANG"] = lang
    return "".join(f"export {k}={shlex.quote(v)}\n" for k, v in sorted(env.items()) if k.isidentifier())


def acceleration():
    accel = os.environ.get("RAIL_LAB_ACCEL", "tcg")
    if accel == "tcg":
        return ["-accel", "tcg,thread=multi", "-cpu", "max,-la57"]
    if accel == "kvm":
        return ["-accel", "kvm", "-cpu", "host"]
    raise Impossible(f"RAIL_LAB_ACCEL={accel}: tcg or kvm")


def kept(top, more):
    """For the kernel's command line, where a path has no blanks and no colons: what stays visible below a new /tmp."""
    below = [p.resolve() for p in more if p.resolve().is_relative_to("/tmp") and not p.resolve().is_relative_to(top)]
    if bad := [p for p in [top, *below] if set(str(p)) & set(" \t:\"")]:
        raise Impossible(f"the lab cannot work in {bad[0]}: a blank, colon or quote in the path")
    return ":".join(map(str, [top, *below]))


def share(tag, path, more=""):
    return ["-virtfs", f"local,path={str(path).replace(',', ',,')},mount_tag={tag},security_model=none{more}"]


def qemu(args, top, run, fds):
    image, initramfs, version = kernel.prepare()
    words = ["console=ttyS0", "quiet", "panic=-1", "mitigations=off", "nokaslr", "tsc=reliable",
             "no_timer_check",  # else the kernel gives up where the guest stands still while it starts
             f"rail.top={kept(top, args.keep)}"]
    argv = [QEMU, *acceleration(), "-machine", "q35", "-smp", "2", "-m", str(args.memory), "-no-reboot", "-nic", "none",
            "-vga", "none", "-display", "none", "-monitor", "none", "-serial", f"file:{run}/console",
            "-kernel", str(image), "-initrd", str(initramfs), "-append", " ".join(words),
            *share("host", "/", ",readonly=on,multidevs=remap"), *share("ctl", run), *share("out", args.out),
            "-device", "virtio-serial-pci"]
    if args.shell:
        return version, argv + ["-chardev", "stdio,id=tty,signal=off", "-device", "virtconsole,chardev=tty"]
    for number, (name, fd) in enumerate(fds.items(), 1):
        argv += ["-add-fd", f"fd={fd},set={number}", "-chardev", f"file,id={name},append=on,path=/dev/fdset/{number}",
                 "-device", f"virtserialport,chardev={name},name=lab.{name}"]
    return version, argv


class Guest:
    """One boot: a QEMU process, the pipes its ports write to, and a directory shared with it."""

    def __init__(self, args, top, run):
        self.args, self.run, self.start, self.up = args, run, time.monotonic(), None
        hosts = network.topology(args.hosts, args.nics)
        (run / "topology.json").write_text(json.dumps(hosts, indent=1))
        (run / "network.sh").write_text(network.script(hosts, args.mtu))
        (run / "job.sh").write_text(job(args, top, hosts))
        self.pipes, ends = {}, {}
        if not args.shell:
            for name, target in (("stdout", sys.stdout.buffer), ("stderr", sys.stderr.buffer)):
                ours, ends[name] = os.pipe()
                self.pipes[ours] = target
        self.version, argv = qemu(args, top, run, ends)
        with open(run / "qemu.log", "wb") as log:
            # It must not outlive us, however we end.
            self.child = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *argv], pass_fds=ends.values(), stderr=log,
                                          stdin=None if args.shell else subprocess.DEVNULL,
                                          stdout=None if args.shell else log)
        for fd in ends.values():
            os.close(fd)

    def look(self):
        """Notices that the guest is up."""
        if self.up is None and (self.run / "ready").exists():
            self.up = time.monotonic() - self.start
            a = self.args
            print(f"lab: up in {self.up:.1f} s: Linux {self.version}, {a.hosts} hosts, {a.nics} NICs each, MTU {a.mtu}",
                  file=sys.stderr, flush=True)

    def pump(self):
        """Passes output on until QEMU ends. Returns why it had to be killed, or None."""
        with selectors.DefaultSelector() as ready:
            for fd in self.pipes:
                ready.register(fd, selectors.EVENT_READ)
            while ready.get_map() or self.child.poll() is None:
                for key, _ in ready.select(0.05):
                    data = os.read(key.fd, 65536)
                    self.look()  # so that its line comes before the first output
                    if not data:
                        ready.unregister(key.fd)
                        continue
                    self.pipes[key.fd].write(data)
                    self.pipes[key.fd].flush()
                self.look()
                if why := self.late():
                    return why
        return None

    def late(self):
        now = time.monotonic() - self.start
        if self.up is None and now > BOOT_LIMIT:
            return f"the guest was not up after {BOOT_LIMIT} s"
        if self.up is not None and self.args.limit and now > self.up + self.args.limit:
            return f"no end after {self.args.limit:.0f} s, killed"
        return None

    def kill(self):
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()

    def verdict(self, why):
        """(exit status, what to say)."""
        if why:
            return TIMED_OUT if self.up is not None else BROKEN, why
        if (trouble := self.run / "trouble").exists():
            return BROKEN, trouble.read_text().strip()
        try:
            return int((self.run / "status").read_text()), None
        except (OSError, ValueError):
            return BROKEN, "the guest ended without a result" if self.up is not None else "the guest did not come up"

    def last_words(self):
        """What QEMU and the kernel said last, and the lines above that name a reason."""
        lines = []
        for name in ("qemu.log", "console"):
            with contextlib.suppress(OSError):
                said = (self.run / name).read_text(errors="replace").replace("\r", "").splitlines()
                lines += [line for line in said[:-LAST_LINES] if REASON.search(line)][:LAST_LINES] + said[-LAST_LINES:]
        return "".join(f"  | {line}\n" for line in lines if line.strip())


def run(args):
    top = ROOT
    args.out = pathlib.Path(args.out).resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rail-lab-") as scratch:
        guest = Guest(args, top, pathlib.Path(scratch))
        try:
            why = guest.pump()
        finally:
            guest.kill()
        status, trouble = guest.verdict(why)
        if trouble:
            print(f"lab: {trouble}; the guest's console said last:\n{guest.last_words()}", end="", file=sys.stderr)
        if args.console:
            shutil.copy(guest.run / "console", args.console)
        return status


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0],
                                epilog=f"Exit status: the command's; {TIMED_OUT} time limit, {NOT_POSSIBLE} no lab is "
                                f"possible here, {BROKEN} the guest broke.")
    p.add_argument("--out", default=ROOT / "build/lab/out", help="directory that is $RAIL_LAB_OUT inside (%(default)s)")
    p.add_argument("--hosts", type=int, default=4, help="2 to 8 (%(default)s)")
    p.add_argument("--nics", type=int, default=3, help="per host, 1 to 4 (%(default)s)")
    p.add_argument("--mtu", type=int, default=1500, help="of the rails; 9000 gives RDMA its 4096 (%(default)s)")
    p.add_argument("--limit", type=float, default=600, help="seconds for the command, 0 for no limit (%(default)s)")
    p.add_argument("--memory", type=int, default=3072, help="MiB (%(default)s)")
    p.add_argument("--keep", action="append", type=pathlib.Path, default=[], metavar="DIR",
                   help="beside the repository: a directory below /tmp that the guest shall see")
    p.add_argument("--console", help="keep the kernel's console in this file")
    p.add_argument("--shell", action="store_true", help="a shell instead of a command")
    p.add_argument("--check", action="store_true", help="prepare everything, boot nothing")
    p.add_argument("command", nargs="*", help="run by bash in the repository's directory")
    args = p.parse_args()
    for name, low, high in (("hosts", 2, 8), ("nics", 1, 4), ("mtu", 1280, 9000), ("memory", 512, 65536)):
        if not low <= getattr(args, name) <= high:
            p.error(f"--{name} {getattr(args, name)}: {low} to {high}")
    if not args.command and not args.shell and not args.check:
        p.error("no command")
    args.command = " ".join(args.command)
    if args.shell:
        args.limit = 0
    return args


def main():
    args = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        need_tools()
        if args.check:
            print(f"lab: ready to boot Linux {kernel.prepare()[2]}")
            return 0
        return run(args)
    except Impossible as problem:
        print(f"lab: {problem}", file=sys.stderr)
        return NOT_POSSIBLE
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
