"""The small files of a target's state, each of which is made once: in a directory, or in an object store."""

from __future__ import annotations

import errno
from itertools import takewhile
from pathlib import Path
from typing import Protocol

from kzconsumer.durable_files import create_whole, sync_directory
from kzconsumer_files.object_store import ObjectStore


class StateFiles(Protocol):
    """Raises OSError."""

    def place(self, name: str) -> str:
        """As messages name it."""
        ...

    def names(self, prefix: str) -> list[str]:
        """Of those directly in it, in order."""
        ...

    def read(self, name: str) -> bytes | None:
        """None if there is none."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Durably, unless it exists; True if this call did."""
        ...


class StateDirectory:
    def __init__(self, path: Path) -> None:
        self._path = path

    def place(self, name: str) -> str:
        return str(self._path / name)

    def names(self, prefix: str) -> list[str]:
        return sorted(each.name for each in self._path.glob(f"{prefix}*"))

    def read(self, name: str) -> bytes | None:
        try:
            return (self._path / name).read_bytes()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENAMETOOLONG):
                raise
            return None

    def create(self, name: str, data: bytes) -> bool:
        place = self._path / name
        if place.parent != self._path:
            # Not those above it: what was moved away is not made again.
            place.parent.mkdir(exist_ok=True)
            sync_directory(self._path)
        return create_whole(place, data)


class StateObjects:
    """Those below `top` in a store."""

    def __init__(self, store: ObjectStore, top: str) -> None:
        self._store = store
        self._top = top

    def place(self, name: str) -> str:
        return f"{self._store.uri}/{self._top}/{name}"

    def names(self, prefix: str) -> list[str]:
        start = f"{self._top}/{prefix}"
        names = (each.name for each in self._store.listed(self._top, after=start))
        return [each.removeprefix(f"{self._top}/") for each in takewhile(lambda name: name.startswith(start), names)]

    def read(self, name: str) -> bytes | None:
        return self._store.read(f"{self._top}/{name}")

    def create(self, name: str, data: bytes) -> bool:
        return self._store.create(f"{self._top}/{name}", data)
