"""`kzconsumer exporter`: every group of a cluster, for Prometheus and for clients of Burrow."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kzconsumer.cli.parser import seconds
from kzconsumer.settings.effective import toml_value
from kzconsumer_tools.commands.cluster_option import add_cluster_option, cluster_settings
from kzconsumer_tools.commands.group_names import add_group_names, wanted_groups

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from kzconsumer.settings.settings import Settings
    from kzconsumer_tools.exporter.exporter import Exporter


def add_arguments(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "exporter",
        help="serve lag and status of every group for Prometheus, and Burrow's HTTP paths",
        description="Follow every group in ZooKeeper, with or without members of kzconsumer, until SIGTERM or SIGINT, "
        "and serve metrics (/metrics) and Burrow's paths (/v3/kafka). Changes nothing.",
        examples=("--zookeeper zk1:2181/kafka", "--context prod --cluster prod --listen 0.0.0.0:9309 --token-file t"),
    )
    parser.add_argument(
        "--listen", metavar="ADDRESS", default="127.0.0.1:9309", help="default: 127.0.0.1:9309; others need a token"
    )
    parser.add_argument("--token-file", metavar="FILE", help="the token that requests must have")
    parser.add_argument("--cluster", metavar="NAME", default="kafka", help="its name in metrics and paths: kafka")
    parser.add_argument("--interval", metavar="SECONDS", type=seconds, default=30.0, help="between readings: 30")
    parser.add_argument(
        "--stalled-after",
        metavar="SECONDS",
        type=seconds,
        default=300.0,
        help="a partition is stalled if it is behind and has not advanced for so long: 300",
    )
    parser.add_argument(
        "--kafka-groups",
        action="store_true",
        help="with the groups that brokers coordinate, of Kafka's newer consumers",
    )
    add_group_names(parser)
    add_cluster_option(parser, output=False)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    import anyio

    from kzconsumer.logs.setup import configure
    from kzconsumer_tools.exporter.exporter import Exporter

    arguments.flags_of_verb.append(f"status.listen={toml_value(arguments.listen)}")
    if arguments.token_file is not None:
        arguments.flags_of_verb.append(f"status.token_file={toml_value(arguments.token_file)}")
    settings = cluster_settings(arguments)
    configure(settings.log.level, settings.log.format)
    exporter = Exporter(
        settings,
        arguments.cluster,
        arguments.interval,
        arguments.stalled_after,
        kafka_groups=arguments.kafka_groups,
        wanted=wanted_groups(arguments),
    )
    anyio.run(_serve, exporter, settings)
    return 0


async def _serve(exporter: Exporter, settings: Settings) -> None:
    import signal

    import anyio

    from kzconsumer_tools.exporter.server import serving

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with serving(exporter, settings.status, settings.source):
            async for _ in signals:
                break
