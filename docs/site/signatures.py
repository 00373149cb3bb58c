"""Signatures in the reference as editors show them, from what griffe reads in the source."""

from __future__ import annotations

import re
from typing import Any

import griffe


class AsEditorsShow(griffe.Extension):
    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        """A context manager's result is that of its call; an alias for words is these words."""
        if any(str(each.value).endswith("asynccontextmanager") for each in func.decorators):
            func.labels.discard("async")
            yielded = func.returns.slice if isinstance(func.returns, griffe.ExprSubscript) else func.returns
            func.returns = griffe.ExprSubscript(griffe.ExprName("AbstractAsyncContextManager", parent=func), yielded)
        for parameter in func.parameters:
            if isinstance(parameter.annotation, griffe.ExprName):
                alias = func.module.members.get(parameter.annotation.name)
                if isinstance(alias, griffe.Attribute) and str(alias.value).startswith("Literal["):
                    parameter.annotation = alias.value

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Of an attribute the type, and not the expression that the constructor assigns."""
        constructor = cls.members.get("__init__")
        parameters = constructor.parameters if isinstance(constructor, griffe.Function) else griffe.Parameters()
        for attribute in cls.members.values():
            if not isinstance(attribute, griffe.Attribute) or "class-attribute" in attribute.labels:
                continue
            if attribute.annotation is None and str(attribute.value) in parameters:
                attribute.annotation = parameters[str(attribute.value)].annotation
            if attribute.annotation is not None:
                attribute.value = None

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Docstrings name pages as files of the tree."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"(?<!`)\bdocs/([\w-]+)\.md", r"[\1.md](\1.md)", obj.docstring.value)
