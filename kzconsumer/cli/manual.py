"""`kzconsumer manual`: the page kzconsumer(1), made from the parsers themselves, so that it cannot be wrong."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_arguments(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "manual",
        help="print the page kzconsumer(1) for man",
        description="Print the manual page. To read it: kzconsumer manual | man -l -",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    print(page())
    return 0


def page() -> str:
    """The page's source, in man's macros; its date is that of SOURCE_DATE_EPOCH where it is set."""
    from argparse_manpage.manpage import Manpage

    from kzconsumer import __version__
    from kzconsumer.cli.main import whole_parser

    told = {
        "project_name": "kzconsumer",
        "version": __version__,
        "manual_title": "User Commands",
        "description": "a member of ZooKeeper-coordinated Kafka consumer groups",
    }
    return str(Manpage(whole_parser(), _data=told))
