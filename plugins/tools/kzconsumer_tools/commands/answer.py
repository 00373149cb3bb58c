"""The frame of most verbs: run one request, print its result as a table or as JSON."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

EXIT_UNHEALTHY = 3


def add_output(action: argparse.ArgumentParser) -> None:
    action.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")


def whole_number(what: str, least: int = 0, most: float = float("inf")) -> Callable[[str], int]:
    """An argument type; `what` is the end of the error message `'x' is not ...`."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return int(text)

    return read


def ask(request: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """Run `request` to its end; only errors are logged, as lines on standard error."""
    import anyio

    from kzconsumer.logs import setup

    setup.for_one_answer()
    return anyio.run(request, *arguments)


def show(arguments: argparse.Namespace, result: T, table: Callable[[T], str], status: int = 0) -> int:
    """Print the result in the form of `--output`; returns `status`."""
    print(as_text(arguments, result, table), flush=True)
    return status


def as_text(arguments: argparse.Namespace, result: T, table: Callable[[T], str]) -> str:
    return msgspec.json.encode(result).decode() if arguments.output == "json" else table(result)
