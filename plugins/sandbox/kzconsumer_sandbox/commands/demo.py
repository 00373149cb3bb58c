"""`kzconsumer demo`: produce and consume on servers of its own, with a kill -9, and count the result.

The result is on standard output, the live display on standard error.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kzconsumer.cli.parser import whole_number

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_arguments(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
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
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from kzconsumer.plugins import SINKS, load

    load(SINKS, "spark")  # fails early, with the command that installs it

    from kzconsumer.cli.progress import progress
    from kzconsumer.logs import setup
    from kzconsumer_sandbox.demo.run import run_demo
    from kzconsumer_sandbox.servers.jars import NEWEST
    from kzconsumer_sandbox.servers.sandbox import prepare

    setup.configure("error", "auto")
    with progress("fetching Kafka's jars (kB)") as fetched:
        prepare(NEWEST, fetched)
    return run_demo(arguments.records, as_json=arguments.output == "json", keep=arguments.keep)
