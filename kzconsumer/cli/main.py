"""The command `kzconsumer`: reads the command line, runs one verb, turns its errors into lines and an exit status.

Owns no state. A verb is a module of this package with `add_arguments(subparsers)`, which adds the verb's own parser
and sets `run` to a function `(arguments) -> exit status`. Only the module of the verb in use is imported, and nothing
else before `main` runs: `--help` is quick, and Ctrl-C has no traceback. Exit status: 0 fine, 1 failed, 2 wrong usage, 3
looked at and not healthy, 75 stopped before the end of a run (start it again), 78 wrong configuration (restarting will
not help), 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from kzconsumer import __version__

EXIT_FAILED = 1
EXIT_CONFIG = 78  # EX_CONFIG of sysexits.h

_VERBS = {
    "run": ("kzconsumer.cli.run", "consume as a member of the group (the default)"),
    "check-config": ("kzconsumer.cli.check_config", "check a configuration file and the sink's options"),
    "config": ("kzconsumer.cli.config", "turn a configuration of the original consumer into a group's file"),
    "assign": ("kzconsumer.cli.assign", "show who would get what before anyone joins"),
    "groups": ("kzconsumer.cli.groups", "list, describe, verify, examine, delete and clean groups"),
    "offsets": ("kzconsumer.cli.offsets", "show, export and move stored offsets"),
    "consume": ("kzconsumer.cli.consume", "print records, with a group or without"),
    "cluster": ("kzconsumer.cli.cluster", "show brokers and controller"),
    "topics": ("kzconsumer.cli.topics", "list, describe, reassign, delete and configure topics"),
    "lag": ("kzconsumer.cli.lag", "how far a group is behind, in records and in seconds"),
    "top": ("kzconsumer.cli.top", "running daemons in a terminal, as their status tells"),
    "sink": ("kzconsumer.cli.sink", "prove what the destination holds, try the sink's columns"),
    "plugins": ("kzconsumer.cli.plugins", "list installed assignors and sinks"),
    "sandbox": ("kzconsumer.cli.sandbox", "start and stop a real ZooKeeper and Kafka on loopback, make topics in it"),
    "completion": ("kzconsumer.cli.completion", "print what completes the command line in a shell"),
    "manual": ("kzconsumer.cli.manual", "print the page kzconsumer(1) for man"),
    "demo": ("kzconsumer.cli.demo", "show the whole road on servers of its own"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; `argv` is without the program's name. Returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        parser = _parser(words)
        arguments = parser.parse_args(words)
        if arguments.verb is None:
            if arguments.config is None:
                parser.error("nothing to do: give --config FILE, or a verb")
            return main([*words, "run"])
        status = int(arguments.run(arguments))
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `| head` has read enough; what is left to be written at the end goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except Exception as error:
        return told(error)


def whole_parser() -> argparse.ArgumentParser:
    """With every verb's own arguments, which `main` reads for the verb in use only."""
    return _parser(list(_VERBS))


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    from kzconsumer.cli.configuration import add_set

    parser = argparse.ArgumentParser(
        prog="kzconsumer",
        description="Consume Kafka topics as a member of a ZooKeeper-coordinated consumer group.",
        epilog="Exit status: 0 fine, 1 failed, 2 wrong usage, 3 looked at and not healthy, 75 run not at its end, "
        "78 wrong configuration.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help="the group's TOML file")
    add_set(parser, "flags")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    for name, (module, summary) in _VERBS.items():
        if name in words:
            importlib.import_module(module).add_arguments(subparsers)
        else:
            subparsers.add_parser(name, help=summary)
    return parser


def told(error: Exception) -> int:
    """Print an error that a person can act on, one line for each fault; returns the exit status.

    Task groups give several at once. An error that is none of ours on purpose is raised again, for its traceback.
    """
    from kzconsumer.errors import ConfigError, KzConsumerError, leaves
    from kzconsumer.redaction import redacted_text

    found = list(leaves(error))
    if not all(isinstance(each, KzConsumerError) for each in found):
        raise error
    for each in found:
        lines = each.faults if isinstance(each, ConfigError) else [" ".join(str(each).split("\n"))]
        for line in lines:
            print(f"kzconsumer: {redacted_text(line)}", file=sys.stderr)
    return EXIT_CONFIG if any(isinstance(each, ConfigError) for each in found) else EXIT_FAILED
