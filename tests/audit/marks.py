"""Marks which statements are executed: product modules are compiled with a store to a bytearray before each statement.

A tracer would slow down every line of the tests and of the libraries, which take most of the time, by more than half.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

_MARKED: Final = "_marked__"
"""A global of each module, so that functions that Spark's workers get by their code have it. It ends with underscores:
such a name is the same inside of a class."""


class Marks:
    """Of the modules in `folders` of `root` that are imported from now on."""

    def __init__(self, root: Path, folders: Sequence[str]) -> None:
        self.places: list[tuple[str, int]] = []
        """The file, relative to the root, and the line of each mark."""
        self.marked = bytearray()
        """1 for each that was executed. Tests may set it back to 0."""
        self._root = root
        self._folders = tuple(f"{root / folder}/" for folder in folders)

    def install(self) -> None:
        sys.meta_path.insert(0, _Finder(self))

    def take(self) -> bytes:
        """What was executed since the last call."""
        taken = bytes(self.marked)
        self.marked[:] = bytes(len(taken))
        return taken

    def is_ours(self, file: str) -> bool:
        return file.startswith(self._folders)

    def compile(self, source: bytes, file: str) -> CodeType:
        marker = _Marker(self, str(Path(file).relative_to(self._root)))
        return compile(ast.fix_missing_locations(marker.visit(ast.parse(source))), file, "exec", dont_inherit=True)

    def new(self, file: str, line: int) -> int:
        self.places.append((file, line))
        self.marked.append(0)
        return len(self.places) - 1


class _Finder(MetaPathFinder):
    def __init__(self, marks: Marks) -> None:
        self._marks = marks

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or not isinstance(spec.loader, SourceFileLoader) or not self._marks.is_ours(spec.loader.path):
            return None
        spec.loader = _Loader(fullname, spec.loader.path, self._marks)
        return spec


class _Loader(SourceFileLoader):
    """Reads and writes no compiled files."""

    def __init__(self, fullname: str, path: str, marks: Marks) -> None:
        super().__init__(fullname, path)
        self._marks = marks

    def exec_module(self, module: ModuleType) -> None:
        setattr(module, _MARKED, self._marks.marked)
        super().exec_module(module)

    def get_code(self, fullname: str) -> CodeType:
        return self._marks.compile(self.get_data(self.path), self.path)


class _Marker(ast.NodeTransformer):
    def __init__(self, marks: Marks, file: str) -> None:
        self._marks = marks
        self._file = file

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list) and statements:
                setattr(node, name, self._block(statements))
        if isinstance(node, ast.ExceptHandler):  # its own line says which errors it is for
            node.body.insert(0, self._statement(node.lineno))
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        """It may be called by other tests than its statement."""
        self.generic_visit(node)
        store = ast.Attribute(ast.Name(_MARKED, ast.Load()), "__setitem__", ast.Load())
        marked = ast.Call(store, [self._number(node.lineno), ast.Constant(1)], [])
        node.body = ast.Subscript(ast.Tuple([marked, node.body], ast.Load()), ast.Constant(1), ast.Load())
        return node

    def _block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for statement in statements:
            match statement:
                case ast.ImportFrom(module="__future__") | ast.Expr(value=ast.Constant(value=str())):
                    pass  # has to be the first one
                case _:
                    made.append(self._statement(statement.lineno))
            made.append(statement)
        return made

    def _statement(self, line: int) -> ast.stmt:
        target = ast.Subscript(ast.Name(_MARKED, ast.Load()), self._number(line), ast.Store())
        return ast.Assign([target], ast.Constant(1), lineno=line, col_offset=0, end_lineno=line, end_col_offset=0)

    def _number(self, line: int) -> ast.Constant:
        return ast.Constant(self._marks.new(self._file, line))
