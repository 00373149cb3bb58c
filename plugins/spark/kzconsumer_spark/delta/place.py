"""Where a Delta table and the state beside it are: in a directory, or in an object store."""

from __future__ import annotations

from io import BufferedIOBase
from itertools import chain
from pathlib import Path
from typing import Protocol

from kzconsumer.durable_files import make_directory, sync_directory, sync_file
from kzconsumer_files.object_store import ObjectStore, client_options, is_object_store
from kzconsumer_files.private_directory import local_attempts, make_local_attempts
from kzconsumer_files.state_files import StateDirectory, StateFiles, StateObjects
from kzconsumer_spark.pipe.messages import ToDelta

_STATE = "_kzconsumer"


class DeltaPlace(Protocol):
    """Methods raise OSError. `attempts` is for files that are not committed yet; `options` are `deltalake`'s."""

    uri: str
    options: dict[str, str]
    state: StateFiles
    attempts: Path

    def make(self) -> None:
        """Raises NotOurs for a store that cannot hold a table."""
        ...

    def names(self) -> list[str]:
        """What is directly in it."""
        ...

    def add(self, file: Path, name: str) -> Path:
        """Put a file under a unique name; returns where its content is on this machine."""
        ...

    def sync(self) -> None:
        """Once this returns, added files are durable."""
        ...

    def open(self, name: str) -> BufferedIOBase:
        """Raises FileNotFoundError."""
        ...


class DeltaDirectory:
    def __init__(self, path: Path) -> None:
        self.uri = str(path)
        self.options: dict[str, str] = {}
        self.state: StateFiles = StateDirectory(path / _STATE)
        self.attempts = path / _STATE / "attempts"
        self._path = path

    def make(self) -> None:
        make_directory(self.attempts)

    def names(self) -> list[str]:
        return sorted(each.name for each in self._path.iterdir())

    def add(self, file: Path, name: str) -> Path:
        sync_file(file)
        return file.rename(self._path / name)

    def sync(self) -> None:
        sync_directory(self._path)

    def open(self, name: str) -> BufferedIOBase:
        return (self._path / name).open("rb")


class DeltaStore:
    def __init__(self, to: ToDelta) -> None:
        self._store = ObjectStore(to.path, to.store_options)
        self.uri = self._store.uri
        self.options = {**to.store_options, **client_options(to.store_options)}
        self.state: StateFiles = StateObjects(self._store, _STATE)
        self.attempts = local_attempts()

    def make(self) -> None:
        make_local_attempts()
        self._store.require_conditional_puts(_STATE)

    def names(self) -> list[str]:
        return sorted(chain(*self._store.tops()))

    def add(self, file: Path, name: str) -> Path:
        self._store.upload(file, name)
        return file

    def sync(self) -> None:
        """What a store has said that it has is durable."""

    def open(self, name: str) -> BufferedIOBase:
        return self._store.open(name)


def place_of(to: ToDelta) -> DeltaPlace:
    return DeltaStore(to) if is_object_store(to.path) else DeltaDirectory(Path(to.path))
