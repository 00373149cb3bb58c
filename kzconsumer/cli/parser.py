"""The parser of every verb: its examples, and errors of one line that suggest the nearest choice."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

EXIT_USAGE = 2


class Parser(argparse.ArgumentParser):
    """`examples` are arguments after the verb. argparse makes the parsers of verbs and actions from this class.

    A verb that needs an action and is given nothing prints its help.
    """

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", _Help)
        super().__init__(*args, **kwargs)
        self.register("action", "parsers", _Verbs)
        self._examples = examples

    @property
    def examples(self) -> list[str]:
        """Complete commands; of a verb with actions the first one of each."""
        of_actions = [line for each in inner_parsers(self) if isinstance(each, Parser) for line in each.examples[:1]]
        return [f"{self.prog} {each}".rstrip() for each in self._examples] or of_actions

    def format_help(self) -> str:
        lines = ["\nexamples:", *self.examples] if self.examples else []
        return super().format_help() + "\n  ".join(lines) + "\n" * bool(lines)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if args == [] and any(isinstance(each, argparse._SubParsersAction) for each in self._actions if each.required):
            self.print_help(sys.stderr)
            self.exit(EXIT_USAGE)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: error: {message}; see {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            from kzconsumer.settings.tables import nearest

            near = nearest(str(value), map(str, action.choices or ()))
            if near is not None:
                error.message += f"; did you mean {near!r}"
            raise


class _Help(argparse.HelpFormatter):
    """Without the line of a placeholder above the verbs."""

    def _format_action(self, action: argparse.Action) -> str:
        if isinstance(action, argparse._SubParsersAction):
            return "".join(map(super()._format_action, action._get_subactions()))
        return super()._format_action(action)


class _Verbs(argparse._SubParsersAction):  # type: ignore[type-arg]  # it has none at run time
    """Without a description of its own, a verb's help begins with its line in the list of verbs."""

    def add_parser(self, name: str, **kwargs: Any) -> Any:
        if line := kwargs.get("help"):
            kwargs.setdefault("description", f"{line[0].upper()}{line[1:]}.")
        return super().add_parser(name, **kwargs)


def whole_number(what: str, least: int = 0, most: float = float("inf")) -> Callable[[str], int]:
    """An argument type; `what` is the end of the error message `'x' is not ...`."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return int(text)

    return read


def seconds(text: str) -> float:
    """An argument type: from a tenth of a second to a day."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.1 <= number <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return number


def inner_parsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """Those of its verbs or actions."""
    actions = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    return [inner for each in actions for inner in each.choices.values()]


def every_parser(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser, and those of its verbs and their actions."""
    yield parser
    for inner in inner_parsers(parser):
        yield from every_parser(inner)
