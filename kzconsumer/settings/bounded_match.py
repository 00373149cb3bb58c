"""Whether a text matches an expression as a whole, in a bounded number of steps.

Anybody who may write to ZooKeeper can register `(a+)+b`, for which `re`, which backtracks, takes longer than the world
exists. So an expression that could make it do so is matched by sets of positions: the set of those at which a part may
begin gives the set of those at which it may end. Which expressions match is the same; a part that cannot be matched
that way (a back-reference, a possessive quantifier) makes such an expression unusable.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable
from typing import Any

#: Of one text: the repetitions and look-arounds of a name of 249 characters take a tenth of it.
MOST_STEPS = 20_000
#: Repetitions of variable length, one after the other, with which `re` takes at most the square of the text's length.
_FEW = 2

_parser: Any = importlib.import_module("re._parser")
_constants: Any = importlib.import_module("re._constants")
_REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT)
_ENDLESS = int(_constants.MAXREPEAT)

_Positions = int
"""A set of positions of the text, as the bits of a number."""


class TooManySteps(ValueError):
    """The expression takes more than MOST_STEPS for a text."""


class _Run:
    """One match of one text: the steps so far, and what has been found before."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.steps = 0
        self.found: dict[tuple[int, _Positions], _Positions] = {}

    def step(self) -> None:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise TooManySteps(f"takes more than {MOST_STEPS:,} steps to match a name of {len(self.text)} characters")


_Part = Callable[[_Run, _Positions], _Positions]
"""From where a part may begin to where it may end."""


def matcher(expression: str) -> Callable[[str], bool]:
    """Raises re.error for what is no expression, ValueError for what cannot be matched in bounded time.

    The function raises TooManySteps.
    """
    if _repetitions(_parser.parse(expression)) <= _FEW:
        compiled = re.compile(expression)
        return lambda text: compiled.fullmatch(text) is not None
    return matcher_in_steps(expression)


def matcher_in_steps(expression: str) -> Callable[[str], bool]:
    """The same without `re`, also for an expression that it matches fast."""
    tree = _parser.parse(expression)
    part = _sequence(tree, tree.state.flags)

    def matches(text: str) -> bool:
        return bool(part(_Run(text), 1) >> len(text) & 1)

    return matches


def _repetitions(tree: Iterable[Any]) -> int:
    """How many may follow each other; more than _FEW if one is inside another, or stands around a choice."""
    number = 0
    for operation, value in tree:
        if operation in _REPEATS or operation is _constants.POSSESSIVE_REPEAT:
            low, high, body = value
            inner = _repetitions(body)
            if inner or (high > 1 and any(each is _constants.BRANCH for each in _operations(body))):
                return _FEW + 1
            number += low != high
        elif operation is _constants.BRANCH:
            number += max(map(_repetitions, value[1]))
        elif operation is _constants.SUBPATTERN:
            number += _repetitions(value[3])
        elif operation in (_constants.ASSERT, _constants.ASSERT_NOT):
            number += _repetitions(value[1])
        elif operation is _constants.ATOMIC_GROUP:
            number += _repetitions(value)
        elif operation is _constants.GROUPREF:
            number += 1
        elif operation is _constants.GROUPREF_EXISTS:
            number += 1 + max(_repetitions(each or ()) for each in value[1:])
    return number


def _operations(tree: Iterable[Any]) -> Iterable[Any]:
    for operation, value in tree:
        yield operation
        if operation is _constants.SUBPATTERN:
            yield from _operations(value[3])


def _sequence(tree: Iterable[Any], flags: int) -> _Part:
    parts = [_part(operation, value, flags) for operation, value in tree]

    def run(at: _Run, begin: _Positions) -> _Positions:
        for part in parts:
            if not begin:
                break
            begin = part(at, begin)
        return begin

    return run


def _part(operation: Any, value: Any, flags: int) -> _Part:
    if operation in (_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, _constants.IN):
        return _character(_accepts(operation, value, flags))
    if operation is _constants.SUBPATTERN:
        return _sequence(value[3], (flags | value[1]) & ~value[2])
    if operation is _constants.BRANCH:
        choices = [_sequence(each, flags) for each in value[1]]

        def choose(at: _Run, begin: _Positions) -> _Positions:
            end = 0
            for choice in choices:
                end |= choice(at, begin)
            return end

        return choose
    if operation in _REPEATS:
        return _repeated(value[0], value[1], _sequence(value[2], flags))
    if operation is _constants.AT:
        return _place(value, flags)
    if operation in (_constants.ASSERT, _constants.ASSERT_NOT):
        return _look(value[0], value[1], _sequence(value[1], flags), operation is _constants.ASSERT)
    if operation is _constants.FAILURE:
        return lambda at, begin: 0
    name = str(operation).lower().replace("_", " ")
    raise ValueError(f"a {name} in it cannot be matched in bounded time")


