"""The parser of every verb: an error is one line that suggests the nearest choice and names the help."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """argparse makes the parsers of verbs and actions from the same class."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}; see {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            from kzconsumer.settings.tables import nearest

            near = nearest(str(value), map(str, action.choices or ()))
            if near is not None:
                error.message += f"; did you mean {near!r}"
            raise
