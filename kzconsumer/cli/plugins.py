"""`kzconsumer plugins`: the installed plugins, without importing them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_arguments(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "plugins",
        help="list installed assignors, sinks and commands",
        description="List installed assignors, sinks and commands: kind, name, object; by the distribution of each.",
        examples=("",),
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from kzconsumer.plugins import ASSIGNORS, COMMANDS, SINKS, kind, list_plugins

    found = [plugin for group in (ASSIGNORS, SINKS, COMMANDS) for plugin in list_plugins(group)]
    for distribution in sorted({plugin.distribution for plugin in found}):
        print(distribution)
        brought = [plugin for plugin in found if plugin.distribution == distribution]
        width = max(len(plugin.name) for plugin in brought)
        for plugin in brought:
            print(f"  {kind(plugin.group):<8}  {plugin.name:<{width}}  {plugin.value}")
    return 0
