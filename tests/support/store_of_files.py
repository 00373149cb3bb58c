"""An object store for `pyiceberg`, whose objects are files below `directory`: a property of the catalog."""

from __future__ import annotations

from pathlib import Path

from pyarrow.fs import FileSystem, LocalFileSystem, SubTreeFileSystem
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO


class StoreOfFiles(PyArrowFileIO):
    """The catalog's property `py-io-impl`."""

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> FileSystem:
        return SubTreeFileSystem(self.properties["directory"], LocalFileSystem())

    def new_output(self, location: str) -> PyArrowFile:
        path = Path(self.properties["directory"], self.parse_location(location)[2])
        path.parent.mkdir(parents=True, exist_ok=True)
        return super().new_output(location)
