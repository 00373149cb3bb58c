"""The bugs that a program can make of the decoder's C sources and headers, line by line: bounds, lengths, signs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tests.audit.operators import Mutation

_SLIPS: Final = (
    ("comparison", re.compile(r"(?<=\s)<(?=\s)"), "<="),
    ("comparison", re.compile(r"(?<=\s)<=(?=\s)"), "<"),
    ("comparison", re.compile(r"(?<=\s)>(?=\s)"), ">="),
    ("comparison", re.compile(r"(?<=\s)>=(?=\s)"), ">"),
    ("comparison", re.compile(r"(?<=\s)==(?=\s)"), "!="),
    ("comparison", re.compile(r"(?<=\s)!=(?=\s)"), "=="),
    ("arithmetic", re.compile(r"(?<=\s)\+(?=\s)"), "-"),
    ("arithmetic", re.compile(r"(?<=\s)-(?=\s)"), "+"),
    ("and, or", re.compile(r"&&"), "||"),
    ("and, or", re.compile(r"\|\|"), "&&"),
    ("not removed", re.compile(r"!(?=[a-z(])"), ""),
    ("signedness", re.compile(r"\bint64_t\b"), "uint64_t"),
    ("width", re.compile(r"\bint64_t\b"), "int32_t"),
    ("step", re.compile(r"\+\+"), "--"),
    ("break is continue", re.compile(r"\bbreak;"), "continue;"),
)
_NUMBER: Final = re.compile(r"(?<![\w.\"'])\d+(?![\w.\"'])")
_COMMENT: Final = re.compile(r"//|/\*")
# A jump may be forgotten, too; but without the last `return` of a function its result is whatever the compiler likes.
_STATEMENT: Final = re.compile(
    r"^(?: {4}(?!return\b)| {5,})(?! )(?!(?:case|default|const|static|if|for|while|else)\b|\})[^;{}]*;$"
)
_BEFORE_STATEMENT: Final = re.compile(r"([;{}:)]|\belse|_ALLOW_THREADS)$")
"""What the line before a statement ends with: other lines are continued, and what is left of them is no C."""
_DECLARES: Final = re.compile(r"^ +(?!return\b|goto\b| )(?:\w+ )+\*{0,2}\w+(?:\[\w*\])?(?: = |;|, )")

_ONLY_DECLARES: Final = re.compile(
    r"^ +(?!return\b|goto\b| )(?:\w+ )+\*{0,2}\w+(?:\[\w*\])*(?:, \*{0,2}\w+(?:\[\w*\])*)*;$"
)


def mutations(file: str, source: str) -> list[Mutation]:
    """All of one file, in the order of the text. Declarations, directives and comments are left alone."""
    return sorted(_every(file, source), key=lambda each: (each.start, each.operator, each.after))


def _every(file: str, source: str) -> Iterator[Mutation]:
    begin = 0
    commented = False
    before = ""
    for number, line in enumerate(source.splitlines(keepends=True), 1):
        code = "" if commented else _COMMENT.split(line)[0].rstrip()
        if code[:1] in (" ", "\t") and not _ONLY_DECLARES.match(code):
            for name, start, text, after in _of_line(code, whole=bool(_BEFORE_STATEMENT.search(before))):
                yield Mutation(file, name, "", number, number, begin + start, text, after)
        before = code.strip() or before
        commented = "*/" not in line if commented else line.rfind("/*") > line.rfind("*/")
        begin += len(line)


def _of_line(code: str, *, whole: bool) -> Iterator[tuple[str, int, str, str]]:
    """Operators with place, text before and after. `whole`: a statement that ends in this line begins in it."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', lambda found: '"' * len(found[0]), code)
    for name, pattern, after in _SLIPS:
        for found in pattern.finditer(bare):
            yield name, found.start(), found[0], after
    for found in _NUMBER.finditer(bare):
        yield "constant", found.start(), found[0], str(int(found[0]) + 1)
        if int(found[0]) > 0:
            yield "constant", found.start(), found[0], str(int(found[0]) - 1)
    if whole and _STATEMENT.match(bare) and not _DECLARES.match(bare):
        at = len(code) - len(code.lstrip())
        yield "statement removed", at, code[at:], ";"
