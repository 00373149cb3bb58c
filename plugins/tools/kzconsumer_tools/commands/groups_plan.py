"""`kzconsumer groups plan`: who would own which partitions if members joined.

JSON has the fields of `groups.assignment_preview.AssignmentPreview`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from kzconsumer.cli.configuration import layers_given
from kzconsumer.cli.parser import whole_number
from kzconsumer.errors import NotFoundError
from kzconsumer.plugins import ASSIGNORS, load_chosen
from kzconsumer.registry.registration import Registration, registered
from kzconsumer.settings.settings import Settings
from kzconsumer_tools.commands.answer import show
from kzconsumer_tools.commands.cluster_option import add_cluster_option, add_group, cluster_settings
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
        "joined: one by default, with the file's subscription, or that of most members. Changes nothing. The ids of "
        "joining members are made up; a real member has another id, and so perhaps another position among the members.",
        examples=("orders", "orders --members 3 --context prod", "--config orders.toml --member 4 1"),
    )
    add_group(plan)
    plan.add_argument("--assignor", metavar="NAME", default="range", help="without --config; default: range")
    add_cluster_option(plan)
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
    plan.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    import anyio

    from kzconsumer.cli.progress import progress
    from kzconsumer.logs import setup
    from kzconsumer_tools.groups.live_group import read_group

    settings, named = _settings(arguments)
    setup.configure("warning", "line")  # an ignored registration changes the result
    chosen = settings.group
    streams = arguments.member or [None] * (1 if arguments.members is None else arguments.members)
    with named, progress("waiting for the cluster"):
        assignor = cast("Assignor", load_chosen(ASSIGNORS, chosen.assignor, f"{settings.source}: [group] assignor"))
        wanted = registered(settings.require_subscription()) if streams and arguments.config is not None else None
        joining = partial(_joining, settings, streams, wanted)
        group = anyio.run(read_group, settings, joining)
    result = preview(chosen.id, chosen.assignor, assignor, group.present, group.joined, group.owners)
    return show(arguments, result, table)


def _settings(arguments: argparse.Namespace) -> tuple[Settings, AbstractContextManager[object]]:
    """The file's, or those of the chosen cluster; and what names the origin of a fault."""
    if arguments.group is None or arguments.config is not None:
        layers = layers_given(arguments)
        settings = Settings.of(layers)
        group = replace(settings.group, id=arguments.group or settings.group.id)
        return replace(settings, group=group), layers.named()
    settings = cluster_settings(arguments)
    group = replace(settings.group, id=arguments.group, assignor=arguments.assignor)
    return replace(settings, group=group), nullcontext()


def _joining(
    settings: Settings, streams: list[int | None], wanted: Registration | None, present: Mapping[str, Registration]
) -> dict[str, Registration]:
    """Consumer id -> registration of the joining members; None stands for the usual numbers of streams.

    `wanted`: as the file says; None: as most of the members that are present.

    Raises NotFoundError if nothing says what they subscribe to.
    """
    from kzconsumer.group.membership import new_consumer_id

    usual = wanted or _of_most(present)
    if usual is None:
        if not streams:
            return {}
        raise NotFoundError(
            f"group {settings.group.id} has no members whose subscription others could have; give --config FILE"
        )
    # Only one member can have the fixed id of the file.
    fixed = [settings.group.consumer_id, *[None] * len(streams)]
    ids = [new_consumer_id(settings.group.id, known) for known in fixed[: len(streams)]]
    return {consumer: _with_streams(usual, number) for consumer, number in zip(ids, streams, strict=True)}


def _of_most(present: Mapping[str, Registration]) -> Registration | None:
    """The subscription of most members, of ours or not."""
    alike: dict[tuple[str, tuple[tuple[str, int], ...]], list[Registration]] = {}
    for member in present.values():
        alike.setdefault((member.pattern, tuple(sorted(member.subscription.items()))), []).append(member)
    return max(alike.values(), key=len)[0] if alike else None


def _with_streams(usual: Registration, streams: int | None) -> Registration:
    return usual if streams is None else replace(usual, subscription=dict.fromkeys(usual.subscription, streams))
