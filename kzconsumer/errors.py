"""Every exception of ours, named by what happens next.

Foreign exceptions become these at three seams only: `zookeeper/session`, `network/broker_connection`, `sinks/runner`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kzconsumer.model import TopicPartition
from kzconsumer.redaction import redacted_text


class KzConsumerError(Exception):
    """Base of all errors raised on purpose."""


class ConfigError(KzConsumerError):
    """The configuration cannot be used: exit status 78, do not restart. One line per fault.

    A fault repeats what was written, which may be a URL with a password in it: that is hidden.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(map(redacted_text, faults))
        super().__init__("\n".join(self.faults))


class PluginError(KzConsumerError):
    """A plugin cannot be found, loaded or run; the text names it and its distribution."""


class SinkFailed(KzConsumerError):
    """The sink could not make a batch durable: the member stops, nothing of the batch is committed."""


class RecordRejected(KzConsumerError):
    """A record was rejected, and `[rejected]` says "fail" for errors of its class: nothing was done with it."""

    def __init__(self, topic: str, partition: int, offset: int, error_class: str, reason: str) -> None:
        self.topic_partition = TopicPartition(topic, partition)
        self.offset = offset
        self.error_class = error_class
        self.reason = reason
        super().__init__(f"{self.topic_partition} at offset {offset} was rejected as {error_class}: {reason}")


class NotKept(KzConsumerError):
    """A dead letter could not be written: whoever rejects the record tries again."""


class ConnectionLost(KzConsumerError):
    """The connection broke; a request in flight may or may not have been executed. Its owner re-reads or retries."""


class SecurityError(ConnectionLost):
    """TLS or SASL came to no agreement: a server is not who it should be, or does not take us for whom we say we are.

    No request was executed. Trying again soon changes nothing: somebody has to change a setting, here or there.
    """


class BrokersUnreachable(KzConsumerError):
    """No broker has answered; the text gives each one's reason. Its owner asks again."""


class BrokerError(KzConsumerError):
    """A broker answered with an error code."""

    def __init__(self, code: int, name: str, detail: str, *, retriable: bool, refresh_metadata: bool) -> None:
        self.code = code
        self.name = name
        self.retriable = retriable
        self.refresh_metadata = refresh_metadata
        super().__init__(f"{detail}: {name} ({code})" if detail else f"{name} ({code})")


class CoordinatorFailed(KzConsumerError):
    """The group's coordinator, a broker, has not stored the group's offsets, or has not said what they are."""


class ProtocolError(KzConsumerError):
    """Bytes from a peer that no version of its protocol explains. The connection is closed."""


class UnsupportedVersion(KzConsumerError):
    """We and the broker share no version of a request we need."""


class CorruptRecord(KzConsumerError):
    """A record batch fails its checksum or its structure."""

    def __init__(self, topic_partition: TopicPartition, offset: int, reason: str) -> None:
        self.topic_partition = topic_partition
        self.offset = offset
        self.reason = reason
        super().__init__(f"corrupt batch in {topic_partition} at offset {offset}: {reason}")


class NotOwned(KzConsumerError):
    """The partition is not, or no longer, this member's."""

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        super().__init__(f"{topic_partition} is not owned by this member")


class OffsetLost(KzConsumerError):
    """The next offset of a partition is no longer (or not yet) in the log, and `reset = "fail"`; or a planned range."""


class RangeChanged(KzConsumerError):
    """A planned range holds other records than when it was planned (compaction, truncation): never written over."""


class ZooKeeperError(KzConsumerError):
    """ZooKeeper refused a request."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        super().__init__(f"{path}: {reason}" if path else reason)


class NoNode(ZooKeeperError):
    def __init__(self, path: str) -> None:
        super().__init__(path, "no such node")


class NodeExists(ZooKeeperError):
    def __init__(self, path: str) -> None:
        super().__init__(path, "node exists")


class NotPermitted(ZooKeeperError):
    def __init__(self, path: str) -> None:
        super().__init__(
            path, "not permitted: the ACL there is for another user ([zookeeper.sasl], [zookeeper.digest])"
        )


class NotEmpty(ZooKeeperError):
    def __init__(self, path: str) -> None:
        super().__init__(path, "node has children")


class BadVersion(ZooKeeperError):
    def __init__(self, path: str) -> None:
        super().__init__(path, "version is another")


class MultiFailed(ZooKeeperError):
    """A transaction was refused as a whole; `index` and `error` are the first operation that was the reason."""

    def __init__(self, index: int, error: ZooKeeperError) -> None:
        self.index = index
        self.error = error
        super().__init__(error.path, f"transaction refused at operation {index}: {error}")


class RunUnreadable(KzConsumerError):
    """The node of the group's run was written by a version that knows more, or by nobody of ours."""


class GroupUnreadable(ZooKeeperError):
    """Nobody can compute who owns what, since a node of the group says nothing: `problem` names which kind."""

    def __init__(self, problem: str, path: str, reason: str) -> None:
        self.problem = problem
        self.reason = reason
        super().__init__(path, reason)


class SessionExpired(KzConsumerError):
    """The ZooKeeper session is over: membership ends, a new session begins with a new object."""


class Unfit(KzConsumerError):
    """This member cannot do its part while others can: it leaves the group, and comes back when it can."""


class ZooKeeperUnreachable(KzConsumerError):
    """No ZooKeeper server answered within the time given for the first connection."""


class CannotListen(KzConsumerError):
    """The address at which the status is to be served cannot be had (by now): the text names it."""


class AlreadyRunning(KzConsumerError):
    """Another process of this machine runs the same instance; the text tells which."""


class NotThere(KzConsumerError):
    """What was asked about, a group or a cluster, does not exist: the text names it and what there is."""


class GroupInUse(KzConsumerError):
    """Members are there, or came meanwhile: what was asked for is for a group without any. The text says how far."""


class NotDone(KzConsumerError):
    """What an operator asked for was not done; the text says why, and what of it was."""


def sole_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The exception of a group, as its raiser meant it. Of several of ours the first, with the others as its notes.

    The group itself where one of several is not ours: that is a fault in a program, and all of it has to be seen.
    """
    found: dict[tuple[type, str], BaseException] = {}
    for error in leaves(group):
        found.setdefault((type(error), str(error)), error)  # two tasks may meet the same end
    first, *others = found.values()
    if others and not all(isinstance(error, KzConsumerError) for error in found.values()):
        return group
    for other in others:
        first.add_note(f"and {type(other).__name__}: {other}")
    return first


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions of a group, however deep; of one that is no group, itself."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from leaves(each)
    else:
        yield error