def _character(accepts: Callable[[str], bool]) -> _Part:
    def run(at: _Run, begin: _Positions) -> _Positions:
        at.step()
        key = (id(accepts), -1)
        where = at.found.get(key)
        if where is None:
            where = sum(1 << n for n, each in enumerate(at.text) if accepts(each))
            at.found[key] = where
        return (begin & where) << 1

    return run


def _repeated(low: int, high: int, body: _Part) -> _Part:
    def run(at: _Run, begin: _Positions) -> _Positions:
        key = (id(run), begin)
        if key not in at.found:
            at.found[key] = _repeat(at, begin)
        return at.found[key]

    def _repeat(at: _Run, begin: _Positions) -> _Positions:
        for _ in range(low):
            at.step()
            end = body(at, begin)
            if end == begin:
                break
            begin = end
        reached = new = begin
        left = high - low
        while new and (left > 0 or high >= _ENDLESS):
            at.step()
            new = body(at, new) & ~reached
            reached |= new
            left -= 1
        return reached

    return run


def _look(direction: int, tree: Any, inside: _Part, wanted: bool) -> _Part:
    width = tree.getwidth()[0] if direction < 0 else 0

    def run(at: _Run, begin: _Positions) -> _Positions:
        kept = 0
        for position in range(len(at.text) + 1):
            if not begin >> position & 1:
                continue
            at.step()
            start = position - width
            end = inside(at, 1 << start) if start >= 0 else 0
            found = bool(end >> position & 1) if direction < 0 else bool(end)
            if found == wanted:
                kept |= 1 << position
        return kept

    return run


def _place(value: Any, flags: int) -> _Part:
    lines = bool(flags & re.MULTILINE)

    def holds(text: str, position: int) -> bool:
        before, after = text[position - 1 : position] if position else "", text[position : position + 1]
        if value in (_constants.AT_BEGINNING, _constants.AT_BEGINNING_STRING):
            return position == 0 or (lines and value is _constants.AT_BEGINNING and before == "\n")
        if value in (_constants.AT_END, _constants.AT_END_STRING):
            last = position == len(text)
            if value is _constants.AT_END_STRING:
                return last
            return last or (after == "\n" and (lines or position == len(text) - 1))
        boundary = _word(before) != _word(after)
        return boundary == (value is _constants.AT_BOUNDARY)

    def run(at: _Run, begin: _Positions) -> _Positions:
        at.step()
        return sum(1 << n for n in range(len(at.text) + 1) if begin >> n & 1 and holds(at.text, n))

    return run


def _word(character: str) -> bool:
    return character.isalnum() or character == "_"


_CATEGORIES: dict[Any, Callable[[str], bool]] = {
    _constants.CATEGORY_DIGIT: str.isdecimal,
    _constants.CATEGORY_SPACE: str.isspace,
    _constants.CATEGORY_WORD: _word,
    _constants.CATEGORY_NOT_DIGIT: lambda each: not each.isdecimal(),
    _constants.CATEGORY_NOT_SPACE: lambda each: not each.isspace(),
    _constants.CATEGORY_NOT_WORD: lambda each: not _word(each),
}


def _accepts(operation: Any, value: Any, flags: int) -> Callable[[str], bool]:
    if operation is _constants.ANY:
        return lambda each: bool(flags & re.DOTALL) or each != "\n"
    items = value if operation is _constants.IN else [(_constants.LITERAL, value)]
    negated = operation is _constants.NOT_LITERAL or items[0][0] is _constants.NEGATE

    def one(each: str) -> bool:
        for kind, item in items:
            if kind is _constants.LITERAL and ord(each) == item:
                return True
            if kind is _constants.RANGE and item[0] <= ord(each) <= item[1]:
                return True
            if kind is _constants.CATEGORY and _CATEGORIES[item](each):
                return True
        return False

    def accepts(each: str) -> bool:
        cases = {each, each.lower(), each.upper()} if flags & re.IGNORECASE else {each}
        return any(one(case) for case in cases if len(case) == 1) != negated

    return accepts
