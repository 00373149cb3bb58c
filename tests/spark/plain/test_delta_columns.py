"""Columns and rules of a user's Delta table that rows without them, or writers that do not know them, would break."""

from __future__ import annotations

import pytest

from kzconsumer_files.layout import Misfit
from kzconsumer_spark.destinations.delta_columns import further_columns, rules_of
from tests.support.delta import spark_columns


@pytest.mark.parametrize("nullable", [True, False])
def test_a_column_that_must_not_be_null_is_written(nullable: bool) -> None:
    table = spark_columns(id="long").replace('"nullable":true', f'"nullable":{str(nullable).lower()}')
    others = spark_columns(extra="string")
    if nullable:
        assert further_columns(others, table) == others
        return
    with pytest.raises(Misfit, match=r'column "id" must not be null, and is not among those to write'):
        further_columns(others, table)


@pytest.mark.parametrize(
    ("settings", "rules"),
    [
        ({"delta.columnMapping.mode": "none", "delta.appendOnly": "true"}, []),
        ({"delta.columnMapping.mode": "name"}, ["delta.columnMapping.mode"]),
        ({"delta.setTransactionRetentionDuration": "interval 1 day"}, ["delta.setTransactionRetentionDuration"]),
        (
            {"delta.constraints.a": "id > 1", "delta.constraints.b": "id < 9"},
            ["delta.constraints.a", "delta.constraints.b"],
        ),
    ],
)
def test_what_requires_more_of_writers_is_named(settings: dict[str, str | None], rules: list[str]) -> None:
    assert rules_of(spark_columns(id="long"), settings) == rules
    generated = spark_columns(id="long").replace('"metadata":{}', '"metadata":{"delta.generationExpression":"1","a":1}')
    assert rules_of(generated, settings) == [*rules, "delta.generationExpression of column id"]
