"""Columns of Spark and of a Delta table, both as Spark's JSON: which columns a table gets, and which rows fit into it.

Whether a column may be null, and comments, make no difference to files.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from kzconsumer_files.layout import Misfit, type_text

#: Types whose values have the same text in Spark's directory names and in Delta's log.
_IN_NAMES: Final = frozenset(("string", "long", "integer", "short", "byte", "boolean", "date"))
_PLAIN: Final = _IN_NAMES | {"float", "double", "binary", "timestamp", "timestamp_ntz"}
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_NOT_IN_NAMES: Final = re.compile(r"[ ,;{}()\n\t=]")


def table_columns(columns: str, partition_by: Collection[str]) -> str:
    """The columns of a new table. Raises Misfit for types and names that Delta does not support."""
    found = _columns(columns)
    for name in partition_by:
        kind = found[name][0] if name in found else None
        if kind not in _IN_NAMES:
            raise Misfit(
                f'partition_by: "{name}" is {type_text(kind)}; it can be one of {", ".join(sorted(_IN_NAMES))}'
            )
    return _fields({name: kind for name, (kind, _) in found.items()})


def further_columns(columns: str, table: str) -> str | None:
    """Those that the table lacks, if any. Raises Misfit for what does not fit into it, and as `table_columns`."""
    ours, theirs = _columns(columns), _columns(table)
    spelled = {name.lower(): name for name in theirs}
    for name, (kind, _) in ours.items():
        if name not in theirs and name.lower() in spelled:  # to Delta and to Spark these are one
            raise Misfit(f'the table has no column "{name}", but "{spelled[name.lower()]}"')
        if name in theirs and kind != theirs[name][0]:
            raise Misfit(f'column "{name}" is {type_text(kind)}, in the table {type_text(theirs[name][0])}')
    for name, (_, may_be_null) in theirs.items():
        if name not in ours and not may_be_null:
            raise Misfit(f'the table\'s column "{name}" must not be null, and is not among those to write')
    further = {name: kind for name, (kind, _) in ours.items() if name not in theirs}
    return _fields(further) if further else None


def partition_values(name: str) -> dict[str, str | None]:
    """The partition values in the path of a file that Spark wrote: `day=2026-01-31/kind=a%2Fb/file`."""
    pairs = (each.split("=", 1) for each in name.split("/")[:-1])
    return {unquote(column): None if value == _NULL else unquote(value) for column, value in pairs}


def rules_of(table: str, settings: Mapping[str, str | None]) -> list[str]:
    """Properties of a table that require more of writers than matching columns."""
    found = [key for key in settings if key.startswith("delta.constraints.")]
    if settings.get("delta.columnMapping.mode", "none") != "none":
        found.append("delta.columnMapping.mode")
    if "delta.setTransactionRetentionDuration" in settings:
        found.append("delta.setTransactionRetentionDuration")
    for field in msgspec.json.decode(table)["fields"]:
        found += [f"{key} of column {field['name']}" for key in field.get("metadata") or {} if key.startswith("delta.")]
    return found


def _fields(kinds: Mapping[str, Any]) -> str:
    for name, kind in kinds.items():
        if _NOT_IN_NAMES.search(name):
            raise Misfit(f'a Delta table cannot have a column "{name}": name it otherwise, without any of " ,;{{}}()="')
        if unknown := _unknown(kind):
            raise Misfit(f'a Delta table cannot have the type {unknown} of column "{name}"')
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
    return msgspec.json.encode({"type": "struct", "fields": fields}).decode()


def _columns(schema: str) -> dict[str, tuple[Any, bool]]:
    fields = msgspec.json.decode(schema)["fields"]
    return {field["name"]: (_bare(field["type"]), field["nullable"]) for field in fields}


def _bare(kind: Any) -> Any:
    """The type with all nested fields nullable."""
    if not isinstance(kind, dict):
        return kind
    if kind["type"] == "array":
        return {"type": "array", "elementType": _bare(kind["elementType"]), "containsNull": True}
    if kind["type"] == "map":
        inner = {each: _bare(kind[each]) for each in ("keyType", "valueType")}
        return {"type": "map", **inner, "valueContainsNull": True}
    fields = [
        {"name": each["name"], "type": _bare(each["type"]), "nullable": True, "metadata": {}} for each in kind["fields"]
    ]
    return {"type": "struct", "fields": fields}


def _unknown(kind: Any) -> str | None:
    """A nested type that Delta does not have."""
    if isinstance(kind, str):
        return None if kind in _PLAIN or kind.startswith("decimal(") else kind
    match kind["type"]:
        case "array":
            return _unknown(kind["elementType"])
        case "map":
            return _unknown(kind["keyType"]) or _unknown(kind["valueType"])
    return next(filter(None, (_unknown(each["type"]) for each in kind["fields"])), None)
