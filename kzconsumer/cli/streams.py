"""The command's standard streams: a result that cannot be written is an error with an exit status of its own.

Standard output may be a full disk, closed (`>&-`), or a terminal that is not of UTF-8. Standard error that cannot be
written loses its lines, and nothing else: a daemon's log may be on a full disk.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from typing import Any

from kzconsumer.errors import OutputError

EXIT_OUTPUT = 74  # EX_IOERR of sysexits.h
_ESCAPED = "kzconsumer-escaped"


class _Output(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(f"standard output: {error.strerror}") from None


class _Errors(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def install() -> None:
    """Replace the streams of the process, unless a test or a caller has put others in their place."""
    if sys.stdin is None:
        _occupy(0, os.O_RDONLY)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  (for the whole process)
    if sys.stdout is sys.__stdout__:
        if sys.stdout is None:
            # A socket must not become descriptor 1. Opened for reading, it cannot be written, as a closed one.
            _occupy(1, os.O_RDONLY)
        encoding = sys.stdout.encoding if sys.stdout is not None else "utf-8"
        raw = _Output(1, "wb", closefd=False)
        lines = raw.isatty()
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), encoding, _ESCAPED, line_buffering=lines)
    if sys.stderr is sys.__stderr__:
        if sys.stderr is None:
            _occupy(2, os.O_WRONLY)
        encoding = sys.stderr.encoding if sys.stderr is not None else "utf-8"
        errors = io.BufferedWriter(_Errors(2, "wb", closefd=False))
        sys.stderr = io.TextIOWrapper(errors, encoding, "backslashreplace", line_buffering=True)


def abandon_output() -> None:
    """What is written from now on, and what is still buffered, is dropped: the flush at the end must not fail too."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)
    sys.stdout.flush()


def _occupy(descriptor: int, flags: int) -> None:
    opened = os.open(os.devnull, flags)
    if opened != descriptor:
        os.dup2(opened, descriptor)
        os.close(opened)


def _escape(error: UnicodeError) -> tuple[str | bytes, int]:
    """What the encoding does not have as `\\uXXXX`, which in JSON means the same; undecodable bytes as they were."""
    assert isinstance(error, UnicodeEncodeError)
    made = b""
    for each in error.object[error.start : error.end]:
        number = ord(each)
        if 0xDC80 <= number <= 0xDCFF:
            made += bytes([number - 0xDC00])
        elif each == "…":
            made += b"..."
        else:
            units = each.encode("utf-16-be", "surrogatepass").hex()
            made += b"".join(b"\\u" + units[n : n + 4].encode() for n in range(0, len(units), 4))
    return made, error.end


codecs.register_error(_ESCAPED, _escape)
