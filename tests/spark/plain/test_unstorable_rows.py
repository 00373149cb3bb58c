"""How conditions of the parts of a value become one of the value."""

from __future__ import annotations

import pytest

from kzconsumer_spark.ranges.unstorable_rows import either


@pytest.mark.parametrize(
    ("conditions", "expected"), [([], None), ([None, None], None), ([None, 1], 1), ([2, None], 2), ([1, 2, 4], 7)]
)
def test_a_value_is_bad_if_a_part_of_it_can_be_and_is(conditions: list[int | None], expected: int | None) -> None:
    assert either(conditions) == expected
