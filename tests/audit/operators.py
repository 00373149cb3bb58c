"""The bugs that a program can make of one source file: small slips, each at one place of the text.

They are the slips of a tired engineer: a bound that is off by one, an operand, an argument or a statement that is
missing, the wrong branch, the first for the last. Texts of log lines and errors, annotations and docstrings are left
alone.
"""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from typing import Final

import msgspec

_COMPARED: Final = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_COMPUTED: Final = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
}
_CALLED: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
_ANY_ORDER: Final = frozenset({"min", "max", "suppress"})
_LOGS: Final = frozenset({"debug", "info", "warning", "error", "exception", "log"})


class Mutation(msgspec.Struct, frozen=True):
    """`before`, at `start` of the text of `file`, becomes `after`. `first` to `last` are the lines of its statement."""

    file: str
    operator: str
    function: str
    """The qualified name of the function it is in; empty for what the module's import executes, as defaults."""
    first: int
    last: int
    start: int
    before: str
    after: str

    def plant(self, source: str) -> str:
        end = self.start + len(self.before)
        if source[self.start : end] != self.before:
            raise ValueError(f"{self.file}:{self.first} is not what it was when this bug was made")
        return source[: self.start] + self.after + source[end:]


def mutations(file: str, source: str) -> list[Mutation]:
    """All of one Python file, in the order of the text."""
    found = _Finder(file, source)
    found.block(ast.parse(source).body)
    return sorted(set(found.made), key=lambda each: (each.start, each.operator, each.after))


