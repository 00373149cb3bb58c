"""`--include REGEX` and `--exclude REGEX`: which groups a verb is about, by their whole names."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable


def add_group_names(action: argparse.ArgumentParser) -> None:
    for flag, what in (("--include", "only groups whose whole name matches"), ("--exclude", "no groups that match")):
        action.add_argument(flag, metavar="REGEX", type=_expression, help=what)


def wanted_groups(arguments: argparse.Namespace) -> Callable[[str], bool]:
    include, exclude = arguments.include, arguments.exclude

    def wanted(group: str) -> bool:
        return (include is None or bool(include.fullmatch(group))) and not (exclude and exclude.fullmatch(group))

    return wanted


def _expression(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from None
