"""`kzconsumer offsets show | reset | export | import | clone`: stored offsets, and changing them.

Verbs that change something show old and new offsets first, and write an undo file before they do it with `--execute`.
JSON has the fields of `stored_offsets.GroupOffsets` and `offset_changes.ChangedOffsets`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

import msgspec

from kzconsumer.errors import NotDoneError
from kzconsumer.model import TopicPartition
from kzconsumer_tools.commands.cluster_option import (
    ClusterOption,
    add_cluster_option,
    add_group,
    add_storage,
    cluster_flags,
    cluster_option,
    group_name,
    required_group,
    said_storage,
)
from kzconsumer_tools.commands.output_and_options import (
    add_change_of_offsets,
    add_reset_options,
    add_topics,
    ask,
    chosen_topics,
    printable_lines,
    read_file,
    show,
    write_file,
)
from kzconsumer_tools.offsets.offset_changes import Reset, SavedCoordinatorOffset, read_undo
from kzconsumer_tools.offsets.offset_files import SavedOffset, read_offsets, write_offsets
from kzconsumer_tools.offsets.stored_offsets import group_offsets
from kzconsumer_tools.tables.offset_tables import changes_table, show_table

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from kzconsumer_tools.commands.offsets_apply import Prepare


S = TypeVar("S", SavedOffset, SavedCoordinatorOffset)


def add_offsets(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    offsets = subparsers.add_parser("offsets", help="show, export and change stored offsets")
    actions = offsets.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_show(actions)
    _add_export(actions)
    changing = (
        (_add_reset(actions), run_reset),
        (_add_import(actions), run_import),
        (_add_clone(actions), run_clone),
    )
    for action, run in changing:
        add_change_of_offsets(action)
        add_cluster_option(action)
        action.set_defaults(run=run)


def _add_show(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    showing = actions.add_parser(
        "show",
        help="the stored offsets of a group, and when they were written",
        description="Show the stored offsets of a group, when each was last written, and the epoch and plan of its "
        "claim record. Changes nothing. Brokers are asked only for what ZooKeeper does not have.",
        examples=("orders", "orders --topic orders:0", "orders --storage both"),
    )
    add_group(showing)
    add_storage(showing)
    add_topics(showing)
    add_cluster_option(showing)
    showing.set_defaults(run=run_show)


def _add_export(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    export = actions.add_parser(
        "export",
        help="write stored offsets to a file, as Kafka's own tools do, for Spark, or as nodes",
        description="Write the stored offsets of a group: as kafka.tools.ExportZkOffsets does, with topic and leader "
        "epoch after the offset (zookeeper), as kafka-consumer-groups.sh --export does (csv), the nodes as they are "
        "(nodes), or as the option startingOffsets of Spark's Kafka source (spark), which wants every partition.",
        examples=(
            "orders > offsets.txt",
            "orders --format csv --output-file offsets.csv",
            "orders --topic orders --format spark",
        ),
    )
    add_group(export)
    add_topics(export)
    export.add_argument(
        "--format", choices=("zookeeper", "csv", "nodes", "spark"), default="zookeeper", help="default: zookeeper"
    )
    export.add_argument("-o", dest="output", type=_no_table, help=argparse.SUPPRESS)
    export.add_argument("--output-file", metavar="FILE", type=Path, help="a new file; default: standard output")
    add_cluster_option(export, output=False)
    export.set_defaults(run=run_export)


def _no_table(form: str) -> NoReturn:
    raise argparse.ArgumentTypeError(
        f"--format is that of the file; `kzconsumer offsets show -o {form}` prints offsets"
    )


def _add_reset(actions: _SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    resetting = actions.add_parser(
        "reset",
        help="set the offsets of a group without members",
        description="Set the stored offsets of a group without members, within the logs. The options are those of "
        "kafka-consumer-groups.sh --reset-offsets.",
        examples=(
            "orders --all-topics --to-earliest",
            "orders --topic orders --to-datetime 2026-01-31T12:00:00.000 --execute",
        ),
    )
    add_group(resetting)
    add_reset_options(resetting)
    add_storage(resetting)
    add_topics(resetting)
    resetting.add_argument("--all-topics", action="store_true", help="all topics for which the group has offsets")
    return resetting


def _add_import(actions: _SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    importing = actions.add_parser(
        "import",
        help="store the offsets of a file: of Kafka's own tools, an export, or an undo file",
        description="Store the offsets of a file in groups without members. Offsets outside the log are moved into it; "
        "nodes (an undo file has nodes) are restored as they were, without asking a broker.",
        examples=("offsets.txt", "undo-orders.jsonl --execute", "offsets.csv --group orders"),
    )
    importing.add_argument("file", metavar="FILE", type=Path, help="in a format of `offsets export`, or an undo file")
    importing.add_argument("--group", metavar="GROUP", type=group_name, help="if the file names several groups or none")
    return importing


def _add_clone(actions: _SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    cloning = actions.add_parser(
        "clone",
        help="give a group without members the offsets of another group",
        description="Store the offsets of one group, which may be running, for another one without members.",
        examples=("orders orders-test", "orders orders-test --topic orders --execute"),
    )
    cloning.add_argument("source", metavar="FROM", type=group_name, help="the group that has the offsets")
    cloning.add_argument("group", metavar="TO", type=group_name, help="the group that gets them")
    add_topics(cloning)
    return cloning


def run_show(arguments: argparse.Namespace) -> int:
    from kzconsumer_tools.offsets.prepare import within

    at = cluster_option(arguments)
    view = ask(at.view, required_group(arguments, at))
    found = group_offsets(view.nodes, at.storage, view.brokers)
    scope = chosen_topics(arguments.topic)
    partitions = tuple(p for p in found.partitions if within(TopicPartition(p.topic, p.partition), scope))
    left = tuple(p for p in found.left_by_0_7 if within(TopicPartition(p.topic, p.partition), scope))
    found = msgspec.structs.replace(found, partitions=partitions, left_by_0_7=left)
    return show(arguments, found, show_table, wide=partial(show_table, wide=True))


def run_export(arguments: argparse.Namespace) -> int:
    from kzconsumer_tools.offsets.prepare import prepare_export

    at = cluster_option(arguments)
    group, scope = required_group(arguments, at), chosen_topics(arguments.topic)
    saved = prepare_export(ask(at.nodes, group), arguments.format, scope)
    try:
        content = write_offsets(arguments.format, saved)
    except ValueError as error:
        raise NotDoneError(f"{error}; --format nodes also writes invalid nodes") from None
    if arguments.output_file is None and sys.stdout.isatty():
        print(printable_lines(content.decode("utf-8", "backslashreplace")), end="")
    elif arguments.output_file is None:
        sys.stdout.buffer.write(content)
    else:
        write_file(arguments.output_file, content)
    return 0


def _chosen_reset(arguments: argparse.Namespace) -> Reset:
    """The chosen reset, unless it is `--from-file`; times are in ms since 1970."""
    if arguments.to_offset is not None:
        return Reset("offset", arguments.to_offset)
    if arguments.shift_by is not None:
        return Reset("shift", arguments.shift_by)
    if arguments.to_datetime is not None:
        return Reset("time", arguments.to_datetime)
    if arguments.by_duration is not None:
        return Reset("time", round(time.time() * 1000) - arguments.by_duration)
    return Reset("earliest" if arguments.to_earliest else "latest" if arguments.to_latest else "current")


def run_reset(arguments: argparse.Namespace) -> int:
    from kzconsumer_tools.commands.offsets_apply import reset

    at = cluster_option(arguments)
    group = required_group(arguments, at)
    if arguments.from_file is not None:
        if arguments.topic or arguments.all_topics:
            arguments.misused("--from-file says which partitions; give it without --topic and --all-topics")
        return _change_as_in(arguments, arguments.from_file, group)
    if bool(arguments.topic) == arguments.all_topics:
        arguments.misused("give --topic TOPIC (one or more), or --all-topics")
    scope = chosen_topics(arguments.topic)
    storage = said_storage(arguments, at)
    return _change(arguments, at, partial(reset, at.zookeeper.connect, group, scope, _chosen_reset(arguments), storage))


def run_import(arguments: argparse.Namespace) -> int:
    return _change_as_in(arguments, arguments.file, arguments.group)


def run_clone(arguments: argparse.Namespace) -> int:
    from kzconsumer_tools.commands.offsets_apply import clone

    at, scope = cluster_option(arguments), chosen_topics(arguments.topic)
    return _change(arguments, at, partial(clone, at.zookeeper.connect, arguments.source, arguments.group, scope))


def _change_as_in(arguments: argparse.Namespace, path: Path, group: str | None) -> int:
    """Store the offsets of a file; those of `group` only, unless it is None."""
    from kzconsumer_tools.commands.offsets_apply import import_offsets, undo_in_brokers

    at = cluster_option(arguments)
    try:
        raw = read_file(path)
        in_brokers = read_undo(raw)
        if in_brokers is not None:
            return _change(arguments, at, partial(undo_in_brokers, _of_group(in_brokers, group, path)))
        content = read_offsets(raw)
    except ValueError as error:
        raise NotDoneError(f"{path}: {error}") from None
    if group is None and any(each.group is None for each in content.offsets):
        group = at.group or arguments.misused("the file names no group; give --group GROUP")
    kept = _of_group(content.offsets, group, path)
    return _change(arguments, at, partial(import_offsets, kept, group, content.format == "nodes"))


def _of_group(saved: Sequence[S], group: str | None, path: Path) -> list[S]:
    kept = [each for each in saved if group is None or each.group in (None, group)]
    if not kept:
        raise NotDoneError(f"{path}: no offset of group {group}")
    return kept


def _change(arguments: argparse.Namespace, at: ClusterOption, prepare: Prepare) -> int:
    from kzconsumer_tools.commands.offsets_apply import perform

    result = ask(perform, at, prepare, arguments.execute, arguments.republish, arguments.undo)
    return show(arguments, result, lambda found: changes_table(found, cluster_flags(arguments)))
