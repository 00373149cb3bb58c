"""`kzconsumer cluster describe`: brokers, controller and pending requests, from ZooKeeper or the brokers.

JSON has the fields of `cluster.description.ClusterDescription`.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from kzconsumer_tools.commands.answer import ask, show
from kzconsumer_tools.commands.cluster_option import ClusterOption, add_cluster_option, cluster_option
from kzconsumer_tools.tables.cluster import cluster_table

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from kzconsumer_tools.cluster.description import ClusterDescription


def add_arguments(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    cluster = subparsers.add_parser("cluster", help="show brokers and controller")
    actions = cluster.add_subparsers(dest="action", required=True, metavar="ACTION")
    describing = actions.add_parser(
        "describe",
        help="brokers, controller and its pending requests",
        description="Show the live brokers, the controller and its epoch, and requests that the controller has not "
        "carried out yet: as ZooKeeper has them, or the brokers of a cluster that has left it. Changes nothing.",
        examples=("", "--zookeeper zk1:2181,zk2:2181/kafka -o json"),
    )
    add_cluster_option(describing)
    describing.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    at = cluster_option(arguments)
    return show(arguments, ask(_read, at), cluster_table, wide=partial(cluster_table, wide=True))


async def _read(at: ClusterOption) -> ClusterDescription:
    async with at.access() as access:
        return await access.cluster()
