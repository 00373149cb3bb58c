"""`kzconsumer completion`: the scripts with which shells complete words, also names of groups and topics."""

from __future__ import annotations

import argparse
import re
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction
    from collections.abc import Iterable

    from kzconsumer.cli.main import AddArguments
    from kzconsumer_tools.commands.cluster_option import ClusterOption


SHELLS = "bash", "zsh", "fish"
KINDS = "groups", "topics", "contexts"
_KIND_OF = {"GROUP": "groups", "FROM": "groups", "TO": "groups", "TOPIC": "topics", "CONTEXT": "contexts"}
# Anybody who may write to ZooKeeper can name a group `$(command)`.
_WORD = re.compile(r"[\w.@%+=:,-]+", re.ASCII)
# Seconds for ZooKeeper's answer: a shell waits for it at every Tab.
LIMIT = 1.0

# What the line says about the cluster counts, such as --zookeeper.
_FUNCTIONS = {
    "bash": """_kzconsumer_KIND() { compgen -W "$(kzconsumer completion KIND "$COMP_LINE" 2>/dev/null)" -- "$1"; }""",
    "zsh": """_kzconsumer_KIND() { compadd -- ${(f)"$(kzconsumer completion KIND "$words" 2>/dev/null)"} }""",
    "fish": """function _kzconsumer_KIND; kzconsumer completion KIND (commandline -p) 2>/dev/null; end""",
}


def add_completion(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "completion",
        help="print the completion script of a shell",
        description="Print the completion script of a shell, for the directory from which it loads such scripts. It "
        "completes names of groups, topics and contexts, too: those of the cluster that the command would use, if it "
        "answers within a second.",
        epilog="bash: /etc/bash_completion.d/kzconsumer. zsh: a directory of $fpath, as _kzconsumer. fish: "
        "~/.config/fish/completions/kzconsumer.fish.",
        examples=(
            "bash > ~/.local/share/bash-completion/completions/kzconsumer",
            'zsh > "${fpath[1]}/_kzconsumer"',
            "fish > ~/.config/fish/completions/kzconsumer.fish",
        ),
    )
    choices = (*SHELLS, *KINDS)
    about = f"{', '.join(SHELLS)}; or {', '.join(KINDS)}"
    parser.add_argument("what", metavar="SHELL", type=_shell_or_kind, choices=choices, help=about)
    parser.add_argument("line", metavar="LINE", nargs="?", default="", help="the command that is being completed")
    parser.set_defaults(run=run_completion)


def _shell_or_kind(text: str) -> str:
    if text not in SHELLS + KINDS:
        raise argparse.ArgumentTypeError(f"{text!r} has no completion script; these have one: {', '.join(SHELLS)}")
    return text


def run_completion(arguments: argparse.Namespace) -> int:
    lines = [script(arguments.what)] if arguments.what in SHELLS else names(arguments.what, arguments.line)
    print(*lines, sep="\n", end="\n" if lines else "")
    return 0


def names(kind: str, line: str) -> list[str]:
    """The names of a kind for the cluster of an unfinished command; none after any failure.

    bash expands the words that it is offered: a name in which a shell would find more than a word is left out.
    """
    import anyio

    from kzconsumer.logs import setup
    from kzconsumer_tools import contexts
    from kzconsumer_tools.commands.cluster_option import add_cluster_option, cluster_option

    if kind == "contexts":
        return contexts.names()
    parser = argparse.ArgumentParser(add_help=False)
    add_cluster_option(parser, output=False)
    parser.set_defaults(config=None, flags=[])
    setup.configure("critical", "line")
    try:
        at = cluster_option(parser.parse_known_args(shlex.split(line))[0])
        return list(filter(_WORD.fullmatch, anyio.run(_names, at, kind)))
    except (Exception, SystemExit):  # a line that is wrong, a server that is down: a shell shows nothing
        return []


async def _names(at: ClusterOption, kind: str) -> list[str]:
    import anyio

    from kzconsumer.registry import paths

    with anyio.move_on_after(LIMIT):
        async with at.access() as access:
            return await (
                access.session.children(paths.CONSUMERS) if kind == "groups" else (await access.topics()).names()
            )
    return []


def script(shell: str, commands: Iterable[AddArguments] | None = None) -> str:
    """The completion script for one of `SHELLS`; `commands` as for `whole_parser`."""
    import shtab

    from kzconsumer.cli.main import whole_parser

    functions = "\n".join(_FUNCTIONS[shell].replace("KIND", kind) for kind in KINDS)
    return str(shtab.complete(with_candidates(whole_parser(commands)), shell, preamble=functions))


def with_candidates(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Complete arguments called FILE, DIR or FOLDER by file names, GROUP and so on by names, in all verbs."""
    import shtab

    from kzconsumer.cli.arguments import every_parser

    for action in [action for each in every_parser(parser) for action in each._actions]:
        if action.metavar == "FILE":
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif (kind := _KIND_OF.get(str(action.metavar))) is not None:
            function = f"_kzconsumer_{kind}"
            action.complete = {"bash": function, "zsh": function, "fish": f"({function})"}  # type: ignore[attr-defined]
        elif action.metavar in ("DIR", "FOLDER"):
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    return parser
