"""What a target of files is marked with, wherever it is: its owner, and the layout of its files."""

from __future__ import annotations

import glob
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from kzconsumer.logs.logger import get_logger
from kzconsumer_files.layout import Layouts, Misfit
from kzconsumer_files.object_store import ObjectStore, StateFiles
from kzconsumer_files.range_names import Marker, NotOurs, TargetOwner

#: The name of the file.
MARKER = "owner.json"
#: That of a Delta table, which is a target before it has a log.
DELTA_MARKER = "delta.json"
#: The directory of ours in a target, a Delta table or an Iceberg table.
STATE: Final = "_kzconsumer"
_log = get_logger("kzconsumer.files")


def new_marker(owner: TargetOwner) -> bytes:
    made = Marker(id=uuid.uuid4().hex, **msgspec.structs.asdict(owner))
    return msgspec.json.format(msgspec.json.encode(made))


def require_unused(where: object, names: Sequence[str], files: StateFiles) -> None:
    """Raises NotOurs for a place without a marker that holds others' files, or is a Delta table without rows."""
    # Readers of a Delta table, which `_delta_log` makes it, would not see our files.
    foreign = next((each for each in names if each[0] not in "._" or each == "_delta_log"), None)
    if foreign is not None:
        raise NotOurs(f"{where} is not empty ({foreign}) and not marked as a target of any group")
    if files.read(DELTA_MARKER) is not None:
        raise NotOurs(f"{where} is a Delta table: give another path")


def require_outside(path: Path) -> None:
    """Raises NotOurs for a new target inside a table, or inside another target.

    VACUUM would remove our files from a Delta table, and the removal of orphan files from an Iceberg table; readers of
    the other target would see them. All skip what is below a name that begins with `_` or a dot.
    """
    inner = path.resolve()
    for outer in inner.parents:
        if any(part[0] in "._" for part in inner.relative_to(outer).parts):
            break
        # A parent that may not be searched has neither, as far as is known: a relative path may lead past it.
        _require_neither(path, outer, partial(_is_in, outer))


def require_outside_in_store(store: ObjectStore) -> None:
    """As `require_outside`. Raises OSError if the store does not answer."""
    for outer, inner in store.parents():
        if inner[:1] in ("_", "."):
            break
        _require_neither(store, outer, outer.has)


def _is_in(place: Path, pattern: str) -> bool:
    return bool(glob.glob(os.path.join(glob.escape(str(place)), pattern)))


def _require_neither(inner: object, outer: object, has: Callable[[str], bool]) -> None:
    """`has` says whether there is something in `outer` that a pattern matches."""
    if has(f"{STATE}/{MARKER}"):
        raise NotOurs(f"{inner} is inside the target {outer}, whose readers would see it, too: give another path")
    for kind, patterns, removal in _TABLES:
        if any(map(has, patterns)):
            raise NotOurs(
                f"{inner} is inside the {kind} table {outer}, whose {removal} would remove it: give another path"
            )


_TABLES: Final = (
    ("Delta", ("_delta_log/*", f"{STATE}/{DELTA_MARKER}"), "VACUUM"),
    ("Iceberg", ("metadata/*.metadata.json",), "removal of orphan files"),
)


class MarkedPlace:
    """`where` is how messages name it. Methods raise OSError."""

    def __init__(self, where: object, files: StateFiles) -> None:
        self._where = where
        self._files = files
        self._layouts = Layouts(files)

    def find(self, owner: TargetOwner) -> str:
        """The id of a target that is marked as `owner`'s. Raises NotOurs, also if there is no target."""
        data = self._files.read(MARKER)
        if data is None:
            raise NotOurs(f"{self._where} is not marked as a target of any group")
        try:
            found = msgspec.json.decode(data, type=Marker)
        except msgspec.DecodeError as error:
            raise NotOurs(f"{self._files.place(MARKER)} cannot be read: {error}") from error
        if found.owner != owner:
            ways_out = f"give another path{self._renamed(found, owner)}"
            raise NotOurs(f"{self._where} belongs to {found.owner}; this is {owner}: {ways_out}")
        return found.id

    def _renamed(self, found: Marker, owner: TargetOwner) -> str:
        """The way out if it may be the same cluster under another name: without an id that is how it is reached."""
        if not owner.may_have_been(found.owner):
            return ""
        return (
            "; or if that is the same cluster, which had no id before Kafka 0.10.1, "
            f'set "cluster" in {self._files.place(MARKER)} to "{owner.cluster}"'
        )

    def settle_layout(self, kind: str, partition_by: Sequence[str]) -> None:
        """Record format and partition columns of the target. Raises NotOurs if it has others."""
        with self._same_layout():
            self._layouts.settle(kind, partition_by)

    def require_layout(self, kind: str, partition_by: Sequence[str]) -> None:
        """As `settle_layout`, but nothing is recorded."""
        with self._same_layout():
            self._layouts.require(kind, partition_by)

    def take_columns(self, schema: str, *, whole: bool) -> None:
        """Record columns, Spark's as JSON, as those of the target; see `Layouts.take`. Raises Misfit."""
        try:
            added = self._layouts.take(schema, whole=whole)
        except Misfit as misfit:
            raise Misfit(f"{self._where}: {misfit}; or give another path") from None
        if added:
            note = "null in earlier rows; a reader that takes its columns from one file may not see them"
            _log.warning("columns added to the target", columns=list(added), note=note)

    @contextmanager
    def _same_layout(self) -> Iterator[None]:
        try:
            yield
        except Misfit as misfit:
            raise NotOurs(f"{self._where}: {misfit}: readers would miss rows; keep it, or give another path") from None
