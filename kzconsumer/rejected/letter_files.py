"""Dead letters as lines of JSON in a directory: `[rejected] directory`.

Owns the file that this process writes; members may share the directory, for no two of them write to the same file. What
`write` returned from is on disk. A file whose last line has no end was being written by a process that died: what that
line would have said comes again.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Sequence
from io import FileIO
from pathlib import Path

import anyio
from anyio import to_thread

from kzconsumer.errors import NotKept
from kzconsumer.rejected.dead_letter import DeadLetter


class LetterFiles:
    """A new file is begun with the first letter, and whenever one has reached `file_bytes`."""

    def __init__(self, directory: Path, file_bytes: int) -> None:
        self._directory = directory
        self._file_bytes = file_bytes
        self._file: FileIO | None = None
        self._size = 0
        self._one_at_a_time = anyio.Lock()

    def __repr__(self) -> str:
        return f"<LetterFiles {self._directory}>"

    async def write(self, letters: Sequence[DeadLetter]) -> None:
        """All of them, durably. Raises NotKept: then some may be there all the same."""
        async with self._one_at_a_time:
            try:
                await to_thread.run_sync(self._write, letters)
            except OSError as error:
                raise NotKept(f"{self._directory}: {error}") from error

    def _write(self, letters: Sequence[DeadLetter]) -> None:
        lines = b"".join(letter.line(time.time_ns() // 1_000_000) for letter in letters)
        if self._file is None or self._size >= self._file_bytes:
            self.close()
            self._begin()
        file, begun = self._file, self._size
        assert file is not None
        try:
            while self._size - begun < len(lines):
                self._size += file.write(lines[self._size - begun :]) or 0
            os.fsync(file.fileno())
        except OSError:
            # Of what may be half a line nothing is built upon.
            self.close()
            raise

    def _begin(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        begun = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        self._file = (self._directory / f"{begun}-{uuid.uuid4().hex}.jsonl").open("xb", buffering=0)
        self._size = 0
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()
