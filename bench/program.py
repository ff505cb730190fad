# SPDX-License-Identifier: Apache-2.0
"""Programs that a benchmark runs: each in a session of its own, under a limit."""
import os
import resource
import shlex
import signal
import subprocess
import tempfile

RUN_LIMIT = 120  # seconds for one program; far more than any needs


class Failed(Exception):
    pass


class Program:
    """A running program; `finish` or `kill` must be called."""

    def __init__(self, argv, env):
        self.argv = argv
        self.out, self.err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        self.child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err, text=True,
                                      env={**os.environ, **env}, start_new_session=True)

    def kill(self):
        if self.child.returncode is None:
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()

    def finish(self, limit=RUN_LIMIT):
        """(exit status, standard output, standard error)"""
        try:
            status = self.child.wait(limit)
        except subprocess.TimeoutExpired:
            raise Failed(f"no end after {limit} s: {shlex.join(self.argv)}") from None
        finally:
            self.kill()
        self.out.seek(0)
        self.err.seek(0)
        return status, self.out.read(), self.err.read()


def execute(argv, env, limit=RUN_LIMIT):
    """Runs a program that must succeed; returns what it printed."""
    status, text, complaint = Program(argv, env).finish(limit)
    if status != 0:
        raise Failed(f"exit status {status}: {shlex.join(argv)}\n{complaint[-3000:]}{text[-1000:]}")
    return text


def children_cpu():
    """CPU seconds of the children that have been waited for, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
