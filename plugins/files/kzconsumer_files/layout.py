"""The format, partition columns and columns of a target of files: those of its first rows hold for all later ones.

Readers take one schema and one set of partition columns for the whole directory, so rows of another layout or type hide
earlier rows, or break the reader. Each version of the layout is an immutable file `layout-<number>.json` in the state
directory: the first writer of a number wins, the highest number counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from kzconsumer_files.object_store import StateFiles

Field: TypeAlias = Mapping[str, Any]
_BY_POSITION: Final = "csv"


class Misfit(Exception):
    """Rows do not fit the target's layout; the text is one line."""


def type_text(kind: Any) -> str:
    """A type of Spark's schema in one line, as in DDL."""
    if kind is None:
        return "no column"
    if isinstance(kind, str):
        return kind
    match kind["type"]:
        case "array":
            return f"array<{type_text(kind['elementType'])}>"
        case "map":
            return f"map<{type_text(kind['keyType'])},{type_text(kind['valueType'])}>"
    return f"struct<{','.join(each['name'] + ':' + type_text(each['type']) for each in kind['fields'])}>"


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """`columns` are the fields of Spark's schema as JSON, in order; None until they are known."""

    version: int = 1
    format: str
    partition_by: tuple[str, ...]
    columns: tuple[dict[str, Any], ...] | None = None


class Merged(NamedTuple):
    """Columns of the target including those of new rows, and the names of the columns that are new."""

    columns: tuple[dict[str, Any], ...]
    added: tuple[str, ...]


class Layouts:
    """Of one state directory. Raises OSError."""

    def __init__(self, state: StateFiles) -> None:
        self._state = state

    def require(self, kind: str, partition_by: Sequence[str]) -> None:
        """Raises Misfit if the target has another format or other partition columns."""
        _, found = self._newest()
        if found is None:
            return
        if found.format != kind:
            raise Misfit(f"format is {found.format}, these settings say {kind}")
        if found.partition_by != tuple(partition_by):
            theirs, ours = (", ".join(f'"{name}"' for name in names) for names in (found.partition_by, partition_by))
            raise Misfit(f"partition_by is {theirs or 'none'}, these settings say {ours or 'none'}")

    def settle(self, kind: str, partition_by: Sequence[str]) -> None:
        """Record them unless a layout is recorded already. Raises Misfit if that is another one."""
        if self._newest()[1] is None:
            self._add(1, Layout(format=kind, partition_by=tuple(partition_by)))
        self.require(kind, partition_by)

    def take(self, schema: str, *, whole: bool) -> tuple[str, ...]:
        """Record the columns of rows to be written; returns the names of new ones.

        `schema` is Spark's, as JSON. With `whole` no column of earlier rows may be missing. Raises Misfit.
        """
        ours = tuple(msgspec.json.decode(schema)["fields"])
        while True:
            number, found = self._newest()
            assert found is not None, "a target is marked before it is written"
            if found.columns is None:
                merged = Merged(ours, ())
            elif found.format == _BY_POSITION:
                _require_equal(found.columns, ours)
                merged = Merged(found.columns, ())
            else:
                merged = merged_columns(found.columns, ours, whole=whole)
            if merged.columns == found.columns:
                return ()
            if self._add(number + 1, msgspec.structs.replace(found, columns=merged.columns)):
                return merged.added

    def _newest(self) -> tuple[int, Layout | None]:
        name = max(self._state.names("layout-"), default=None)
        if name is None:
            return 0, None
        try:
            number = int(name.removeprefix("layout-").removesuffix(".json"))
            return number, msgspec.json.decode(self._state.read(name) or b"", type=Layout)
        except (ValueError, msgspec.DecodeError) as error:
            raise Misfit(f"{self._state.place(name)} cannot be read: {error}") from error

    def _add(self, number: int, layout: Layout) -> bool:
        return self._state.create(f"layout-{number:06d}.json", msgspec.json.format(msgspec.json.encode(layout)))


def merged_columns(theirs: Sequence[Field], ours: Sequence[Field], *, whole: bool) -> Merged:
    """Raises Misfit unless readers that match columns by name can read rows of both."""
    added: list[str] = []
    return Merged(_fields(theirs, ours, "", whole, added), tuple(added))


def _fields(
    theirs: Sequence[Field], ours: Sequence[Field], above: str, whole: bool, added: list[str]
) -> tuple[dict[str, Any], ...]:
    here = {each["name"]: each for each in ours}
    known = {each["name"].casefold(): each["name"] for each in theirs}
    merged = []
    for each in theirs:
        name = each["name"]
        if name in here:
            kind = _type(each["type"], here[name]["type"], above + name, whole, added)
            merged.append({**each, "type": kind, "nullable": each["nullable"] or here[name]["nullable"]})
        elif whole and name.casefold() not in {other.casefold() for other in here}:
            null = f"CAST(NULL AS {type_text(each['type'])})"
            raise Misfit(f'column "{above}{name}" is missing: earlier rows have it; keep it, as {null} if need be')
        else:
            merged.append({**each, "nullable": True})
    for each in ours:
        name = each["name"]
        if name.casefold() not in known:
            if not each["nullable"]:
                raise Misfit(f'column "{above}{name}" is new and must not be null, which it is in earlier rows')
            added.append(above + name)
            merged.append(dict(each))
        elif known[name.casefold()] != name:
            raise Misfit(f'column "{above}{name}" and the target\'s "{known[name.casefold()]}" differ in case only')
    return tuple(merged)


def _type(theirs: Any, ours: Any, name: str, whole: bool, added: list[str]) -> Any:
    if isinstance(theirs, dict) and isinstance(ours, dict) and theirs["type"] == ours["type"]:
        match theirs["type"]:
            case "struct":
                fields = _fields(theirs["fields"], ours["fields"], f"{name}.", whole, added)
                return {**theirs, "fields": list(fields)}
            case "array":
                inner = _type(theirs["elementType"], ours["elementType"], f"{name}.element", whole, added)
                nulls = theirs["containsNull"] or ours["containsNull"]
                return {**theirs, "elementType": inner, "containsNull": nulls}
            case "map":
                both = {
                    f"{part}Type": _type(theirs[f"{part}Type"], ours[f"{part}Type"], f"{name}.{part}", whole, added)
                    for part in ("key", "value")
                }
                return {**theirs, **both, "valueContainsNull": theirs["valueContainsNull"] or ours["valueContainsNull"]}
    if theirs != ours:
        raise Misfit(f'column "{name}" is {type_text(ours)}, in the target {type_text(theirs)}')
    return theirs


def _require_equal(theirs: Sequence[Field], ours: Sequence[Field]) -> None:
    if [(each["name"], each["type"]) for each in theirs] != [(each["name"], each["type"]) for each in ours]:
        names = ", ".join(f"{each['name']} {type_text(each['type'])}" for each in theirs)
        raise Misfit(f"csv is read by position: the columns must stay {names}")
