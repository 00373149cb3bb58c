"""`kzconsumer topics config get | set`: what topics have of their own, and changing it.

Owns no state. `set` shows old and new, and changes with `--execute`. Brokers confirm nothing in ZooKeeper.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import msgspec

from kzconsumer_tools.cluster.results import Configured, OwnSettings
from kzconsumer_tools.commands.cluster_option import Target, add_target, target
from kzconsumer_tools.commands.execute_option import add_executing

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_actions(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    config = actions.add_parser("config", help="what topics have of their own settings, and changing it")
    verbs = config.add_subparsers(dest="config_action", required=True, metavar="ACTION")
    getting = verbs.add_parser(
        "get",
        help="a topic's own settings",
        description="Show the settings that topics have of their own; the rest is as the brokers are configured.",
    )
    getting.add_argument("topics", metavar="TOPIC", nargs="+")
    setting = verbs.add_parser(
        "set",
        help="give a topic settings of its own, or take them away",
        description="Give a topic settings of its own, or take them away, and notify the brokers in their version's "
        "form. A value that they could not read is refused: it would end them at their next start.",
    )
    setting.add_argument("topic", metavar="TOPIC")
    setting.add_argument("settings", metavar="NAME=VALUE", nargs="*", type=_setting)
    unset = "take it away: the topic is as the brokers are configured; may be given again"
    setting.add_argument("--unset", metavar="NAME", action="append", default=[], help=unset)
    add_executing(setting)
    for action, run in ((getting, run_get), (setting, run_set)):
        add_target(action)
        action.set_defaults(run=run)


def run_get(arguments: argparse.Namespace) -> int:
    at = target(arguments)

    import anyio

    from kzconsumer.logs import setup
    from kzconsumer_tools.cluster.reader import read_topics
    from kzconsumer_tools.tables.topics import settings_table

    setup.for_one_answer()
    found = [
        OwnSettings(each.topic, dict(each.config)) for each in anyio.run(read_topics, at.zookeeper, arguments.topics)
    ]
    print(msgspec.json.encode(found).decode() if arguments.output == "json" else settings_table(found))
    return 0


def run_set(arguments: argparse.Namespace) -> int:
    at = target(arguments)
    names = [*(name for name, _ in arguments.settings), *arguments.unset]
    if not names:
        arguments.misused("nothing to change: give NAME=VALUE, or --unset NAME")
    if len(set(names)) < len(names):
        arguments.misused("a setting is given twice")

    import anyio

    from kzconsumer.logs import setup
    from kzconsumer_tools.commands.cluster_option import again
    from kzconsumer_tools.tables.topics import configured_table

    setup.for_one_answer()
    answer = anyio.run(_set, arguments, at)
    table = configured_table(answer, again(arguments))
    print(msgspec.json.encode(answer).decode() if arguments.output == "json" else table)
    return 0


async def _set(arguments: argparse.Namespace, at: Target) -> Configured:
    from kzconsumer.errors import NotDone
    from kzconsumer.registry.sessions import short_session
    from kzconsumer_tools.cluster import apply, topic_settings
    from kzconsumer_tools.cluster.requests import Refused, require_brokers, require_usable

    async with short_session(at.zookeeper) as session:
        cluster, (topic,) = await apply.looked_at(session, at.zookeeper, [arguments.topic])
        try:
            require_usable(topic)
            versions = require_brokers(cluster)
            changes = topic_settings.changed(topic.config, dict(arguments.settings), arguments.unset, versions)
            notify = topic_settings.notification(topic.topic, versions)
        except (Refused, ValueError) as error:
            raise NotDone(f"{error}; nothing was changed") from None
        executed = arguments.execute and bool(changes)
        if executed:
            config = {**topic.config, **{each.name: each.new for each in changes}}
            kept = {name: value for name, value in config.items() if value is not None}
            await apply.set_config(session, topic.topic, topic.config, kept, notify)
    return Configured(topic.topic, executed, tuple(changes))


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value
