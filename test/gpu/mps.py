# SPDX-License-Identifier: Apache-2.0
"""A CUDA MPS daemon of our own, as long as the suite runs. Without one, processes take turns on the GPU, a few
milliseconds each, and their times say little about anything else. Nothing of the GPU's settings is changed."""
import os
import shutil
import subprocess
import tempfile

import places

LIMIT = 20  # seconds for each word with the daemon


class Daemon:
    """`pipes`: the folder for CUDA_MPS_PIPE_DIRECTORY, "" if there is no daemon; then `why` says why."""

    def __init__(self):
        self.pipes, self.why, self.folder = "", "", ""
        self.program = places.tool("nvidia-cuda-mps-control")
        if not self.program:
            self.why = "there is no nvidia-cuda-mps-control"
            return
        self.folder = tempfile.mkdtemp(prefix="rail-mps.")  # a short path: sockets lie in it
        self.env = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": self.folder, "CUDA_MPS_LOG_DIRECTORY": self.folder}
        self.why = self.say([self.program, "-d"]) or self.say([self.program], "get_server_list\n")
        if self.why:
            self.close()
        else:
            self.pipes = self.folder

    def say(self, command, words=""):
        """"" or what went wrong. To files: the daemon would hold pipes open."""
        with tempfile.TemporaryFile("w+") as out:
            try:
                done = subprocess.run(command, input=words, text=True, stdout=out, stderr=out, env=self.env,
                                      timeout=LIMIT)
            except (OSError, subprocess.TimeoutExpired) as e:
                return str(e)
            out.seek(0)
            return f"{' '.join(command)}: {out.read().strip()[:300]}" if done.returncode else ""

    def close(self):
        if self.folder:
            self.say([self.program], "quit\n")
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder = self.pipes = ""
