"""Which cluster and group a verb is about.

The cluster is that of `--zookeeper CONNECT`, `--config FILE` or `--context CONTEXT`; else that of
KZCONSUMER__ZOOKEEPER__CONNECT; else that of the current context. `--set` and, without `--context`, the variables
KZCONSUMER__... add to it.
"""

from __future__ import annotations

import argparse
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from kzconsumer.cli.arguments import add_config, flags_given
from kzconsumer.offsets.start_rules import Storage
from kzconsumer.settings.layers import VARIABLE, Layers
from kzconsumer.settings.sections import BrokersSettings, ZooKeeperSettings
from kzconsumer.settings.settings import Settings, layers_of, toml_value
from kzconsumer.settings.value_readers import read_broker, read_connect
from kzconsumer_tools import contexts
from kzconsumer_tools.commands.output_and_options import add_output

_CONNECT = ("zookeeper", "connect")

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from kzconsumer_tools.cluster.description import TopicDescription
    from kzconsumer_tools.groups.cluster_access import ClusterAccess
    from kzconsumer_tools.groups.group_nodes import GroupNodes
    from kzconsumer_tools.offsets.prepare import GroupView


class ClusterOption(NamedTuple):
    """The chosen cluster and group; `storage` is where the group keeps its offsets, `source` begins error messages."""

    zookeeper: ZooKeeperSettings
    brokers: BrokersSettings
    group: str | None
    source: str
    storage: Storage = "zookeeper"

    def access(self, more: float = 0.0) -> AbstractAsyncContextManager[ClusterAccess]:
        """As `cluster_access`."""
        from kzconsumer_tools.groups.cluster_access import cluster_access

        return cluster_access(self.zookeeper, self.brokers, self.source, self.group, more)

    async def nodes(self, group: str) -> GroupNodes:
        """As `read_nodes`."""
        from kzconsumer_tools.groups.cluster_access import read_nodes

        return await read_nodes(self, group)

    async def view(self, group: str) -> GroupView:
        """The group with its effective offsets; brokers are asked only if they store offsets of it."""
        from kzconsumer_tools.groups.group_reader import require_group
        from kzconsumer_tools.offsets.prepare import read_view

        async with self.access() as access:
            await require_group(access.session, self.zookeeper.connect, group)
            return await read_view(access, await access.nodes(group), self.storage)


async def read_topics(at: ClusterOption, topics: Sequence[str] | None) -> list[TopicDescription]:
    """As `ClusterAccess.described`."""
    async with at.access() as access:
        return await access.described(topics)


def add_cluster_option(action: argparse.ArgumentParser, *, output: bool = True) -> None:
    """`--zookeeper`, `--config` and `--context`, and `--output` unless the verb has its own."""
    action.add_argument(
        "--zookeeper", metavar="CONNECT", type=connect_string, help="the cluster, such as zk1:2181,zk2:2181/kafka"
    )
    action.add_argument(
        "--bootstrap",
        metavar="BROKERS",
        action="append",
        dest="flags_of_verb",
        type=_bootstrap,
        default=[],
        help="brokers to ask for topics, such as kafka1:9092,kafka2:9092, of a cluster that has left ZooKeeper",
    )
    add_config(action, "or a group's TOML file")
    action.add_argument("--context", metavar="CONTEXT", help="or a context; default: the current one")
    if output:
        add_output(action)


def add_group(action: argparse.ArgumentParser) -> None:
    action.add_argument("group", metavar="GROUP", nargs="?", type=group_name, help="default: the one of --config")


def add_storage(action: argparse.ArgumentParser) -> None:
    action.add_argument(
        "--storage",
        choices=("zookeeper", "kafka", "both"),
        help="where the group's offsets are stored; both: dual commit; default: as --config says, else zookeeper",
    )


def cluster_settings(arguments: argparse.Namespace) -> Settings:
    """The settings of the chosen cluster, and those of the group's file if that names it.

    Raises ConfigError, NotFoundError; ends with status 2 on wrong usage.
    """
    layers = cluster_layers(arguments)
    return Settings.of(layers) if arguments.config is not None else contexts.cluster_settings(layers)


def cluster_layers(arguments: argparse.Namespace) -> Layers:
    """How to reach the chosen cluster; with `--config` also the group's settings. Raises as `cluster_settings`."""
    flags = flags_given(arguments)
    given = [name for name in ("zookeeper", "config", "context") if getattr(arguments, name) is not None]
    if len(given) > 1:
        arguments.misused(f"--{given[0]} and --{given[1]} both name a cluster; give one of them")
    if arguments.config is not None:
        return layers_of(arguments.config, flags)
    if arguments.context is not None:
        return layers_of(contexts.file_of(arguments.context), flags, environment={})
    if arguments.zookeeper is not None:
        return layers_of(None, [*flags, f"zookeeper.connect={toml_value(arguments.zookeeper)}"])
    layers = layers_of(None, flags)
    if _CONNECT in layers.origins:
        return layers
    current = contexts.current() or arguments.misused(
        "no cluster named; give --zookeeper CONNECT, --config FILE or --context CONTEXT,"
        f" or set {VARIABLE}ZOOKEEPER__CONNECT"
    )
    return layers_of(contexts.file_of(current), flags)


def cluster_option(arguments: argparse.Namespace) -> ClusterOption:
    """The chosen cluster; `group` may be None. Raises and ends as `cluster_settings`."""
    settings = cluster_settings(arguments)
    group: str | None = getattr(arguments, "group", None)
    if group is None and (arguments.config is not None or settings.group.id != contexts.NO_GROUP):
        group = settings.group.id
    dual = settings.offsets.storage == "kafka" and settings.offsets.dual_commit
    storage: Storage = getattr(arguments, "storage", None) or ("both" if dual else settings.offsets.storage)
    return ClusterOption(settings.zookeeper, settings.brokers, group, settings.source, storage)


def said_storage(arguments: argparse.Namespace, at: ClusterOption) -> Storage | None:
    """As `--storage` or `--config` says; None if neither is given."""
    return at.storage if arguments.storage or arguments.config is not None else None


def cluster_flags(arguments: argparse.Namespace) -> str:
    """Options that choose the same cluster, for a command that the operator can copy."""
    flags = [word for flag in flags_given(arguments) for word in ("--set", quote(flag))]
    for name in ("zookeeper", "config", "context"):
        if getattr(arguments, name) is not None:
            return " ".join([f"--{name}", quote(getattr(arguments, name)), *flags])
    layers = layers_of(None, flags_given(arguments))
    if _CONNECT in layers.origins:
        return " ".join(["--zookeeper", quote(contexts.cluster_settings(layers).zookeeper.connect), *flags])
    return " ".join(["--context", quote(contexts.current() or ""), *flags])


def required_group(arguments: argparse.Namespace, at: ClusterOption, ways: str = "GROUP, or --config FILE") -> str:
    """`ways` are those to name one."""
    return at.group or arguments.misused(f"no group named; give {ways}")


def _bootstrap(text: str) -> str:
    """As a flag: `[brokers] bootstrap`."""
    brokers = text.split(",")
    for each in brokers:
        try:
            read_broker(each)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{each!r} {error}") from None
    return f"brokers.bootstrap={toml_value(brokers)}"


def connect_string(text: str) -> str:
    try:
        return read_connect(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} {error}") from None


def group_name(text: str) -> str:
    if not text or "/" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a group")
    return text
