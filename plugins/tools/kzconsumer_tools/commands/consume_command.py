"""`kzconsumer consume`: print records, as a member of a group or without one.

Records are printed as lines, as JSON lines or by a format string; progress is shown on standard error if that is a
terminal and standard output is not. After SIGINT, SIGTERM or SIGPIPE it leaves its group and then dies of that signal,
as shells expect (130, 143, 141).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, TypeVar

import msgspec

from kzconsumer.cli.arguments import whole_number
from kzconsumer.display import plural, rate
from kzconsumer.errors import NotDoneError, NotFoundError
from kzconsumer.settings.sections import SubscriptionSettings
from kzconsumer.settings.settings import Settings
from kzconsumer.settings.value_readers import read_list, read_name
from kzconsumer_tools.commands.cluster_option import add_cluster_option, cluster_settings
from kzconsumer_tools.commands.output_and_options import chosen_topics, read_datetime, topic_scope
from kzconsumer_tools.consume.format_and_places import VALUE_LINES, Place, read_format, read_place
from kzconsumer_tools.offsets.stored_offsets import stored_offsets

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from kzconsumer_tools.consume.printing import Printer, Wanted


T = TypeVar("T")


def add_consume(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    consume = subparsers.add_parser(
        "consume",
        help="print records, with a group or without",
        description="Print the records of topics on standard output. Without --group it joins no group and stores "
        "nothing. With --group it joins that group and commits what it has printed.",
        examples=(
            "orders -e",
            r"orders:0 --from -10 -f '%p %o %k %s\n'",
            "orders --group first -c 3",
            '--include "orders|payments" --from 2026-01-31T12:00 -o json',
        ),
    )
    add = consume.add_argument
    add("topics", metavar="TOPIC", nargs="*", type=topic_scope, help="or TOPIC:0,1,2; default: those of --config")
    lists = consume.add_mutually_exclusive_group()
    white = "all topics that match; in a group, also those created later"
    lists.add_argument("--include", metavar="REGEX", type=_list, help=white)
    lists.add_argument("--exclude", metavar="REGEX", type=_list, help="all topics that do not match")
    add("--group", metavar="GROUP", type=_name, help="join this group, and commit what is printed")
    place = "beginning, end, stored:GROUP, an offset, -N (before the end), or a time such as 2026-01-31T12:00 or @MS"
    add("--from", dest="begin", metavar="WHERE", type=_place, help=f"{place}; default: beginning, or the stored offset")
    add("--until", metavar="WHERE", type=_place, help="the same forms, evaluated at the start; default: no end")
    add("-e", dest="until_end", action="store_true", help="--until end")
    add("-c", "--count", metavar="N", type=whole_number("a number of records", 1), help="print at most N records")
    output = consume.add_mutually_exclusive_group()
    output.add_argument(
        "-o", "--output", choices=("value", "json"), default="value", help="a line for each record; default: value"
    )
    form = r"such as '%%t %%p %%o %%k %%s %%T %%h\n', as in kcat; %%S %%K sizes, %%R a binary size, %%%% a percent"
    output.add_argument("-f", "--format", metavar="FORMAT", type=_form, help=form)
    add("--null", metavar="TEXT", default="", help="printed for a key or value that is null; default: nothing")
    add("--key", metavar="REGEX", type=_expression, help="only records whose key matches")
    add("--value", metavar="REGEX", type=_expression, help="only records whose value matches")
    header = "only records with that header, and a matching value of it; may be repeated"
    add("--header", metavar="NAME[=REGEX]", type=_header, action="append", default=[], help=header)
    add_cluster_option(consume, output=False)
    consume.set_defaults(run=run_consume)


def run_consume(arguments: argparse.Namespace) -> int:
    import signal
    import sys

    settings = consume_settings(arguments)
    wanted = _wanted(arguments)

    import anyio

    from kzconsumer.logs import setup

    setup.configure("warning", "line")
    sys.stdout.flush()
    try:
        ended_by = anyio.run(_print, arguments, settings, wanted)
    except KeyboardInterrupt:
        ended_by = signal.SIGINT
    if ended_by is not None:
        _die_of(ended_by)
    return 0


async def _print(arguments: argparse.Namespace, settings: Settings, wanted: Wanted) -> int | None:
    import sys

    from kzconsumer_tools.consume.printing import print_records

    if arguments.group is not None and arguments.begin is not None:
        await _refuse_stored(settings)
    if arguments.group is not None and arguments.topics:
        await _require_topics(settings, [topic for topic, _ in arguments.topics])
    return await print_records(
        settings,
        wanted,
        scope=chosen_topics(arguments.topics),
        member=arguments.group is not None,
        descriptor=sys.stdout.fileno(),
        beside=_progress,
    )


async def _refuse_stored(settings: Settings) -> None:
    """`--from` is for groups without stored offsets, as in the original console consumer."""
    from kzconsumer_tools.groups.cluster_access import read_nodes

    group, topics = settings.group.id, settings.subscription.filter
    assert topics is not None
    try:
        stored = stored_offsets(await read_nodes(settings, group))
    except NotFoundError:
        return
    if any(topics.allows(each.topic) for each in stored):
        raise NotDoneError(
            f"group {group} has stored offsets and continues there; leave out --from, or change them with "
            "kzconsumer offsets reset"
        )


async def _require_topics(settings: Settings, names: list[str]) -> None:
    """Of topics that are given by name, one has to exist; those of --include may be created later."""
    from kzconsumer.fetcher.range_reader import range_reader

    async with range_reader(settings) as reader:
        await reader.topics(SubscriptionSettings(topics=dict.fromkeys(names, 1)))


async def _progress(printer: Printer) -> None:
    """Shows progress in the terminal's last line once a second, unless records are printed there too."""
    import sys

    import anyio

    if not sys.stderr.isatty() or sys.stdout.isatty():
        return
    records = 0
    try:
        while True:
            await anyio.sleep(1)
            new, records = printer.records - records, printer.records
            text = f"{plural(records, 'record')}, {printer.size / 1e6:,.1f} MB, {rate(new)}"
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def consume_settings(arguments: argparse.Namespace) -> Settings:
    """The settings of the file, or defaults, with the options applied. Ends with status 2 on wrong usage."""
    settings = cluster_settings(arguments)
    group = msgspec.structs.replace(settings.group, id=arguments.group or settings.group.id)
    offsets = settings.offsets
    if arguments.group is not None:
        _check_member(arguments)
        if arguments.begin is not None and arguments.begin.kind != "stored":
            resets = {"beginning": "smallest", "end": "largest"}
            offsets = msgspec.structs.replace(offsets, reset=resets[arguments.begin.kind])
    return msgspec.structs.replace(
        settings, group=group, offsets=offsets, subscription=_subscription(arguments, settings)
    )


