"""Brokers that can be reached: for the producer of dead letters, and for a member that left as unfit."""

from __future__ import annotations

from kzconsumer.brokers.leaders import KnownBrokers
from kzconsumer.brokers.pool import Brokers
from kzconsumer.errors import BrokersUnreachableError, KzConsumerError, UnsupportedVersionError
from kzconsumer.registry.topics import TopicRegistry


async def bootstrap(known: KnownBrokers, brokers: Brokers) -> str:
    """The brokers' addresses as librdkafka expects them. Raises KzConsumerError when none of them keeps headers."""
    found = await known.brokers()
    for broker in found:
        connection = await brokers.connection(broker)
        if not connection.versions.keep_headers:
            raise UnsupportedVersionError(
                f"{broker} stores no headers (before Kafka 0.11), which dead letters need: set [rejected] directory"
            )
        return ",".join(f"[{at.host}]:{at.port}" if ":" in at.host else f"{at.host}:{at.port}" for at in found)
    raise BrokersUnreachableError("none is up")


async def unreachable(topics: TopicRegistry, brokers: Brokers) -> str | None:
    """Why no broker accepts a connection; None if one does."""
    try:
        found = await topics.brokers()
    except KzConsumerError as error:
        return str(error)
    reason = "; ".join(topics.unusable.values()) or "no broker is up"
    for broker in found:
        try:
            await brokers.connection(broker)
        except KzConsumerError as error:
            reason = str(error)
        else:
            return None
    return reason
