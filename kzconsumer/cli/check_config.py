"""`kzconsumer check-config FILE`: every fault that can be found without a server, one a line."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kzconsumer.errors import ConfigError, SinkFailed

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_arguments(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "check-config",
        help="check a configuration file and the sink's options",
        description="Check a daemon's configuration: the file, the plugins it names, the sink's own options and, where "
        "the sink can tell, whether it could write where they say; nothing is changed. The keys and passwords it names "
        "are read. No server is asked. Exit status 78 when there is a fault.",
    )
    file = parser.add_mutually_exclusive_group()
    file.add_argument("file", metavar="FILE", nargs="?", help="the group's TOML file")
    file.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help="the same")
    parser.set_defaults(run=run, misused=parser.error)


def run(arguments: argparse.Namespace) -> int:
    path = arguments.file or arguments.config
    if path is None:
        arguments.misused("no configuration file given")
    from kzconsumer.config import Settings
    from kzconsumer.network.security import load_security
    from kzconsumer.plugins import ASSIGNORS, load_chosen
    from kzconsumer.sinks.configured import look_at_sink

    settings = Settings.load(path)
    faults: list[str] = []
    try:
        load_chosen(ASSIGNORS, settings.group.assignor, f"{settings.source}: [group] assignor")
    except ConfigError as error:
        faults += error.faults
    try:
        look_at_sink(settings)
    except ConfigError as error:
        faults += error.faults
    except SinkFailed as error:
        faults.append(f"{settings.source}: {error}")
    try:
        load_security(settings.brokers, settings.source)
    except ConfigError as error:
        faults += error.faults
    if faults:
        raise ConfigError(faults)
    print(f"{path}: no fault found")
    return 0
