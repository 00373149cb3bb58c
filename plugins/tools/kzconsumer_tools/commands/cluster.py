"""`kzconsumer cluster describe`: brokers, controller and what it is asked for, as ZooKeeper has them.

Owns no state, changes nothing, asks no broker. Standard output is the answer, a table of 80 columns or JSON with the
fields of `zookeeper.cluster_description`.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kzconsumer_tools.commands.cluster_option import add_target, target

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_arguments(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    cluster = subparsers.add_parser("cluster", help="show brokers and controller")
    actions = cluster.add_subparsers(dest="action", required=True, metavar="ACTION")
    describing = actions.add_parser(
        "describe",
        help="brokers, controller, and what it is asked for",
        description="Show the brokers that are up, the controller and its epoch, and requests that the controller has "
        "not carried out yet. Nothing is changed, and no broker is asked.",
    )
    add_target(describing)
    describing.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    at = target(arguments)

    import anyio
    import msgspec

    from kzconsumer.logs import setup
    from kzconsumer_tools.cluster.reader import read_cluster
    from kzconsumer_tools.tables.cluster import cluster_table

    setup.for_one_answer()
    found = anyio.run(read_cluster, at.zookeeper)
    print(msgspec.json.encode(found).decode() if arguments.output == "json" else cluster_table(found))
    return 0