def _check_member(arguments: argparse.Namespace) -> None:
    begin: Place | None = arguments.begin
    if begin is not None and (begin.kind not in ("beginning", "end", "stored") or begin.group is not None):
        arguments.misused(
            "--from of a group is beginning, end or stored; for any other offset use kzconsumer offsets reset"
        )
    if any(numbers is not None for _, numbers in arguments.topics):
        arguments.misused("partitions can be chosen without --group only: in a group they are assigned")


def _subscription(arguments: argparse.Namespace, settings: Settings) -> SubscriptionSettings:
    """In a group, topics become a filter as in the original console consumer: one stream has them all."""
    given = [bool(arguments.topics), arguments.include is not None, arguments.exclude is not None]
    if sum(given) > 1:
        arguments.misused("give topics, --include or --exclude, only one of them")
    if arguments.config is not None and not any(given):
        of_file = settings.require_subscription()
        if of_file.filter is not None:
            return SubscriptionSettings(include=of_file.include, exclude=of_file.exclude)
        names = list(of_file.topics)
    elif not any(given):
        arguments.misused("nothing to read: give TOPIC, --include or --exclude")
    else:
        names = [topic for topic, _ in arguments.topics]
    if not names:
        return SubscriptionSettings(include=arguments.include, exclude=arguments.exclude)
    if arguments.group is None:
        return SubscriptionSettings(topics=dict.fromkeys(names, 1))
    return SubscriptionSettings(include="|".join(name.replace(".", r"\.") for name in dict.fromkeys(names)))


def _wanted(arguments: argparse.Namespace) -> Wanted:
    from kzconsumer_tools.consume.printing import Wanted
    from kzconsumer_tools.consume.record_text import RecordFilter

    if arguments.until_end and arguments.until is not None:
        arguments.misused("-e means --until end; give one of them")
    begin: Place = arguments.begin or Place("beginning")
    if begin.kind == "stored" and begin.group is None and arguments.group is None:
        arguments.misused("--from stored needs a group: give --from stored:GROUP, or --group GROUP to join it")
    until: Place | None = Place("end") if arguments.until_end else arguments.until
    if until is not None and until.kind == "stored":
        arguments.misused("--until is end, an offset, -N or a time")
    if until is not None and not begin.may_precede(until):
        arguments.misused("--from is not before --until")
    form = arguments.format if arguments.format is not None else read_format(VALUE_LINES)
    return Wanted(
        begin=begin,
        until=until,
        count=arguments.count,
        filter=RecordFilter(arguments.key, arguments.value, tuple(arguments.header)),
        form=form if arguments.output != "json" else None,
        null=arguments.null.encode("utf-8", "surrogateescape"),
    )


def _die_of(number: int) -> NoReturn:
    """End by the signal, for the parent process to see; also while a thread is blocked in a write."""
    import os
    import signal
    import sys

    sys.stderr.flush()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    raise AssertionError(f"signal {number} did not end the process")


def _read(text: str, read: Callable[[str], T]) -> T:
    """Applies `read`; its ValueError is wrong usage."""
    try:
        return read(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def _place(text: str) -> Place:
    return _read(text, lambda text: read_place(text, _place_in_time))


def _place_in_time(text: str) -> int:
    if not text[:1].isdigit():
        forms = "beginning, end, stored:GROUP, an offset, -N, @MS, nor a time such as 2026-01-31T12:00"
        raise argparse.ArgumentTypeError(f"{text!r} is not {forms}")
    return read_datetime(text)


def _form(text: str) -> object:
    return _read(text, read_format)


def _expression(text: str) -> str:
    from kzconsumer_tools.consume.record_text import check_expression

    return _read(text, check_expression)


def _header(text: str) -> object:
    from kzconsumer_tools.consume.record_text import read_header

    return _read(text, read_header)


def _list(text: str) -> str:
    return _read(text, read_list)


def _name(text: str) -> str:
    """Of a group that is joined: original members of it refuse other names."""
    return _read(text, read_name)
