#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NCCL_CONF_FILE and NCCL_DEBUG_FILE in the runtime, as NCCL has them; variables that have no effect are named."""
import os
import pathlib
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True
from coll import coll, expect, main

SMALL = ("all_reduce", "-r", 2, "-b", 8, "-e", 8, "-n", 1)


def in_folder(case):
    def wrapped():
        folder = pathlib.Path(tempfile.mkdtemp())
        try:
            case(folder)
        finally:
            shutil.rmtree(folder)
    return wrapped


@in_folder
def a_file_of_variables(folder):
    conf, log = folder / "conf", folder / "log.%p"
    conf.write_text(f"# a comment\n\n  NCCL_DEBUG=INFO\r\nNCCL_DEBUG_FILE={log}\nno equals sign\nNCCL_PROTO = LL\n=x\n"
                    "NCCL_ALGO=Nothing\nNCCL_MIN_NCHANNELS=4\nRAIL_CHUNK=4K")
    done = coll(*SMALL, NCCL_CONF_FILE=conf, NCCL_ALGO="Ring")  # Nothing would be refused
    expect(done, 0)
    lines = "".join(file.read_text() for file in folder.glob("log.*"))
    assert len(list(folder.glob("log.*"))) >= 2 and " INFO " in lines, lines
    assert "without effect in Railyard: NCCL_MIN_NCHANNELS" in lines, lines
    assert " INFO " not in done.stderr, done.stderr
    for number, text in ((5, "no equals sign"), (6, "NCCL_PROTO = LL"), (7, "=x")):  # before the log file is known
        assert f"{conf}:{number}: '{text}' is not NAME=value" in done.stderr, done.stderr
    assert done.stderr.count("is not NAME=value") % 3 == 0, done.stderr
    expect(coll(*SMALL, NCCL_CONF_FILE=conf), 3, "NCCL_ALGO")


@in_folder
def files_that_are_not_there(folder):
    done = coll(*SMALL, NCCL_CONF_FILE=folder / "none")
    expect(done, 0, f"NCCL_CONF_FILE={folder}/none: No such file")
    done = coll(*SMALL, NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=folder / "none/log")
    expect(done, 0, f"NCCL_DEBUG_FILE={folder}/none/log")
    assert " INFO " in done.stderr, done.stderr
    assert not os.listdir(folder)


main([("a file of variables", a_file_of_variables), ("files that are not there", files_that_are_not_there)])
