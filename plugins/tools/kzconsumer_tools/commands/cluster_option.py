"""Which ZooKeeper, brokers and group a verb is about: `--zookeeper CONNECT`, or a group's file.

Owns no state. Shared by the verbs that look at groups from outside.
"""

from __future__ import annotations

import argparse
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from kzconsumer.cli.configuration import add_config, flags_given, layers_given

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from kzconsumer.offsets.authority import Storage
    from kzconsumer.settings.sections import BrokersSettings, ZooKeeperSettings
    from kzconsumer_tools.groups.cluster_access import Outside
    from kzconsumer_tools.offsets.view import SeenGroup


class Target(NamedTuple):
    """`group` is the one named, or that of the file, `storage` where it keeps offsets; `source` begins faults of the
    file."""

    zookeeper: ZooKeeperSettings
    brokers: BrokersSettings
    group: str | None
    source: str
    storage: Storage = "zookeeper"

    def outside(self) -> AbstractAsyncContextManager[Outside]:
        """One errand there."""
        from kzconsumer_tools.groups.cluster_access import outside

        return outside(self.zookeeper, self.brokers, self.source)

    async def seen(self, group: str) -> SeenGroup:
        """The group with the offsets that count; no broker is asked where those are ZooKeeper's."""
        from kzconsumer_tools.groups.nodes import facts
        from kzconsumer_tools.groups.reader import nodes_of, read_nodes, require_group
        from kzconsumer_tools.offsets.view import SeenGroup, see

        if self.storage == "zookeeper":
            nodes = await read_nodes(self.zookeeper, group)
            return SeenGroup(nodes, facts(nodes), {})
        async with self.outside() as outside:
            await require_group(outside.session, self.zookeeper.connect, group)
            return await see(outside, await nodes_of(outside.session, group), self.storage)


def add_target(action: argparse.ArgumentParser, *, output: bool = True) -> None:
    """The options that say where, and the form of the answer."""
    action.add_argument("--zookeeper", metavar="CONNECT", type=connect_string, help="such as zk1:2181,zk2:2181/kafka")
    add_config(action, "or a group's TOML file")
    if output:
        action.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")


def add_group(action: argparse.ArgumentParser) -> None:
    action.add_argument("group", metavar="GROUP", nargs="?", type=group_name, help="default: the one of --config")


def add_storage(action: argparse.ArgumentParser) -> None:
    action.add_argument(
        "--storage",
        choices=("zookeeper", "kafka", "both"),
        help="where the group keeps its offsets: both is dual commit (default: as --config says, else zookeeper)",
    )


def target(arguments: argparse.Namespace) -> Target:
    """Where to look; `group` may be None still. Ends with status 2 when nothing, or two things, say where."""
    from kzconsumer.settings.sections import BrokersSettings, ZooKeeperSettings
    from kzconsumer.settings.settings import Settings

    named: str | None = getattr(arguments, "group", None)
    storage: Storage | None = getattr(arguments, "storage", None)
    if arguments.zookeeper is not None and arguments.config is not None:
        arguments.misused("--zookeeper and --config both name a ZooKeeper; give one of them")
    if arguments.zookeeper is not None:
        if flags_given(arguments):
            arguments.misused("--set is about what a group's file says; give --config FILE with it")
        return Target(
            ZooKeeperSettings(connect=arguments.zookeeper),
            BrokersSettings(),
            named,
            "--zookeeper",
            storage or "zookeeper",
        )
    if arguments.config is None:
        arguments.misused("no ZooKeeper named; give --zookeeper CONNECT, or --config FILE")
    settings = Settings.of(layers_given(arguments))
    storage = storage or settings.offsets.kept_in
    return Target(settings.zookeeper, settings.brokers, named or settings.group.id, settings.source, storage)


def again(arguments: argparse.Namespace) -> str:
    """The option that says where, for a command that is to be copied."""
    option, value = (
        ("--config", arguments.config) if arguments.zookeeper is None else ("--zookeeper", arguments.zookeeper)
    )
    return f"{option} {quote(value)}"


def required_group(arguments: argparse.Namespace, at: Target) -> str:
    return at.group or arguments.misused("no group named; give GROUP, or --config FILE")


def connect_string(text: str) -> str:
    from kzconsumer.settings.values import read_connect

    try:
        return read_connect(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} {error}") from None


def group_name(text: str) -> str:
    if not text or "/" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a group")
    return text
