"""Tries what a hardened unit prevents, and prints the outcomes: `python -m tests.support.forbidden [FILE...]`.

No attempt needs a privilege: an unprivileged process without hardening succeeds in each. The files are read.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

ADDR_NO_RANDOMIZE = 0x0040000
CLONE_NEWUSER = 0x10000000

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    tried: dict[str, Callable[[], object]] = {
        "executable memory": lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_WRITE | mmap.PROT_EXEC),
        "niceness": lambda: os.nice(1),
        "personality": lambda: _call("personality", ADDR_NO_RANDOMIZE),
        "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0),
        "set-user-id": _set_user_id,
        "process 1": lambda: Path("/proc/1/status").read_text(),
        "the machine's memory": lambda: Path("/proc/meminfo").read_text(),
        "write to /srv": lambda: Path("/srv/open/file").write_text(""),
        **{each: Path(each).read_text for each in sys.argv[1:]},
        "user namespace": lambda: _call("unshare", CLONE_NEWUSER),  # the last, since root can do less afterwards
    }
    print(json.dumps({name: _outcome(attempt) for name, attempt in tried.items()}))


def _outcome(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "done"


def _call(name: str, argument: int) -> None:
    if getattr(_libc, name)(argument) == -1:
        raise OSError(ctypes.get_errno(), name)


def _set_user_id() -> None:
    file = Path("set-user-id")
    file.write_text("")
    file.chmod(0o4700)


if __name__ == "__main__":
    main()
