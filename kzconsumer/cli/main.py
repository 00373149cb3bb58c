"""The command `kzconsumer`: parses the command line, runs one verb, prints its errors.

A verb is a function `add_arguments(subparsers)`, which adds the verb's parser and sets `run` to a function
`(arguments) -> exit status`; None is 0. Further verbs are entry points of the group `kzconsumer.commands`. Only the
module of the verb in use is imported, so that `kzconsumer --config` starts quickly and Ctrl-C has no traceback.

Exit status: 0 success, 1 failure, 2 wrong usage, 3 checked and not healthy, 4 not all could be checked, 74 standard
output cannot be written (what was changed is on standard error), 75 stopped before the end of a run (start it again),
78 wrong configuration (a restart does not help), 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import resource
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, cast

from kzconsumer.version import __version__

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]
    AddArguments = Callable[[Subparsers], None]

EXIT_FAILED = 1
EXIT_CONFIG = 78  # EX_CONFIG of sysexits.h
FEWEST_OPEN_FILES = 64
"""What a member of a small group needs, and more than enough for a command."""

# The core's own verbs, with their lines of `--help`.
_VERBS = {
    "run": ("kzconsumer.cli.verbs:add_run", "consume as a member of the group"),
    "check-config": ("kzconsumer.cli.verbs:add_check_config", "check a configuration file and the sink's options"),
    "plugins": ("kzconsumer.cli.verbs:add_plugins", "list installed assignors, sinks and commands"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; `argv` is without the program's name. Returns the exit status."""
    try:
        return _main(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        return 130


def _main(words: list[str]) -> int:
    from kzconsumer.cli.arguments import EXIT_OUTPUT, abandon_output, install
    from kzconsumer.errors import OutputError

    install()
    try:
        try:
            status = _run(words)
        except (SystemExit, KeyboardInterrupt):
            sys.stdout.flush()
            raise
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # `| head`
        abandon_output()
        return EXIT_FAILED
    except OutputError as error:
        abandon_output()
        report_error(error)
        return EXIT_OUTPUT


def _run(words: list[str]) -> int:
    """Raises OutputError and BrokenPipeError if the result cannot be written."""
    from kzconsumer.errors import OutputError, leaves

    try:
        verb = _verb(words)
        if verb is None and any(word.partition("=")[0] == "--config" for word in words) and not _asks_for_help(words):
            verb = "run"
            words.append(verb)
        parser = whole_parser() if verb is None else _parser_of(verb)
        arguments = parser.parse_args(words)
        _require_open_files()
        return int(_run_of(arguments)(arguments) or 0)
    except Exception as error:
        for each in leaves(error):
            if isinstance(each, OutputError | BrokenPipeError):
                raise each from None
        return report_error(error)


def _require_open_files() -> None:
    """Raises ConfigError. Beyond the limit even an import fails, at any place, with an error that does not name it."""
    from kzconsumer.errors import ConfigError

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= limit < FEWEST_OPEN_FILES:  # RLIM_INFINITY is negative
        raise ConfigError(
            [
                f"this process may open {limit} files and connections, which is too few: at least {FEWEST_OPEN_FILES}, "
                "and more for many brokers (`ulimit -n 1024`, LimitNOFILE= of the unit)"
            ]
        )


def whole_parser(commands: Iterable[AddArguments] | None = None) -> argparse.ArgumentParser:
    """The parser with the arguments of every verb: the core's and `commands`, by default all that are installed."""
    parser, subparsers = _parser(_VERBS)
    if commands is None:
        _add_installed(subparsers)
        _name_missing(parser, subparsers.choices)
    else:
        for add_arguments in commands:
            add_arguments(subparsers)
    return parser


def _add_installed(subparsers: Subparsers) -> None:
    """One that cannot be loaded is listed as such: help must not depend on it."""
    from kzconsumer.errors import PluginError
    from kzconsumer.plugins import COMMANDS, installed

    commands = installed(COMMANDS)
    for name in sorted(commands.names - _VERBS.keys()):
        try:
            _add_command(subparsers, name, commands)
        except PluginError as error:
            subparsers.add_parser(name, help=f"({str(error).replace('%', '%%')})")


def _name_missing(parser: argparse.ArgumentParser, installed: Collection[str]) -> None:
    """Our other distributions' verbs that are not installed stand below the others, with what installs them."""
    from kzconsumer.installation import pip_install
    from kzconsumer.plugins import missing_commands

    lines = [f"{', '.join(names)}: {pip_install(extra)}" for extra, names in missing_commands(installed).items()]
    if lines:
        parser.add_argument_group("not installed", "; ".join(lines))


def _add_command(subparsers: Subparsers, name: str, among: EntryPoints | None = None) -> None:
    """Add the parser of an installed command; `among`: see `plugins.load`.

    Raises PluginError, and then leaves no parser of that name.
    """
    from kzconsumer.errors import PluginError, raised
    from kzconsumer.plugins import COMMANDS, described, load

    add_arguments = cast("AddArguments", load(COMMANDS, name, beside=_VERBS, among=among))
    before = set(subparsers.choices)
    try:
        add_arguments(subparsers)
    except Exception as error:
        subparsers.choices.pop(name, None)
        raise PluginError(f"{described(COMMANDS, name)} failed to add its parser: {raised(error)}") from error
    if name not in subparsers.choices:
        added = " and ".join(f'"{each}"' for each in subparsers.choices if each not in before) or "none"
        raise PluginError(
            f"{described(COMMANDS, name)} must add a parser of its own name: "
            f'subparsers.add_parser("{name}"); it added {added}'
        )


def _parser_of(verb: str) -> argparse.ArgumentParser:
    """The parser with the arguments of one verb; entry points are only looked up if it is not one of the core."""
    parser, subparsers = _parser([verb])
    if verb not in _VERBS:
        from kzconsumer.errors import UnknownPluginError

        if verb.endswith(".toml"):
            parser.error(f"{verb} is not a command; `kzconsumer run {verb}` runs it")
        try:
            _add_command(subparsers, verb)
        except UnknownPluginError as error:
            parser.error(str(error))
    return parser


def _run_of(arguments: argparse.Namespace) -> Callable[[argparse.Namespace], int | None]:
    """Raises PluginError if the parser of a command does not say what to run."""
    run: Callable[[argparse.Namespace], int | None] | None = getattr(arguments, "run", None)
    if run is None:
        from kzconsumer.errors import PluginError
        from kzconsumer.plugins import COMMANDS, described

        plugin = described(COMMANDS, arguments.verb)
        raise PluginError(f"{plugin} does not say what to run: parser.set_defaults(run=function)")
    return run


def _verb(words: Sequence[str]) -> str | None:
    """The first word that is neither an option nor an option's value."""
    left = iter(words)
    for word in left:
        if word in ("--config", "--set"):
            next(left, None)
        elif not word.startswith("-"):
            return word
    return None


def _asks_for_help(words: Sequence[str]) -> bool:
    return not {"-h", "--help", "--version"}.isdisjoint(words)


def _parser(verbs: Collection[str]) -> tuple[argparse.ArgumentParser, Subparsers]:
    """The parser with the core's verbs, of which `verbs` get their arguments."""
    from kzconsumer.cli.arguments import Parser, add_set

    parser: argparse.ArgumentParser = Parser(
        prog="kzconsumer",
        description="Consume Kafka topics as a member of a ZooKeeper-coordinated consumer group.",
        epilog="Exit status: 0 success, 1 failure, 2 wrong usage, 3 checked and not healthy, 4 not all could be "
        "checked, 74 output cannot be written, 75 run not finished, 78 wrong configuration.",
        examples=("run orders.toml", "check-config orders.toml --set log.level=debug"),
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help="the group's TOML file")
    add_set(parser, "flags")
    # Of a command whose parser has no `--config` and `--set` of its own.
    parser.set_defaults(flags_of_verb=[], misused=parser.error)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(dest="verb", required=True, metavar="VERB", title="verbs")
    for name, (place, summary) in _VERBS.items():
        if name in verbs:
            module, _, add_arguments = place.partition(":")
            getattr(importlib.import_module(module), add_arguments)(subparsers)
        else:
            subparsers.add_parser(name, help=summary)
    return parser, subparsers


def report_error(error: Exception) -> int:
    """Print a KzConsumerError, one line for each fault; returns the exit status. Raises any other error again."""
    from kzconsumer.display import printable, redacted_text
    from kzconsumer.errors import ConfigError, KzConsumerError, leaves
    from kzconsumer.logs.setup import just_reported

    found = list(leaves(error))
    if not all(isinstance(each, KzConsumerError) for each in found):
        raise error
    for each in found:
        lines = each.faults if isinstance(each, ConfigError) else [" ".join(str(each).split("\n"))]
        for line in lines:
            if not just_reported(line):
                print(f"kzconsumer: {printable(redacted_text(line))}", file=sys.stderr)
    return EXIT_CONFIG if any(isinstance(each, ConfigError) for each in found) else EXIT_FAILED
