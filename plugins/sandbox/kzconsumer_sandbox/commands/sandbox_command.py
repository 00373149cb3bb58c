"""The parsers of `kzconsumer sandbox`, servers that run in the background until `sandbox down`, and of `kzconsumer
demo`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from kzconsumer.cli.arguments import whole_number
from kzconsumer.settings.value_readers import read_topic
from kzconsumer_sandbox.servers.jars import NEWEST, VERSIONS
from kzconsumer_sandbox.servers.state_file import default_path

if TYPE_CHECKING:
    from argparse import _SubParsersAction


_PORT = whole_number("a port", 0, 65535)
_POSITIVE = whole_number("a whole number, at least 1", 1)
_KAFKA = f"{', '.join(VERSIONS)}; default: {NEWEST.number}"


def add_sandbox(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sandbox = subparsers.add_parser("sandbox", help="run a real ZooKeeper and real Kafka brokers on this machine")
    sandbox.set_defaults(run=run_sandbox)
    place = argparse.ArgumentParser(add_help=False)
    place.add_argument(
        "--state", type=Path, metavar="FILE", help=f"the sandbox's state file; default: {default_path()}"
    )
    actions = sandbox.add_subparsers(dest="action", required=True, metavar="ACTION")
    up = actions.add_parser(
        "up",
        parents=[place],
        help="start it; returns when it is ready",
        description="Start a ZooKeeper and Kafka brokers in the background, and return when they serve. The first "
        "start of a version downloads it. They keep running until `kzconsumer sandbox down`; nothing survives that.",
        examples=("", "--kafka-version 1.1.1 --brokers 3", "--port 0 --zookeeper-port 0 --state /tmp/mine"),
    )
    up.add_argument("--kafka-version", default=NEWEST.number, metavar="VERSION", help=_KAFKA)
    up.add_argument("--brokers", type=_POSITIVE, default=1, metavar="N", help="number of brokers; default: 1")
    up.add_argument(
        "--zookeeper-port", type=_PORT, metavar="PORT", help="default: 2181, or any free one if it is in use; 0: any"
    )
    up.add_argument(
        "--port",
        type=_PORT,
        metavar="PORT",
        help="the first broker's, which the others' follow; default: 9092, or any free one if it is in use; 0: any",
    )
    up.add_argument("--kraft", action="store_true", help="brokers in KRaft mode, as always from Kafka 4 on")
    up.add_argument("--foreground", action="store_true", help="run in the foreground until Ctrl-C")
    actions.add_parser(
        "env",
        parents=[place],
        help="print shell commands that make it the default cluster",
        description='For eval "$(kzconsumer sandbox env)": kzconsumer and kcat then use the sandbox in this shell;'
        " BOOTSTRAP_SERVERS is for other programs.",
        examples=("",),
    )
    status = actions.add_parser(
        "status",
        parents=[place],
        help="show the servers; exit status 3 unless all of them serve",
        examples=("", "-o json"),
    )
    status.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")
    topic = actions.add_parser(
        "topic",
        parents=[place],
        help="create a topic in the running sandbox",
        examples=("orders", "latest --partitions 1 --config cleanup.policy=compact"),
    )
    topic.add_argument("name", type=_topic_name, metavar="TOPIC", help="must not exist yet")
    topic.add_argument("--partitions", type=_POSITIVE, default=4, metavar="N", help="default: 4")
    topic.add_argument(
        "--config",
        dest="topic_config",  # the program's own --config is the group's file
        type=_setting,
        action="extend",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="the topic's own settings, such as cleanup.policy=compact",
    )
    produce = actions.add_parser(
        "produce",
        parents=[place],
        help="produce records; creates the topic if it does not exist",
        description="Produce each line of standard input as a record, or generated orders: JSON objects, with the"
        " customer as the key. A topic that does not exist is created with 4 partitions.",
        examples=("orders --records 1000", "orders < lines.txt"),
    )
    produce.add_argument("name", type=_topic_name, metavar="TOPIC", help="created if it does not exist")
    produce.add_argument("--records", type=_POSITIVE, metavar="N", help="generate N records instead of reading lines")
    actions.add_parser(
        "migrate",
        parents=[place],
        help="take the next step of the migration from ZooKeeper to KRaft",
        description="Of a 3.9.1 in ZooKeeper mode, in four steps: a KRaft controller starts and copies the metadata; "
        "the brokers change to KRaft mode; the cluster leaves ZooKeeper, where its nodes are deleted; the upgrade to "
        "4.2.0. Groups in ZooKeeper remain.",
        examples=("",),
    )
    actions.add_parser("down", parents=[place], help="stop it and remove its data", examples=("",))


def run_sandbox(arguments: argparse.Namespace) -> int:
    from kzconsumer_sandbox.commands.sandbox_actions import run

    return run(arguments)


def _topic_name(text: str) -> str:
    try:
        return read_topic(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} {error}") from None


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return key, value


# `kzconsumer demo`: produce and consume on servers of its own, with a kill -9, and count the result.
#
# The result is on standard output, the live display on standard error.


def add_demo(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "demo",
        help="demonstrate a group on servers of its own",
        description="Start a ZooKeeper and a Kafka, produce, consume with two members that write Parquet through Spark,"
        " kill one with kill -9, let a third join, and have Spark count the records. Takes a minute or two.",
        epilog="Exit status: 0 if no record is missing, 1 otherwise.",
        examples=("", "--records 100000 --keep"),
    )
    number = whole_number("a number of records", 1)
    parser.add_argument("--records", type=number, default=1_000_000, metavar="N", help="how many; default: 1,000,000")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")
    parser.add_argument("--keep", action="store_true", help="keep the directory with the Parquet files and the logs")
    parser.set_defaults(run=run_demo_verb)


def run_demo_verb(arguments: argparse.Namespace) -> int:
    from kzconsumer.plugins import SINKS, load

    load(SINKS, "spark")  # fails early, with the command that installs it

    from kzconsumer.cli.arguments import progress
    from kzconsumer.logs import setup
    from kzconsumer_sandbox.demo.scenario import run_demo
    from kzconsumer_sandbox.servers.jars import NEWEST
    from kzconsumer_sandbox.servers.sandbox import prepare

    setup.configure("error", "auto")
    with progress("fetching Kafka's jars (kB)") as fetched:
        prepare(NEWEST, fetched)
    return run_demo(arguments.records, as_json=arguments.output == "json", keep=arguments.keep)
