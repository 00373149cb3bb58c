"""A record that ours delivered twice is explained only by an offset that another member stored in between."""

from __future__ import annotations

import pytest

from tests.core.original.group import set_back
from tests.support.ownership import Seen

OURS, THEIRS = "g_m-0", "g_a-0"
HANDED_OVER = [Seen(1, OURS, 5), Seen(2, OURS, 10), Seen(3, None, 10), Seen(4, THEIRS, 10)]


@pytest.mark.parametrize(
    ("later", "explained"),
    [
        ([Seen(5, THEIRS, 8), Seen(6, None, 8), Seen(7, OURS, 8)], True),
        ([Seen(6, None, 10), Seen(6.1, None, 8), Seen(7, OURS, 8)], True),  # the owner node was seen to go first
        ([Seen(5, THEIRS, 12), Seen(6, None, 12), Seen(7, OURS, 12)], False),  # we began before what is stored
        ([Seen(6, None, 10), Seen(7, OURS, 10), Seen(7.1, OURS, 8)], False),  # we stored it ourselves
        ([Seen(6, None, 10), Seen(7, OURS, 10), Seen(8.5, THEIRS, 8)], False),  # only afterwards
        ([Seen(5, THEIRS, 9), Seen(7, OURS, 9)], False),  # behind this record
    ],
)
def test_an_earlier_offset_of_another_member_explains_it(later: list[Seen], explained: bool) -> None:
    assert set_back([*HANDED_OVER, *later], 8, 1.5, 8.0, ["g_m"]) == explained
