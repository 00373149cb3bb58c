"""`kzconsumer plugins`: what is installed, by whom. Nothing is imported for it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_arguments(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "plugins",
        help="list installed assignors and sinks",
        description="List installed assignors and sinks: entry-point group, name, object, distribution.",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from kzconsumer.plugins import ASSIGNORS, SINKS, list_plugins

    found = [*list_plugins(ASSIGNORS), *list_plugins(SINKS)]
    rows = [("GROUP", "NAME", "OBJECT", "DISTRIBUTION")]
    rows += [(plugin.group, plugin.name, plugin.value, plugin.distribution) for plugin in found]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0
