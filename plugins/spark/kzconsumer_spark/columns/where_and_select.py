"""The options `where` and `select`: Spark's SQL, by which rows are left out and columns are made, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession

from kzconsumer.errors import ConfigError
from kzconsumer_spark.worker_protocol.column_options import Columns

VIEW = "records"
OWN = "_kz_"  # prefix of a destination's own columns
_NOT_BY_ROW: Final = frozenset({"Aggregate", "Window", "Sort", "Join", "Distinct", "GlobalLimit", "Union"})


class SqlFault(ConfigError):
    """`where` or `select` do not match the columns; one line."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__([f"[sink.options] {key}: {reason}"])


def check_syntax(session: SparkSession, columns: Columns) -> None:
    """Check the syntax, while the types of the columns are not known. Raises SqlFault."""
    parser = session._jsparkSession.sessionState().sqlParser()
    if columns.where is not None:
        try:
            parser.parseExpression(columns.where)
        except ParseException as error:
            raise SqlFault("where", _line(error)) from error
    if columns.select is not None:
        try:
            parser.parsePlan(_query(columns.select, {}))
        except ParseException as error:
            raise SqlFault("select", _line(error)) from error


def apply(frame: DataFrame, columns: Columns) -> DataFrame:
    """Apply `where` and `select`; the `_kz_` columns follow. Raises SqlFault."""
    if columns.where is not None:
        try:
            frame = frame.where(columns.where)
        except AnalysisException as error:
            raise SqlFault("where", _line(error)) from error
    if columns.select is None:
        return frame
    session = frame.sparkSession
    # In the view under other names, which a `*` includes, and again after the selected columns.
    own = {name: f"{OWN}own_{number}" for number, name in enumerate(frame.columns) if name.startswith(OWN)}
    kept = {f"{OWN}kept_{number}": name for number, name in enumerate(own)}
    frame.withColumnsRenamed(own).createOrReplaceTempView(VIEW)
    try:
        selected = session.sql(_query(columns.select, dict(zip(kept, own.values(), strict=True))))
    except AnalysisException as error:  # a ParseException is one
        raise SqlFault("select", _line(error)) from error
    finally:
        session.catalog.dropTempView(VIEW)
    plan = selected._jdf.queryExecution().analyzed()
    if (found := next((each for each in _nodes(plan) if each in _NOT_BY_ROW), None)) is not None:
        raise SqlFault("select", f"makes each row of one record, which {found.lower()} does not")
    given = [name for name in selected.columns if name not in kept and name not in own.values()]
    if refused := [name for name in given if name.casefold().startswith(OWN)]:
        raise SqlFault("select", f"the column {refused[0]} needs another name: those with {OWN} are the sink's own")
    spelled: dict[str, str] = {}
    for name in given:
        if (other := spelled.get(name.casefold())) is not None:
            raise SqlFault("select", f'the columns "{other}" and "{name}" are one to Spark: give one another name')
        spelled[name.casefold()] = name
    return selected.drop(*own.values()).withColumnsRenamed(kept) if own else selected


def _nodes(plan: Any) -> Iterator[str]:
    """The names of a plan's nodes, also of those of subqueries. The plan as text has the texts of `select`, too."""
    yield plan.nodeName()
    for inner in (plan.children(), plan.innerChildren()):
        for number in range(inner.size()):
            yield from _nodes(inner.apply(number))


def _query(select: str, kept: Mapping[str, str]) -> str:
    # A line of its own: the text may end in a comment.
    return f"SELECT {select}\n{''.join(f', `{name}` AS `{alias}`' for alias, name in kept.items())} FROM {VIEW}"


def _line(error: Exception) -> str:
    lines = [line.strip().rstrip(";") for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
