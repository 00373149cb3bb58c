"""Reads a schema in Spark's DDL without Spark, so that columns that JSON is not read as are found before one starts.

What is not understood here is left to Spark's own parser, in the worker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from kzconsumer_spark.columns.avro_and_protobuf import Unsupported

_TOKEN: Final = re.compile(
    r"""(?P<space>(?:\s|--[^\n]*(?:\n|$)|/\*(?:[^*]|\*(?!/))*\*/)+)
    | (?P<word>\w+)
    | `(?P<quoted>(?:[^`]|``)+)`
    | (?P<text>'(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*")
    | (?P<sign>[<>(),:])""",
    re.VERBOSE | re.DOTALL,
)
#: As `json_reading.require_readable` has them, by every name that Spark's parser knows.
READ: Final = frozenset(
    {
        *("tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long"),
        *("float", "real", "double", "decimal", "dec", "numeric"),
        *("boolean", "string", "binary", "variant"),
        *("date", "timestamp", "timestamp_ltz", "timestamp_ntz"),
    }
)


class _Token(NamedTuple):
    kind: str
    text: str


_END: Final = _Token("end", "")


class _NotUnderstood(Exception):
    pass


def require_types(ddl: str) -> None:
    """Raises Unsupported for a type that JSON is not read as, and for names that differ in case only."""
    try:
        faults = _Columns(ddl).faults()
    except _NotUnderstood:
        return
    if faults:
        raise Unsupported(faults[0])


class _Columns:
    def __init__(self, ddl: str) -> None:
        self._tokens = list(_tokens(ddl))
        self._at = 0
        self._faults: list[str] = []

    def faults(self) -> list[str]:
        self._read_columns("")
        if self._next() is not _END:
            raise _NotUnderstood
        return self._faults

    def _read_columns(self, path: str) -> None:
        spelled: dict[str, str] = {}
        while True:
            name = self._name()
            inside = f"{path}.{name}" if path else name
            if (other := spelled.get(name.lower())) is not None:
                self._faults.append(f"columns {other} and {inside} are one to Spark, which ignores case")
            spelled[name.lower()] = inside
            self._has(":")
            self._read_type(inside)
            if self._has("not"):
                self._require("null")
            if self._has("comment") and self._next().kind != "text":
                raise _NotUnderstood
            if not self._has(","):
                return

    def _read_type(self, path: str) -> None:
        kind = self._next()
        match kind.text.lower() if kind.kind == "word" else "":
            case "array":
                self._require("<")
                self._read_type(path)
                self._require(">")
            case "map":
                self._require("<")
                self._read_type(path)
                self._require(",")
                self._read_type(path)
                self._require(">")
            case "struct":
                self._require("<")
                if not self._has(">"):
                    self._read_columns(path)
                    self._require(">")
            case "":
                raise _NotUnderstood
            case "interval":
                words = [kind.text]
                while self._tokens[self._at].kind == "word" and not self._is_at("not", "comment"):
                    words.append(self._next().text)
                self._refuse(path, " ".join(words))
            case name:
                sizes = self._sizes()
                if name == "string" and self._has("collate"):
                    self._name()
                if name not in READ:
                    self._refuse(path, name + sizes)

    def _refuse(self, path: str, kind: str) -> None:
        self._faults.append(f"column {path} is {kind.upper()}, which JSON is not read as; use STRING")

    def _sizes(self) -> str:
        if not self._has("("):
            return ""
        sizes = [self._next().text]
        while self._has(","):
            sizes.append(self._next().text)
        self._require(")")
        return f"({','.join(sizes)})"

    def _name(self) -> str:
        found = self._next()
        if found.kind not in ("word", "quoted"):
            raise _NotUnderstood
        return found.text

    def _next(self) -> _Token:
        found = self._tokens[self._at]
        self._at += found is not _END
        return found

    def _is_at(self, *words: str) -> bool:
        found = self._tokens[self._at]
        return found.kind in ("word", "sign") and found.text.lower() in words

    def _has(self, word: str) -> bool:
        """Go behind it, if it follows."""
        here = self._is_at(word)
        self._at += here
        return here

    def _require(self, word: str) -> None:
        if not self._has(word):
            raise _NotUnderstood


def _tokens(ddl: str) -> Iterator[_Token]:
    at = 0
    while at < len(ddl):
        found = _TOKEN.match(ddl, at)
        if found is None or found.lastgroup is None:
            raise _NotUnderstood
        if found.lastgroup == "quoted":
            yield _Token("quoted", found["quoted"].replace("``", "`"))
        elif found.lastgroup != "space":
            yield _Token(found.lastgroup, found[0])
        at = found.end()
    yield _END
