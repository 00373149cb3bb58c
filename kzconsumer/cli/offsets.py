"""`kzconsumer offsets show | reset | export | import | clone`: stored offsets in ZooKeeper, and moving them.

Owns no state. What changes something shows old and new first and does nothing without `--execute`; the undo file is on
disk before anything changes. Standard output is the answer, tables of 80 columns or JSON with the fields of
`group.group_offsets` and `offsets.moves`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from kzconsumer.cli.acting import add_execute
from kzconsumer.cli.reset_words import add_reset_words, topic_scope, topics_together
from kzconsumer.cli.target import add_group, add_target, group_name, required_group, target

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from kzconsumer.cli.offset_acts import Act

_REPUBLISH = "may let a replayable sink's destination get records a second time"


def add_arguments(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    offsets = subparsers.add_parser("offsets", help="show, export and move stored offsets")
    actions = offsets.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_show(actions)
    _add_export(actions)
    _add_reset(actions)
    _add_import(actions)
    _add_clone(actions)


def _add_show(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    show = actions.add_parser(
        "show",
        help="the offsets that a group has stored, and when",
        description="Show the offsets that a group has stored, when each was last written, and what its claim record "
        "says. Nothing is changed, and no broker is asked.",
    )
    add_group(show)
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

    from kzconsumer import log
    from kzconsumer.cli.offsets_table import show_table
    from kzconsumer.group.group_offsets import show
    from kzconsumer.group.group_reader import read_nodes
    from kzconsumer.group.offset_moves import within
    from kzconsumer.model import TopicPartition

    log.for_one_answer()
    found = show(anyio.run(read_nodes, at.zookeeper, group))
    scope = topics_together(arguments.topic)
    partitions = tuple(p for p in found.partitions if within(TopicPartition(p.topic, p.partition), scope))
    found = msgspec.structs.replace(found, partitions=partitions)
    print(msgspec.json.encode(found).decode() if arguments.output == "json" else show_table(found))
    return 0


def run_export(arguments: argparse.Namespace) -> int:
    at = target(arguments)
    group = required_group(arguments, at)

    import sys

    import anyio

    from kzconsumer import log
    from kzconsumer.cli.acting import write_file
    from kzconsumer.errors import NotDone
    from kzconsumer.group.group_offsets import stored_offsets
    from kzconsumer.group.group_reader import read_nodes
    from kzconsumer.group.offset_moves import within
    from kzconsumer.offsets.offset_files import write_offsets

    log.for_one_answer()
    scope = topics_together(arguments.topic)
    stored = stored_offsets(anyio.run(read_nodes, at.zookeeper, group))
    try:
        content = write_offsets(arguments.format, group, [(p, data) for p, data in stored.items() if within(p, scope)])
    except ValueError as error:
        raise NotDone(f"{error}; --format nodes writes what is no offset too") from None
    if arguments.output_file is None:
        sys.stdout.buffer.write(content)
        sys.stdout.flush()
    else:
        write_file(arguments.output_file, content)
    return 0


def run_reset(arguments: argparse.Namespace) -> int:
    from kzconsumer.cli.offset_acts import reset
    from kzconsumer.cli.reset_words import wanted

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
    from kzconsumer.cli.offset_acts import clone

    return _act(
        arguments, clone(target(arguments), arguments.source, arguments.group, topics_together(arguments.topic))
    )


def _run_file(arguments: argparse.Namespace, path: Path, group: str | None) -> int:
    from kzconsumer.cli.acting import read_file
    from kzconsumer.cli.offset_acts import from_file
    from kzconsumer.errors import NotDone
    from kzconsumer.offsets.offset_files import read_offsets

    at = target(arguments)
    try:
        content = read_offsets(read_file(path))
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
    import msgspec

    from kzconsumer import log
    from kzconsumer.cli.offset_acts import carry_out
    from kzconsumer.cli.offsets_table import moves_table
    from kzconsumer.cli.target import again

    log.for_one_answer()
    answer = anyio.run(carry_out, act, arguments.execute, arguments.republish, arguments.undo)
    print(msgspec.json.encode(answer).decode() if arguments.output == "json" else moves_table(answer, again(arguments)))
    return 0
