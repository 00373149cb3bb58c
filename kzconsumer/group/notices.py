"""Logs conditions that last over several rebalances once, not at every attempt."""

from __future__ import annotations

from collections.abc import Container, Mapping

from kzconsumer.group.snapshot import GroupSnapshot
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.registry.ownership import Blocked, blocked_by
from kzconsumer.registry.registration import Registration, has_wildcard, streams_by_topic

log = get_logger("kzconsumer.group")

# Seconds after which a claim that is still blocked is reported: an ordinary hand-over takes a moment.
DEGRADED_AFTER = 5.0


class Notices:
    """The lasting conditions of one membership."""

    def __init__(self, registration: Registration) -> None:
        self._registration = registration
        self._logged: set[str] = set()
        self._blocked: dict[TopicPartition, tuple[Blocked, float]] = {}  # since when
        self._degraded: set[TopicPartition] = set()

    def once(self, event: str, about: str, reason: object = None, *, error: bool = False, **more: str) -> None:
        if f"{event} {about}" not in self._logged:
            self._logged.add(f"{event} {about}")
            report = log.error if error else log.warning
            report(event, about=about, **more, **({"reason": str(reason)} if reason else {}))

    def blocked(self, now: float, blocked: Mapping[TopicPartition, Blocked], members: Container[str]) -> None:
        """`blocked` has all claims that are blocked at the moment, and by what."""
        before = self._blocked
        self._blocked = {
            p: (why, before[p][1] if p in before and before[p][0] == why else now) for p, why in blocked.items()
        }
        for partition, (why, since) in self._blocked.items():
            if partition not in self._degraded and now - since >= DEGRADED_AFTER:
                self._degraded.add(partition)
                log.warning(
                    "degraded",
                    **partition._asdict(),
                    path=why.path,
                    owner=why.owner,
                    blocked_by=blocked_by(why, members).value,
                )
        if self._degraded:
            self._degraded.intersection_update(self._blocked)
            if not self._degraded:
                log.info("no longer degraded")

    def lasting(self, now: float) -> dict[TopicPartition, Blocked]:
        """The claims that have been blocked for DEGRADED_AFTER."""
        return {p: why for p, (why, since) in self._blocked.items() if now - since >= DEGRADED_AFTER}

    def idle_streams(self, snapshot: GroupSnapshot, wanted: Mapping[TopicPartition, ConsumerThreadId]) -> None:
        """Report streams that get no partition, and topics that do not exist."""
        if has_wildcard(self._registration):
            ((pattern, streams),) = self._registration.subscription.items()
            if not streams_by_topic(self._registration, snapshot.all_topics):
                about = f"{self._registration.pattern} {pattern}"
                self.once("no topic matches the list", about)
                return
            idle = set(range(streams)).difference(thread.thread for thread in wanted.values())
            for number in sorted(idle):
                self.once("stream has no partition", f"stream {number}")
            return
        busy = {(partition.topic, thread.thread) for partition, thread in wanted.items()}
        for topic, streams in self._registration.subscription.items():
            if topic not in snapshot.topics:
                self.once("topic does not exist", f"/brokers/topics/{topic}")
                continue
            for number in range(streams):
                if (topic, number) not in busy:
                    self.once("stream has no partition", f"{topic} stream {number}")
