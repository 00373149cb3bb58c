"""`kzconsumer topics config get | set`: topics' own settings, and changing them with `--execute`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kzconsumer.errors import NotDoneError
from kzconsumer_tools.cluster import topic_settings
from kzconsumer_tools.cluster.requests import Refused, require_brokers, require_usable
from kzconsumer_tools.cluster.topic_settings import Configured, OwnSettings
from kzconsumer_tools.commands.answer import ask, show
from kzconsumer_tools.commands.cluster_option import (
    ClusterOption,
    add_cluster_option,
    cluster_flags,
    cluster_option,
    read_topics,
)
from kzconsumer_tools.commands.execute_option import add_execute
from kzconsumer_tools.tables.topics import configured_table, settings_table

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_actions(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    config = actions.add_parser("config", help="show and change topics' own settings")
    verbs = config.add_subparsers(dest="config_action", required=True, metavar="ACTION")
    getting = verbs.add_parser(
        "get",
        help="a topic's own settings",
        description="Show the settings that are set for the topics; for all others the brokers' defaults apply.",
        examples=("orders",),
    )
    getting.add_argument("topics", metavar="TOPIC", nargs="+", help="to be shown")
    setting = verbs.add_parser(
        "set",
        help="set or unset a topic's own settings",
        description="Set or unset a topic's own settings, and notify the brokers in the format of their version. A "
        "value that they cannot read is refused: brokers with such a value fail at their next start.",
        examples=("orders retention.ms=86400000", "orders --unset retention.ms --execute"),
    )
    setting.add_argument("topic", metavar="TOPIC", help="to be changed")
    setting.add_argument(
        "settings", metavar="NAME=VALUE", nargs="*", type=_setting, help="such as retention.ms=86400000"
    )
    unset = "remove the setting: the brokers' default applies; may be repeated"
    setting.add_argument("--unset", metavar="NAME", action="append", default=[], help=unset)
    add_execute(setting)
    for action, run in ((getting, run_get), (setting, run_set)):
        add_cluster_option(action)
        action.set_defaults(run=run)


def run_get(arguments: argparse.Namespace) -> int:
    at = cluster_option(arguments)
    found = ask(read_topics, at, arguments.topics)
    own = []
    for each in found:
        if each.config is None:
            raise NotDoneError("; ".join(f"{fault.path}: {fault.reason}" for fault in each.unreadable))
        own.append(OwnSettings(each.topic, dict(each.config)))
    return show(arguments, own, settings_table)


def run_set(arguments: argparse.Namespace) -> int:
    at = cluster_option(arguments)
    names = [*(name for name, _ in arguments.settings), *arguments.unset]
    if not names:
        arguments.misused("nothing to change: give NAME=VALUE, or --unset NAME")
    if len(set(names)) < len(names):
        arguments.misused("a setting is given twice")
    result = ask(_set, arguments, at)
    return show(arguments, result, lambda found: configured_table(found, cluster_flags(arguments)))


async def _set(arguments: argparse.Namespace, at: ClusterOption) -> Configured:
    from kzconsumer_tools.cluster import apply

    add = [f"{name}={value}" for name, value in arguments.settings]
    tool = f"kafka-configs.sh --alter --entity-type topics --entity-name {arguments.topic}"
    tool += f" --add-config {','.join(add)}" * bool(add)
    tool += f" --delete-config {','.join(arguments.unset)}" * bool(arguments.unset)
    async with at.access() as access:
        await access.require_controller_in_zookeeper(tool)
        session = access.session
        cluster, (topic,) = await apply.read_cluster_and_topics(session, at.zookeeper.connect, [arguments.topic])
        try:
            require_usable(topic)
            versions = require_brokers(cluster)
            config = dict(topic.config or {})
            changes = topic_settings.changed(config, dict(arguments.settings), arguments.unset, versions)
            notify = topic_settings.notification(topic.topic, versions)
        except (Refused, ValueError) as error:
            raise NotDoneError(f"{error}; nothing was changed") from None
        executed = arguments.execute and bool(changes)
        if executed:
            changed = {**config, **{each.name: each.new for each in changes}}
            kept = {name: value for name, value in changed.items() if value is not None}
            await apply.set_config(session, topic.topic, config, kept, notify)
    return Configured(topic.topic, executed, tuple(changes))


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value
