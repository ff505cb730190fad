# SPDX-License-Identifier: Apache-2.0
"""Files of the machine that a program finds empty: TEST-HIDE in a test's source, `hide` in a plugin's conform.ini.

/proc/kallsyms is one. Each process that opens libfabric reads it, for its verbs provider looks there for the kernel's
peer memory, and that takes longer than most of what such a process is started for.
"""
import functools
import subprocess


@functools.cache
def hiding(*files):
    """What a command begins with so that these are empty for it, in a mount namespace of its own; nothing where that
    cannot be done: it takes root's rights."""
    if not files:
        return []
    mounts = "".join(f"mount --bind /dev/null {file} && " for file in files)
    prefix = ["unshare", "--mount", "sh", "-c", f'{mounts}exec "$@"', "sh"]
    try:
        works = subprocess.run([*prefix, "true"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        works = False
    return prefix if works else []
