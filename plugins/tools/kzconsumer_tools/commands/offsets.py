"""`kzconsumer offsets show | reset | export | import | clone | copy`: stored offsets, and moving them.

Owns no state. What changes something shows old and new first and does nothing without `--execute`; the undo file is on
disk before anything changes. Standard output is the answer, tables of 80 columns or JSON with the fields of
`group.group_offsets` and `offsets.moves`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from kzconsumer_tools.commands.cluster_option import (
    add_group,
    add_storage,
    add_target,
    group_name,
    required_group,
    target,
)
from kzconsumer_tools.commands.execute_option import add_execute
from kzconsumer_tools.commands.reset_options import add_reset_words, topic_scope, topics_together

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from kzconsumer_tools.commands.offsets_apply import Act
    from kzconsumer_tools.commands.offsets_copy import BrokerAct
    from kzconsumer_tools.offsets.results import Moved

_REPUBLISH = "may let a replayable sink's destination get records a second time"


def add_arguments(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    offsets = subparsers.add_parser("offsets", help="show, export and move stored offsets")
    actions = offsets.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_show(actions)
    _add_export(actions)
    _add_reset(actions)
    _add_import(actions)
    _add_clone(actions)
    _add_copy(actions)


def _add_show(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    show = actions.add_parser(
        "show",
        help="the offsets that a group has stored, and when",
        description="Show the offsets that a group has stored, when each was last written, and what its claim record "
        "says. Nothing is changed, and no broker is asked but for offsets that are stored there.",
    )
    add_group(show)
    add_storage(show)
    _add_topics(show)
    add_target(show)
    show.set_defaults(run=run_show)


def _add_export(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    export = actions.add_parser(
        "export",
        help="write them as Kafka's own tools do, or as nodes",
        description="Write the offsets that a group has stored: as kafka.tools.ExportZkOffsets does (zookeeper), as "
        "kafka-consumer-groups.sh --export does (csv), or the nodes as they are (nodes).",
    )
    add_group(export)
    _add_topics(export)
    export.add_argument("--format", choices=("zookeeper", "csv", "nodes"), default="zookeeper")
    export.add_argument("--output-file", metavar="FILE", type=Path, help="a new file; default: standard output")
    add_target(export, output=False)
    export.set_defaults(run=run_export)


def _add_reset(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    reset = actions.add_parser(
        "reset",
        help="have a group without members begin elsewhere",
        description="Move the stored offsets of a group without members, into what the logs hold. The words are those "
        "of kafka-consumer-groups.sh --reset-offsets.",
    )
    add_group(reset)
    add_reset_words(reset)
    _add_topics(reset)
    reset.add_argument("--all-topics", action="store_true", help="all that the group has offsets of, whole")
    _add_acting(reset)
    reset.set_defaults(run=run_reset)


def _add_import(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    importing = actions.add_parser(
        "import",
        help="store the offsets of a file: of Kafka's own tools, an export, or an undo file",
        description="Store the offsets of a file in groups without members. What is outside the log is put into it, "
        "but nodes (an undo file is one) are restored as they were, and no broker is asked for them.",
    )
    importing.add_argument("file", metavar="FILE", type=Path)
    importing.add_argument("--group", metavar="GROUP", type=group_name, help="of a file that names several, or none")
    _add_acting(importing)
    importing.set_defaults(run=run_import)


def _add_clone(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    clone = actions.add_parser(
        "clone",
        help="have a group without members begin where another group is",
        description="Store the offsets of one group, which may be running, for another one without members.",
    )
    clone.add_argument("source", metavar="FROM", type=group_name)
    clone.add_argument("group", metavar="TO", type=group_name)
    _add_topics(clone)
    _add_acting(clone)
    clone.set_defaults(run=run_clone)


def _add_copy(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    copy = actions.add_parser(
        "copy",
        help="have the brokers store what ZooKeeper has, or ZooKeeper what the brokers have",
        description="Store the offsets of a group without members in the other of the two places. What is there is "
        "overwritten, forwards or back.",
    )
    add_group(copy)
    places = ("zookeeper", "kafka")
    copy.add_argument("--from", dest="source", choices=places, required=True, help="where the offsets are read")
    copy.add_argument("--to", dest="destination", choices=places, required=True, help="where they are stored")
    _add_topics(copy)
    _add_acting(copy)
    copy.set_defaults(run=run_copy)


def _add_topics(action: argparse.ArgumentParser) -> None:
    help = "only this topic, or topic:0,1,2 for some of its partitions; may be given again"
    action.add_argument("--topic", metavar="TOPIC", type=topic_scope, action="append", help=help)


def _add_acting(action: argparse.ArgumentParser) -> None:
    add_execute(action)
    action.add_argument("--republish", action="store_true", help=_REPUBLISH)
    add_target(action)


def run_show(arguments: argparse.Namespace) -> int:
    at = target(arguments)
    group = required_group(arguments, at)

    import anyio
    import msgspec

    from kzconsumer.logs import setup
    from kzconsumer.model import TopicPartition
    from kzconsumer_tools.offsets.prepare import within
    from kzconsumer_tools.offsets.stored import show
    from kzconsumer_tools.tables.offsets import show_table

    setup.for_one_answer()
    seen = anyio.run(at.seen, group)
    found = show(seen.nodes, at.storage, seen.brokers)
    scope = topics_together(arguments.topic)
    partitions = tuple(p for p in found.partitions if within(TopicPartition(p.topic, p.partition), scope))
    left = tuple(p for p in found.left_by_0_7 if within(TopicPartition(p.topic, p.partition), scope))
    found = msgspec.structs.replace(found, partitions=partitions, left_by_0_7=left)
    print(msgspec.json.encode(found).decode() if arguments.output == "json" else show_table(found))
    return 0


def run_export(arguments: argparse.Namespace) -> int:
    at = target(arguments)
    group = required_group(arguments, at)

    import sys

    import anyio

    from kzconsumer.errors import NotDone
    from kzconsumer.logs import setup
    from kzconsumer.model import TopicPartition
    from kzconsumer.registry.paths import GroupPaths, partition_of_0_7
    from kzconsumer_tools.commands.execute_option import write_file
    from kzconsumer_tools.groups.reader import read_nodes
    from kzconsumer_tools.offsets.files import write_offsets
    from kzconsumer_tools.offsets.prepare import within
    from kzconsumer_tools.offsets.stored import offsets_of_0_7, stored_offsets

    setup.for_one_answer()
    scope = topics_together(arguments.topic)
    nodes = anyio.run(read_nodes, at.zookeeper, group)
    saved = [(GroupPaths(group).offset(p), data) for p, data in stored_offsets(nodes).items() if within(p, scope)]
    for path, data in offsets_of_0_7(nodes).items():
        left = partition_of_0_7(path)
        if within(TopicPartition(left.topic, left.number), scope):
            saved.append((path, data))
    try:
        content = write_offsets(arguments.format, saved)
    except ValueError as error:
        raise NotDone(f"{error}; --format nodes writes what is no offset too") from None
    if arguments.output_file is None:
        sys.stdout.buffer.write(content)
        sys.stdout.flush()
    else:
        write_file(arguments.output_file, content)
    return 0


def run_reset(arguments: argparse.Namespace) -> int:
    from kzconsumer_tools.commands.offsets_apply import reset
    from kzconsumer_tools.commands.reset_options import wanted

    at = target(arguments)
    group = required_group(arguments, at)
    if arguments.from_file is not None:
        if arguments.topic or arguments.all_topics:
            arguments.misused("--from-file says which partitions; give it without --topic and --all-topics")
        return _run_file(arguments, arguments.from_file, group)
    if bool(arguments.topic) == arguments.all_topics:
        arguments.misused("give --topic TOPIC (one or more), or --all-topics")
    to = wanted(arguments)
    assert to is not None
    scope = topics_together(arguments.topic)
    return _act(arguments, reset(at, group, scope, to))


def run_import(arguments: argparse.Namespace) -> int:
    return _run_file(arguments, arguments.file, arguments.group)


def run_clone(arguments: argparse.Namespace) -> int:
    from kzconsumer_tools.commands.offsets_apply import clone

    return _act(
        arguments, clone(target(arguments), arguments.source, arguments.group, topics_together(arguments.topic))
    )


def run_copy(arguments: argparse.Namespace) -> int:
    at = target(arguments)
    group = required_group(arguments, at)
    if arguments.source == arguments.destination:
        arguments.misused("--from and --to are the same place")

    from kzconsumer_tools.commands.offsets_copy import to_brokers, to_zookeeper

    scope = topics_together(arguments.topic)
    if arguments.destination == "zookeeper":
        return _act(arguments, to_zookeeper(at, group, scope))
    return _act_with_brokers(arguments, to_brokers(at, group, scope))


def _run_file(arguments: argparse.Namespace, path: Path, group: str | None) -> int:
    from kzconsumer.errors import NotDone
    from kzconsumer_tools.commands.execute_option import read_file
    from kzconsumer_tools.commands.offsets_apply import from_file
    from kzconsumer_tools.offsets.coordinator_changes import read_undo
    from kzconsumer_tools.offsets.files import read_offsets

    at = target(arguments)
    try:
        raw = read_file(path)
        if (saved := read_undo(raw)) is not None:
            from kzconsumer_tools.commands.offsets_copy import undone

            saved = [each for each in saved if group in (None, each.group)]
            if not saved:
                raise NotDone(f"{path}: no offset of group {group}")
            return _act_with_brokers(arguments, undone(at, saved))
        content = read_offsets(raw)
    except ValueError as error:
        raise NotDone(f"{path}: {error}") from None
    unnamed = any(each.group is None for each in content.offsets)
    if unnamed and group is None:
        group = at.group or arguments.misused("the file names no group; give --group GROUP")
    if group is not None:
        kept = tuple(each for each in content.offsets if each.group in (None, group))
        if not kept:
            raise NotDone(f"{path}: no offset of group {group}")
    else:
        kept = content.offsets
    return _act(arguments, from_file(at, kept, group, as_they_are=content.format == "nodes"))


def _act(arguments: argparse.Namespace, act: Act) -> int:
    import anyio

    from kzconsumer.logs import setup
    from kzconsumer_tools.commands.offsets_apply import carry_out

    setup.for_one_answer()
    return _answer(arguments, anyio.run(carry_out, act, arguments.execute, arguments.republish, arguments.undo))


def _act_with_brokers(arguments: argparse.Namespace, act: BrokerAct) -> int:
    import anyio

    from kzconsumer.logs import setup
    from kzconsumer_tools.commands.offsets_copy import carry_out

    setup.for_one_answer()
    return _answer(arguments, anyio.run(carry_out, act, arguments.execute, arguments.undo))


def _answer(arguments: argparse.Namespace, answer: Moved) -> int:
    import msgspec

    from kzconsumer_tools.commands.cluster_option import again
    from kzconsumer_tools.tables.offsets import moves_table

    print(msgspec.json.encode(answer).decode() if arguments.output == "json" else moves_table(answer, again(arguments)))
    return 0
