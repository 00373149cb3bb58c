"""`kzconsumer completion SHELL`: the completion script, generated from the argument parsers."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction
    from collections.abc import Iterable

    from kzconsumer.cli.main import AddArguments

SHELLS = "bash", "zsh", "fish"


def add_arguments(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "completion",
        help="print the completion script of a shell",
        description="Print the completion script of a shell, for the directory from which it loads such scripts.",
        epilog="bash: /etc/bash_completion.d/kzconsumer. zsh: a directory of $fpath, as _kzconsumer. fish: "
        "~/.config/fish/completions/kzconsumer.fish.",
    )
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    print(script(arguments.shell))
    return 0


def script(shell: str, commands: Iterable[AddArguments] | None = None) -> str:
    """The completion script for one of `SHELLS`; `commands` as for `whole_parser`."""
    import shtab

    from kzconsumer.cli.main import whole_parser

    return str(shtab.complete(with_files(whole_parser(commands)), shell))


def with_files(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Complete arguments called FILE, DIR or FOLDER by file names, in all verbs."""
    import shtab

    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                with_files(inner)
        elif action.metavar == "FILE":
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in ("DIR", "FOLDER"):
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    return parser
