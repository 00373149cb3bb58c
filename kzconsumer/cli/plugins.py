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
        description="List installed assignors and sinks by the distribution that brings them: kind, name, object.",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from kzconsumer.cli.text_table import columns
    from kzconsumer.plugins import ASSIGNORS, SINKS, list_plugins

    kinds = {ASSIGNORS: "assignor", SINKS: "sink"}
    found = [*list_plugins(ASSIGNORS), *list_plugins(SINKS)]
    for distribution in sorted({plugin.distribution for plugin in found}):
        print(distribution)
        mine = [plugin for plugin in found if plugin.distribution == distribution]
        for line in columns([("", kinds[plugin.group], plugin.name, plugin.value) for plugin in mine], right=()):
            print(line)
    return 0
