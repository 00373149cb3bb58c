"""Columns of Parquet files and of an Iceberg table: what the table lacks, what does not fit, values of partitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import ListType, MapType, StructType

from kzconsumer_files.layout import Misfit

_WIDER: Final = {("int", "long"), ("float", "double")}  # types of a file, and of a table that it fits into


def partitioning(metadata: TableMetadata) -> list[str]:
    """The columns by which a table is partitioned; of another transform than identity, its description."""
    column = metadata.schema().find_column_name
    return [
        str(column(each.source_id))
        if isinstance(each.transform, IdentityTransform)
        else f"{each.transform} {each.name}"
        for each in metadata.spec().fields
    ]


def further_columns(metadata: TableMetadata, columns: pa.Schema) -> list[pa.Field[Any]]:
    """Those of a file that the table lacks. Raises Misfit for what does not fit into the table.

    A name that the table had before is refused: the columns of a file have names only, so it would be read for both.
    """
    schema = metadata.schema()
    known = {each.name: each for each in schema.fields}
    common = [field for field in columns if field.name in known]
    mapped = _mapped_names(metadata)
    if mapped is not None and (unmapped := [field.name for field in common if field.name not in mapped]):
        raise Misfit(f'the table\'s name mapping is without column "{unmapped[0]}": files could not be read')
    for found in pyarrow_to_schema(pa.schema(common), schema.name_mapping).fields:
        kinds = shape(found.field_type), shape(known[found.name].field_type)
        if kinds[0] != kinds[1] and kinds not in _WIDER:
            raise Misfit(f'column "{found.name}" is {found.field_type}, in the table {known[found.name].field_type}')
    for name, theirs in known.items():
        if theirs.required:
            raise Misfit(f'the table\'s column "{name}" is required: a file of Spark may leave it out')
    further = [field.with_nullable(True) for field in columns if field.name not in known]
    former = {field.name for each in metadata.schemas for field in each.fields} | (mapped or set())
    for field in further:
        if field.name in former:
            raise Misfit(f'the table had a column "{field.name}" that was renamed or dropped: leave it out by select')
    return further


def require_partition_columns(columns: pa.Schema, names: Iterable[str]) -> None:
    """Raises Misfit for columns that files cannot be partitioned by: a value must be the same in every program."""
    for name in names:
        kind = columns.field(name).type if name in columns.names else None
        if kind is None or not _is_plain(kind):
            found = "missing" if kind is None else str(kind)
            raise Misfit(f'partition_by: "{name}" is {found}; it can be text, a whole number, a boolean or a date')


def partition_of(file: Any, names: Sequence[str]) -> Record:
    """The values of a file's partition columns, from its rows: its statistics may lack or mix them. Raises Misfit.

    `file` is a path, or open.
    """
    values: list[Any] = []
    for name in names:
        column = pq.read_table(file, columns=[name], partitioning=None).column(name)
        distinct = pc.unique(column)
        if len(distinct) != 1:
            raise Misfit(f'partition_by: a file has {len(distinct)} values of "{name}"')
        values.append((distinct.cast(pa.int32()) if pa.types.is_date32(column.type) else distinct)[0].as_py())
    return Record(*values)


def shape(kind: Any) -> Any:
    """A type without what makes no difference to files: numbers of fields, comments, whether a value may be null."""
    match kind:
        case StructType():
            return tuple((each.name, shape(each.field_type)) for each in kind.fields)
        case ListType():
            return ("list", shape(kind.element_type))
        case MapType():
            return ("map", shape(kind.key_type), shape(kind.value_type))
    return str(kind)


def _mapped_names(metadata: TableMetadata) -> set[str] | None:
    """Top-level names of the table's mapping from names to fields; None without one."""
    mapping = metadata.name_mapping()
    return None if mapping is None else {name for field in mapping.root for name in field.names}


def _is_plain(kind: pa.DataType) -> bool:
    test = pa.types
    return bool(test.is_string(kind) or test.is_integer(kind) or test.is_boolean(kind) or test.is_date32(kind))
