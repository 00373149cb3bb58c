"""`kzconsumer groups plan`: who would own which partitions if members joined.

JSON has the fields of `groups.assignment_preview.AssignmentPreview`.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from kzconsumer.cli.configuration import add_config, layers_given
from kzconsumer.cli.parser import whole_number
from kzconsumer.plugins import ASSIGNORS, load_chosen
from kzconsumer.registry.registration import Registration, registered
from kzconsumer.settings.settings import Settings
from kzconsumer_tools.commands.answer import add_output, show
from kzconsumer_tools.groups.assignment_preview import preview
from kzconsumer_tools.tables.assign import table

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from kzconsumer.assignors.interface import Assignor


def add_action(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    plan = actions.add_parser(
        "plan",
        help="preview the assignment if members joined",
        description="Read the group, and show which partitions each member would own, and which would move, if members "
        "with this file's subscription joined: one by default. Changes nothing. The ids of joining members are made "
        "up; a real member has another id, and so perhaps another position among the members.",
        examples=("--config orders.toml", "--config orders.toml --members 3", "--config orders.toml --member 4 1"),
    )
    add_config(plan)
    joining = plan.add_mutually_exclusive_group()
    joining.add_argument(
        "--members", type=whole_number("a number of members"), metavar="N", help="number of joining members; may be 0"
    )
    joining.add_argument(
        "--member",
        type=whole_number("a number of streams", 1),
        nargs="+",
        metavar="STREAMS",
        help="streams per topic of each joining member",
    )
    add_output(plan)
    plan.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    layers = layers_given(arguments)
    import anyio

    from kzconsumer.cli.progress import progress
    from kzconsumer.logs import setup
    from kzconsumer_tools.groups.live_group import read_group

    settings = Settings.of(layers)
    setup.configure("warning", "line")  # an ignored registration changes the result
    chosen = settings.group
    streams = arguments.member or [None] * (1 if arguments.members is None else arguments.members)
    with layers.named(), progress("waiting for the cluster"):
        assignor = cast("Assignor", load_chosen(ASSIGNORS, chosen.assignor, f"{settings.source}: [group] assignor"))
        group = anyio.run(read_group, settings, _joining(settings, streams))
    result = preview(chosen.id, chosen.assignor, assignor, group.present, group.joined, group.owners)
    return show(arguments, result, table)


def _joining(settings: Settings, streams: list[int | None]) -> dict[str, Registration]:
    """Consumer id -> registration of the joining members; None stands for the file's own numbers of streams."""
    from kzconsumer.group.membership import new_consumer_id

    # Only one member can have the fixed id of the file.
    fixed = [settings.group.consumer_id, *[None] * len(streams)]
    ids = [new_consumer_id(settings.group.id, known) for known in fixed[: len(streams)]]
    return {consumer: _registration(settings, number) for consumer, number in zip(ids, streams, strict=True)}


def _registration(settings: Settings, streams: int | None) -> Registration:
    registration = registered(settings.require_subscription())
    if streams is None:
        return registration
    return replace(registration, subscription=dict.fromkeys(registration.subscription, streams))
