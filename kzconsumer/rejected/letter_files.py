"""Dead letters as lines of JSON in a directory: `[rejected] directory`.

Members may share the directory: each writes files of its own. A file whose last line has no end was being written by a
process that died; that record is redelivered.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import anyio
from anyio import to_thread

from kzconsumer.durable_files import AppendedFile
from kzconsumer.errors import DeadLetterError
from kzconsumer.rejected.dead_letter import DeadLetter


class LetterFiles:
    """A new file is begun with the first letter, and whenever one has reached `file_bytes`."""

    def __init__(self, directory: Path, file_bytes: int) -> None:
        self._directory = directory
        self._file_bytes = file_bytes
        self._file: AppendedFile | None = None
        self._one_at_a_time = anyio.Lock()

    async def write(self, letters: Sequence[DeadLetter]) -> None:
        """Write all of them to disk. Raises DeadLetterError: then some of them may have been written."""
        async with self._one_at_a_time:
            try:
                await to_thread.run_sync(self._write, letters)
            except OSError as error:
                raise DeadLetterError(f"{self._directory}: {error}") from error

    def _write(self, letters: Sequence[DeadLetter]) -> None:
        lines = b"".join(letter.line(time.time_ns() // 1_000_000) for letter in letters)
        if self._file is not None and self._file.size >= self._file_bytes:
            self.close()
        try:
            if self._file is None:
                begun = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
                self._file = AppendedFile(self._directory / f"{begun}-{uuid.uuid4().hex}.jsonl")
            self._file.append(lines)
        except OSError:
            self.close()  # it may end with half a line
            raise

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()
