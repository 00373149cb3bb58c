"""`"module:function"` in a settings file into the function it names.

Owns no state; imports the user's module, which may do anything. The callable sink and the Spark plugin call it. The
current directory is searched like a script's own directory would be, so that a function beside the settings is found.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from kzconsumer.errors import ConfigError
from kzconsumer.options import nearest


def load_function(reference: str, where: str) -> Callable[..., Any]:
    """The function that `reference` ("package.module:function" or "module:object.method") names.

    `where` begins the line of a fault, for example `"[sink.options] function"`. Raises ConfigError with one line.
    """
    module_name, colon, attribute = reference.partition(":")
    if not colon or not module_name or not attribute:
        raise ConfigError([f'{where}: "{reference}" is not "module:function"'])
    current = os.getcwd()
    if current not in sys.path and "" not in sys.path:
        sys.path.insert(0, current)
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError([f"{where}: cannot import {module_name}: {type(error).__name__}: {error}"]) from error
    for name in attribute.split("."):
        if not hasattr(found, name):
            close = nearest(name, vars(found)) if hasattr(found, "__dict__") else None
            hint = f"; did you mean {close}?" if close else ""
            raise ConfigError([f"{where}: {module_name} has no {attribute}{hint}"])
        found = getattr(found, name)
    if not callable(found):
        raise ConfigError([f"{where}: {reference} is a {type(found).__name__}, not a function"])
    return found  # type: ignore[no-any-return]