class _Finder:
    def __init__(self, file: str, source: str) -> None:
        self.made: list[Mutation] = []
        self._file = file
        self._source = source
        self._names: list[str] = []
        self._in_function = False
        self._lines = (0, 0)
        self._bytes = [line.encode() for line in source.splitlines(keepends=True)]
        self._begins = [0]
        for line in source.splitlines(keepends=True):
            self._begins.append(self._begins[-1] + len(line))

    # Statements.

    def block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if node.name not in ("__repr__", "__str__"):
                    self._scope(node, function=True)
                return
            case ast.ClassDef():
                if not any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases):
                    self._scope(node, function=False)
                return
            case ast.Import() | ast.ImportFrom() | ast.Assert() | ast.Global() | ast.Nonlocal() | ast.Pass():
                return
            case ast.Expr(value=ast.Constant()):
                return  # a docstring, or `...`
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                return
        self._lines = (node.lineno, self._head_ends(node))
        self._removed(node)
        if _is_logged(node):
            return
        match node:
            case ast.Raise():
                return  # its removal is enough: the rest is mostly text
            case ast.If():
                self._replace(node.test, "condition negated", f"not ({self._text(node.test)})")
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                self._replace(value, "returns None", "None")
            case ast.Continue():
                self._replace(node, "continue is break", "break")
            case ast.Break():
                self._replace(node, "break is continue", "continue")
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_comment"):
                continue
            if name in ("body", "orelse", "finalbody"):
                self.block(value)
            elif name == "handlers":
                for handler in value:
                    self._handler(handler)
            elif name == "cases":
                for case in value:
                    if case.guard is not None:
                        self._expression(case.guard)
                    self.block(case.body)
            elif isinstance(value, list):
                for each in value:
                    self._inside(each)
            else:
                self._inside(value)

    def _scope(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, *, function: bool) -> None:
        outer = self._in_function
        if not isinstance(node, ast.ClassDef):
            self._lines = (node.lineno, node.lineno)
            for default in (*node.args.defaults, *(each for each in node.args.kw_defaults if each is not None)):
                self._expression(default)
        self._names.append(node.name)
        self._in_function = outer or function
        self.block(node.body)
        self._in_function = outer
        self._names.pop()

    def _handler(self, node: ast.ExceptHandler) -> None:
        self._lines = (node.lineno, node.lineno)
        if isinstance(node.type, ast.Tuple):
            for left_out in node.type.elts:
                kept = ", ".join(self._text(each) for each in node.type.elts if each is not left_out)
                self._replace(node.type, "one exception is not caught", f"({kept},)")
        self.block(node.body)

    def _removed(self, node: ast.stmt) -> None:
        """A statement that has an effect is missing."""
        effect = (
            (isinstance(node, ast.Expr) and not _is_logged(node))
            or (isinstance(node, ast.AugAssign | ast.Delete | ast.Raise) and self._in_function)
            or (isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name | ast.Tuple))
        )
        if effect and self._in_function and not _yields(node):
            self._replace(node, "statement removed", "pass")

    def _head_ends(self, node: ast.stmt) -> int:
        body = getattr(node, "body", None) or getattr(node, "cases", None)
        if not body:
            return node.end_lineno or node.lineno
        first = body[0].body[0] if isinstance(body[0], ast.match_case) else body[0]
        return max(node.lineno, first.lineno - 1)

    # Expressions.

    def _inside(self, node: object) -> None:
        if isinstance(node, ast.expr):
            self._expression(node)
        elif isinstance(node, ast.withitem):
            self._expression(node.context_expr)

    def _expression(self, node: ast.expr) -> None:
        match node:
            case ast.JoinedStr():
                return
            case ast.Lambda():
                self._expression(node.body)
                return
            case ast.Constant():
                self._constant(node)
                return
            case ast.Compare():
                terms = [node.left, *node.comparators]
                for left, operator, right in zip(terms, node.ops, terms[1:], strict=False):
                    self._between(left, right, "comparison", *_COMPARED[type(operator)])
            case ast.BinOp() if type(node.op) in _COMPUTED and not _is_text(node.left) and not _is_text(node.right):
                self._between(node.left, node.right, "arithmetic", *_COMPUTED[type(node.op)])
            case ast.BoolOp():
                self._and_or(node)
            case ast.UnaryOp(op=ast.Not()):
                self._replace(node, "not removed", f"({self._text(node.operand)})")
            case ast.IfExp():
                swapped = f"{self._text(node.orelse)} if {self._text(node.test)} else {self._text(node.body)}"
                self._replace(node, "branches swapped", swapped)
            case ast.Call():
                self._call(node)
            case ast.Subscript():
                self._subscript(node)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                self._comprehension(node)
                return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.keyword):
                self._expression(child.value)
            elif isinstance(child, ast.expr):
                self._expression(child)

    def _constant(self, node: ast.Constant) -> None:
        match node.value:
            case bool():
                self._replace(node, "constant", str(not node.value))
            case int():
                self._replace(node, "constant", str(node.value + 1))
                if node.value > 0:
                    self._replace(node, "constant", str(node.value - 1))
            case float():
                self._replace(node, "constant", repr(node.value * 2 or 1.0))

    def _and_or(self, node: ast.BoolOp) -> None:
        word = "and" if isinstance(node.op, ast.And) else "or"
        texts = [self._text(each) for each in node.values]
        for left_out in range(len(texts)):
            kept = f" {word} ".join(text for number, text in enumerate(texts) if number != left_out)
            self._replace(node, "operand removed", f"({kept})")
        other = "or" if word == "and" else "and"
        for left, right in pairwise(node.values):
            self._between(left, right, "and, or", word, other)

    def _call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in _CALLED:
            self._replace(node.func, "another function", _CALLED[node.func.id])
        given = node.args
        if any(isinstance(each, ast.Starred) for each in given):
            return
        in_any_order = isinstance(node.func, ast.Name) and node.func.id in _ANY_ORDER
        for left, right in () if in_any_order else pairwise(given):
            if self._text(left) != self._text(right) and not isinstance(left, ast.GeneratorExp):
                start, middle, end = self._at(left), self._end(left), self._end(right)
                after = self._text(right) + self._source[middle : self._at(right)] + self._text(left)
                self._make("arguments swapped", start, end, after)
        for keyword in node.keywords:
            if keyword.arg is not None and (given or len(node.keywords) > 1):
                start, end = self._at(keyword), self._end(keyword)
                tail = re.match(r"\s*,\s*", self._source[end:])
                head = re.search(r",\s*$", self._source[:start])
                if tail:
                    self._make("argument removed", start, end + tail.end(), "")
                elif head:
                    self._make("argument removed", head.start(), end, "")

    def _subscript(self, node: ast.Subscript) -> None:
        match node.slice:
            case ast.Slice(lower=lower, upper=upper):
                for bound in (lower, upper):
                    if bound is not None:
                        self._replace(bound, "bound of a slice removed", "")
            case ast.Constant(value=0):
                self._replace(node.slice, "last for first", "-1")
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1)):
                self._replace(node.slice, "first for last", "0")

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        if isinstance(node, ast.DictComp):
            self._expression(node.key)
            self._expression(node.value)
        else:
            self._expression(node.elt)
        for part in node.generators:
            self._expression(part.iter)
            for condition in part.ifs:
                self._replace(condition, "filter removed", "True")
                self._expression(condition)

    # Text.

    def _between(self, left: ast.expr, right: ast.expr, name: str, word: str, other: str) -> None:
        """The operator stands between two operands, perhaps with parentheses and comments around it."""
        begin = self._end(left)
        gap = self._source[begin : self._at(right)]
        words = r"\s+".join(map(re.escape, word.split()))
        pattern = rf"\b{words}\b" if word[0].isalpha() else words
        if (found := re.search(pattern, gap)) and "#" not in gap:
            self._make(name, begin + found.start(), begin + found.end(), other)

    def _replace(self, node: ast.expr | ast.stmt, name: str, after: str) -> None:
        self._make(name, self._at(node), self._end(node), after)

    def _make(self, name: str, start: int, end: int, after: str) -> None:
        before = self._source[start:end]
        first, last = self._lines
        function = ".".join(self._names) if self._in_function else ""
        self.made.append(Mutation(self._file, name, function, first, last, start, before, after))

    def _text(self, node: ast.expr) -> str:
        text = self._source[self._at(node) : self._end(node)]
        return f"({text})" if isinstance(node, ast.NamedExpr | ast.IfExp) else text

    def _at(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        return self._offset(node.lineno, node.col_offset)

    def _end(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._offset(node.end_lineno, node.end_col_offset)

    def _offset(self, line: int, column: int) -> int:
        """`ast` counts columns in bytes of UTF-8."""
        return self._begins[line - 1] + len(self._bytes[line - 1][:column].decode())


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_logged(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr))):
            return name in ("log", "logger", "console") and attr in (*_LOGS, "print")
    return False


def _yields(node: ast.stmt) -> bool:
    return any(isinstance(each, ast.Yield | ast.YieldFrom) for each in ast.walk(node))
