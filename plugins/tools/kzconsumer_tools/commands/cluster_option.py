"""The options that say which cluster and group a verb is about: `--zookeeper CONNECT` or `--config FILE`, and GROUP."""

from __future__ import annotations

import argparse
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from kzconsumer.cli.configuration import add_config, flags_given, layers_given
from kzconsumer.offsets.authority import Storage
from kzconsumer.settings.sections import BrokersSettings, ZooKeeperSettings
from kzconsumer.settings.settings import Settings
from kzconsumer.settings.values import read_connect
from kzconsumer_tools.commands.answer import add_output

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from kzconsumer_tools.groups.cluster_access import ClusterAccess
    from kzconsumer_tools.offsets.view import GroupView


class ClusterOption(NamedTuple):
    """The chosen cluster and group; `storage` is where the group keeps its offsets, `source` begins error messages."""

    zookeeper: ZooKeeperSettings
    brokers: BrokersSettings
    group: str | None
    source: str
    storage: Storage = "zookeeper"

    def access(self) -> AbstractAsyncContextManager[ClusterAccess]:
        from kzconsumer_tools.groups.cluster_access import cluster_access

        return cluster_access(self.zookeeper, self.brokers, self.source)

    async def view(self, group: str) -> GroupView:
        """The group with its effective offsets; brokers are asked only if they store offsets of it."""
        from kzconsumer_tools.groups.reader import nodes_of, read_nodes, require_group
        from kzconsumer_tools.offsets.view import read_view, view_of

        if self.storage == "zookeeper":
            return view_of(await read_nodes(self.zookeeper, group))
        async with self.access() as access:
            await require_group(access.session, self.zookeeper.connect, group)
            return await read_view(access, await nodes_of(access.session, group), self.storage)


def add_cluster_option(action: argparse.ArgumentParser, *, output: bool = True) -> None:
    """`--zookeeper` and `--config`, and `--output` unless the verb has its own."""
    action.add_argument("--zookeeper", metavar="CONNECT", type=connect_string, help="such as zk1:2181,zk2:2181/kafka")
    add_config(action, "or a group's TOML file")
    if output:
        add_output(action)


def add_group(action: argparse.ArgumentParser) -> None:
    action.add_argument("group", metavar="GROUP", nargs="?", type=group_name, help="default: the one of --config")


def add_storage(action: argparse.ArgumentParser) -> None:
    action.add_argument(
        "--storage",
        choices=("zookeeper", "kafka", "both"),
        help="where the group's offsets are stored; both: dual commit (default: as --config says, else zookeeper)",
    )


def check_cluster_option(arguments: argparse.Namespace) -> None:
    """End with status 2 unless exactly one of `--zookeeper` and `--config` is given."""
    if arguments.zookeeper is None and arguments.config is None:
        arguments.misused("no ZooKeeper named; give --zookeeper CONNECT, or --config FILE")
    if arguments.zookeeper is not None and arguments.config is not None:
        arguments.misused("--zookeeper and --config both name a ZooKeeper; give one of them")
    if arguments.zookeeper is not None and flags_given(arguments):
        arguments.misused("--set changes what a group's file says; give --config FILE with it")


def cluster_option(arguments: argparse.Namespace) -> ClusterOption:
    """The chosen cluster; `group` may be None. Raises ConfigError; ends with status 2 on wrong usage."""
    check_cluster_option(arguments)
    group: str | None = getattr(arguments, "group", None)
    storage: Storage | None = getattr(arguments, "storage", None)
    if arguments.zookeeper is not None:
        zookeeper = ZooKeeperSettings(connect=arguments.zookeeper)
        return ClusterOption(zookeeper, BrokersSettings(), group, "--zookeeper", storage or "zookeeper")
    settings = Settings.of(layers_given(arguments))
    dual = settings.offsets.storage == "kafka" and settings.offsets.dual_commit
    storage = storage or ("both" if dual else settings.offsets.storage)
    return ClusterOption(settings.zookeeper, settings.brokers, group or settings.group.id, settings.source, storage)


def cluster_flags(arguments: argparse.Namespace) -> str:
    """The option as it was given, for a command that the operator can copy."""
    if arguments.zookeeper is None:
        return f"--config {quote(arguments.config)}"
    return f"--zookeeper {quote(arguments.zookeeper)}"


def required_group(arguments: argparse.Namespace, at: ClusterOption) -> str:
    return at.group or arguments.misused("no group named; give GROUP, or --config FILE")


def connect_string(text: str) -> str:
    try:
        return read_connect(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} {error}") from None


def group_name(text: str) -> str:
    if not text or "/" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a group")
    return text
