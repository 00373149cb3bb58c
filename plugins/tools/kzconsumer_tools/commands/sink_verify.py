"""`kzconsumer sink verify`: check the destination against the group's stored offsets and plans.

JSON has the fields of `sinks.findings.Proof`.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kzconsumer.cli.configuration import add_config, layers_given
from kzconsumer.errors import KzConsumerError, NotDoneError, PluginError, ZooKeeperUnreachableError
from kzconsumer.model import RangeIdentity, TopicPartition
from kzconsumer.offsets.adoption import resume
from kzconsumer.registry import paths
from kzconsumer.registry.claim_record import decode_claim_record
from kzconsumer.settings.settings import Settings
from kzconsumer_tools.commands.answer import EXIT_UNHEALTHY, add_output, ask, show
from kzconsumer_tools.groups.nodes import GroupNodes
from kzconsumer_tools.offsets.changes import offset_in
from kzconsumer_tools.paths import partition_of
from kzconsumer_tools.sinks.findings import GroupProgress, InLog, Planned, Proof

if TYPE_CHECKING:
    from argparse import _SubParsersAction
    from collections.abc import Callable, Collection, Mapping

    from kzconsumer.sinks.reports import Accountable


def add_arguments(actions: _SubParsersAction[argparse.ArgumentParser]) -> None:
    verify = actions.add_parser(
        "verify",
        help="check that the destination has what the group has consumed: no gap, no overlap, equal counts",
        description="Compare the destination (its ledger and its rows) with the group's stored offsets and plans. The "
        "group may be running. Changes nothing. Exit status 3 if there is a finding.",
        examples=("--config lake.toml", "--config lake.toml -o json"),
    )
    add_config(verify)
    add_output(verify)
    verify.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    layers = layers_given(arguments)
    from kzconsumer_tools.tables.sink import proof_table

    settings = Settings.of(layers)
    with layers.named():
        settings.require_daemon()
        proof = ask(verify, settings)
    return show(arguments, proof, proof_table, 0 if proof.healthy else EXIT_UNHEALTHY)


async def verify(settings: Settings) -> Proof:
    """Read the group, the destination, and the group again. Raises KzConsumerError."""
    from pathlib import Path

    from anyio import to_thread

    from kzconsumer.sinks.quarantine import kept_ranges
    from kzconsumer_tools.groups.cluster_access import read_nodes
    from kzconsumer_tools.sinks.proof import gaps, prove

    group, aside = settings.group.id, settings.require_daemon().quarantine
    nodes = await read_nodes(settings, group)
    before = progress_of(nodes)
    sink = await accountable(settings, group)
    kept = await to_thread.run_sync(kept_ranges, Path(aside)) if aside is not None else []
    holdings = await sink.holdings(count_rows=True)
    after = progress_of(await read_nodes(settings, group))
    missing = gaps(before, holdings, kept)
    return prove(group, before, holdings, after, kept, await _in_log(settings, missing, incarnations(nodes)))


async def accountable(settings: Settings, group: str, safe_until: Callable[[], float] = lambda: 0.0) -> Accountable:
    """The settings' sink for `group`, not entered. Raises PluginError if it cannot list what it holds."""
    import anyio

    from kzconsumer.registry.cluster_id import cluster_identity
    from kzconsumer.registry.sessions import LIMIT
    from kzconsumer.sinks.capabilities import capabilities
    from kzconsumer.sinks.configured import configured_sink
    from kzconsumer.sinks.interface import SinkContext

    cluster = None
    with anyio.move_on_after(LIMIT):
        cluster = await cluster_identity(settings)
    if cluster is None:
        raise ZooKeeperUnreachableError(f"{settings.zookeeper.connect}: no broker has registered within {LIMIT:.0f} s")
    context = SinkContext(group=group, member="", cluster=cluster, safe_until=safe_until)
    accounts = capabilities(configured_sink(settings, context)).accounts
    if accounts is None:
        raise PluginError(f'sink "{settings.require_daemon().plugin}" cannot list what its destination holds')
    return accounts


def progress_of(nodes: GroupNodes) -> dict[TopicPartition, GroupProgress]:
    """The stored offsets and plans. Raises NotDoneError for a claim record of an unknown format."""
    group = paths.GroupPaths(nodes.group)
    found = {}
    for path, node in nodes.claims.items():
        try:
            partition = partition_of(path)
            record = decode_claim_record(node.data)
        except ValueError as error:
            raise NotDoneError(f"{path}: {error}") from None
        planned = None
        if (plan := record.plan) is not None:
            incarnation = int(plan.incarnation, 16)
            identity = RangeIdentity(*partition, incarnation, plan.epoch, plan.first, plan.until)
            planned = Planned(identity, plan.records if plan.checksum else None, plan.fingerprint)
        offset = nodes.offsets.get(group.offset(partition))
        stored = resume(offset_in(offset.data) if offset is not None else None, record.committed_until)
        found[partition] = GroupProgress(int(record.incarnation, 16), record.epoch, stored, planned)
    return found


def incarnations(nodes: GroupNodes) -> dict[str, int]:
    """Topic -> incarnation, of the topics that exist and that the group has consumed."""
    return {name: topic.incarnation for name, topic in nodes.topics.items() if topic.incarnation is not None}


async def _in_log(
    settings: Settings, missing: Collection[RangeIdentity], topics: Mapping[str, int]
) -> dict[RangeIdentity, InLog]:
    """What the log has of the missing ranges; each is read up to the first record found."""
    from kzconsumer.fetcher.range_reader import range_reader

    found: dict[RangeIdentity, InLog] = dict.fromkeys(missing, "unknown")
    asked = [each for each in missing if topics.get(each.topic) == each.incarnation]
    for each in missing:
        if each not in asked:
            found[each] = "gone"  # with its topic
    if not asked:
        return found
    try:
        async with range_reader(settings) as reader:
            logs = await reader.logs({TopicPartition(each.topic, each.partition) for each in asked})
            for each in asked:
                start, end = logs[TopicPartition(each.topic, each.partition)]
                first, until = max(start, each.first), min(end, each.until)
                if first < until and await reader.any_record(each.topic, each.partition, first, until):
                    found[each] = "records"
                else:
                    found[each] = "none" if (first, until) == (each.first, each.until) else "gone"
    except KzConsumerError:
        pass  # those without an answer remain unknown
    return found
