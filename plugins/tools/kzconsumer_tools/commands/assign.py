"""`kzconsumer assign plan`: who would get what before anyone joins, and what would move.

Owns no state, changes nothing: it reads the group and computes what its members would. Standard output is the answer, a
table of 80 columns or one JSON object with the fields of `group.assignment_preview`.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kzconsumer.cli.configuration import add_config, layers_given

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from kzconsumer.registry.registration import Registration
    from kzconsumer.settings.settings import Settings


def add_arguments(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    assign = subparsers.add_parser("assign", help="show who would get what before anyone joins")
    actions = assign.add_subparsers(dest="action", required=True, metavar="ACTION")
    plan = actions.add_parser(
        "plan",
        help="show who would get what, and what would move, if members joined",
        description="Read the group as it is, and show who would get what, and what would move, if members with this "
        "file's subscription joined: one unless told otherwise. Nothing is changed. A member that joins later has "
        "another id than the one made up here, and with it perhaps another place among the members.",
    )
    add_config(plan)
    joining = plan.add_mutually_exclusive_group()
    joining.add_argument("--members", type=_none_or_more, metavar="N", help="how many join; 0 shows the group as it is")
    joining.add_argument(
        "--member", type=_one_or_more, nargs="+", metavar="STREAMS", help="one for each that joins: its streams a topic"
    )
    plan.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")
    plan.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    layers = layers_given(arguments)
    from typing import cast

    import anyio
    import msgspec

    from kzconsumer.assignors.interface import Assignor
    from kzconsumer.logs import setup
    from kzconsumer.plugins import ASSIGNORS, load_chosen
    from kzconsumer.settings.settings import Settings
    from kzconsumer_tools.groups.assignment_preview import preview
    from kzconsumer_tools.groups.reader import read_group
    from kzconsumer_tools.tables.assign import table

    settings = Settings.of(layers)
    setup.configure("warning", "line")  # a registration that is passed over changes the answer
    chosen = settings.group
    each = arguments.member or [None] * (1 if arguments.members is None else arguments.members)
    with layers.named():
        assignor = cast(Assignor, load_chosen(ASSIGNORS, chosen.assignor, f"{settings.source}: [group] assignor"))
        group = anyio.run(read_group, settings, _joining(settings, each))
    result = preview(chosen.id, chosen.assignor, assignor, group.present, group.joined, group.owners)
    print(msgspec.json.encode(result).decode() if arguments.output == "json" else table(result))
    return 0


def _joining(settings: Settings, each: list[int | None]) -> dict[str, Registration]:
    """Consumer id -> registration of those who would join; None stands for the file's own numbers of streams."""
    from kzconsumer.group.membership import new_consumer_id

    # A fixed id can be a member's only once.
    fixed = [settings.group.consumer_id, *[None] * len(each)]
    ids = [new_consumer_id(settings.group.id, known) for known in fixed[: len(each)]]
    return {consumer: _registration(settings, streams) for consumer, streams in zip(ids, each, strict=True)}


def _registration(settings: Settings, streams: int | None) -> Registration:
    from msgspec.structs import replace

    from kzconsumer.registry.registration import registered

    registration = registered(settings.require_subscription())
    if streams is None:
        return registration
    return replace(registration, subscription=dict.fromkeys(registration.subscription, streams))


def _none_or_more(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of members")
    return int(text)


def _one_or_more(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of streams")
    return int(text)
