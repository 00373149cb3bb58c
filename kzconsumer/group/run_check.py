"""Whether a scheduled job has anything to do at all: asked before its sink starts, which may take long.

Owns a session and connections for as long as it lasts; the daemon calls it. It begins the run that the member would,
joins it or ends it: all that needs no claim.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import structlog

from kzconsumer.brokers.leaders import Leaders
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.security import load_security
from kzconsumer.errors import ConnectionLost, SessionExpired
from kzconsumer.group.runs import Runs
from kzconsumer.registry.registration import registered
from kzconsumer.registry.run_record import GroupRun
from kzconsumer.registry.sessions import open_session
from kzconsumer.registry.topics import TopicRegistry
from kzconsumer.settings.settings import Settings
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import Watches

log = structlog.get_logger("kzconsumer.group")


async def is_over(settings: Settings, is_ours: Callable[[GroupRun], bool], *, replayable: bool) -> bool:
    """Whether the run that was asked for is over: everything up to its ends is committed.

    Waits for ZooKeeper, and for brokers that tell the ends. Raises as `Runs.join` and `Runs.look`.
    """
    fetch, brokers = settings.fetch, settings.brokers
    security = partial(load_security, brokers, settings.source)
    async with Brokers(client_id=settings.group.id, timeout=fetch.request_timeout, security=security) as connections:
        while True:
            try:
                async with open_session(settings.zookeeper, brief=True) as session:
                    return await _look(_runs(session, settings, connections, replayable=replayable), is_ours)
            except (ConnectionLost, SessionExpired) as error:
                log.info("looks again whether there is anything to do", reason=str(error))


async def _look(runs: Runs, is_ours: Callable[[GroupRun], bool]) -> bool:
    while True:
        run, before = await runs.join(), None
        while run.finished is None and run != before:  # one of which something is gone ends sooner: another look
            before, run = run, await runs.look(run)
        if run.finished is None:
            return False
        if is_ours(run):
            return True


def _runs(session: ZooKeeperSession, settings: Settings, brokers: Brokers, *, replayable: bool) -> Runs:
    topics = TopicRegistry(session, Watches(session), settings.brokers)
    leaders = Leaders(topics, brokers, settings.fetch.request_timeout)
    return Runs(session, settings, registered(settings.subscription), leaders, brokers, replayable=replayable)
