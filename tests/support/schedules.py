"""Schedules for property tests: lists of steps that are as often long as short."""

from __future__ import annotations

from typing import TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


def schedules(step: st.SearchStrategy[T], most: int) -> st.SearchStrategy[list[T]]:
    """Up to `most` steps. `st.lists` without a least size has five on average, in which hardly anything happens."""
    return st.integers(0, most).flatmap(lambda number: st.lists(step, min_size=number, max_size=number))
