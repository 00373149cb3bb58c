"""Launcher: executes a program that the kernel kills when its parent dies.

Usage: `python -I -S die_with_parent.py <parent pid> <program> <argument>...`. It is a script and not a hook between
fork and exec, as Python code there may deadlock if the parent has threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, program = int(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:  # it died before prctl
        sys.exit("the parent has died")
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
