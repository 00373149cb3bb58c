"""`kzconsumer manual`: the page kzconsumer(1), generated from the argument parsers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from argparse import _SubParsersAction
    from collections.abc import Iterable

    from kzconsumer.cli.main import AddArguments


def add_manual(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "manual",
        help="print the manual page kzconsumer(1)",
        description="Print the manual page. To read it: kzconsumer manual | man -l -",
        examples=("| man -l -",),
    )
    parser.set_defaults(run=run_manual)


def run_manual(arguments: argparse.Namespace) -> int:
    print(page())
    return 0


def page(commands: Iterable[AddArguments] | None = None) -> str:
    """The page in man's format, dated by SOURCE_DATE_EPOCH if that is set; `commands` as for `whole_parser`."""
    from argparse_manpage.manpage import Manpage

    from kzconsumer import __version__
    from kzconsumer.cli.arguments import Parser, every_parser, inner_parsers
    from kzconsumer.cli.main import whole_parser

    parser = whole_parser(commands)
    verbs = [each for each in every_parser(parser) if isinstance(each, Parser) and not inner_parsers(each)]
    examples = "\n".join(line for each in verbs for line in each.examples)
    data = {
        "project_name": "kzconsumer",
        "version": __version__,
        "manual_title": "User Commands",
        "description": "a member of ZooKeeper-coordinated Kafka consumer groups",
    }
    manual = Manpage(parser, _data=data)
    # In man's format a backslash is \\e, and an unescaped dash is typographical.
    manual.add_section("examples", ">", ".nf\n{}\n.fi".format(examples.replace("\\", "\\e").replace("-", "\\-")))
    return str(manual)
