"""All exceptions of the package."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from traceback import walk_tb

from kzconsumer.display import redacted_text
from kzconsumer.model import RangeIdentity, TopicPartition

_PACKAGE = os.path.join(os.path.dirname(__file__), "")


class KzConsumerError(Exception):
    """Base of all errors of this package."""

    def __reduce__(self) -> tuple[object, ...]:
        """For pools of processes. Python would call the class with the text alone, which many cannot be made of."""
        return _again, (type(self), self.args), self.__dict__


def _again(kind: type[KzConsumerError], texts: tuple[object, ...]) -> KzConsumerError:
    """An error without its attributes, which follow."""
    return kind.__new__(kind, *texts)


class ConfigError(KzConsumerError):
    """The configuration is invalid: exit status 78, do not restart. One line per fault.

    Passwords in URLs that a fault repeats are hidden.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults: tuple[str, ...] = tuple(map(redacted_text, faults))
        super().__init__("\n".join(self.faults))


class PluginError(KzConsumerError):
    """A plugin cannot be found, loaded or run; the text names it and its distribution."""


class UnknownPluginError(PluginError):
    """No plugin of that name is installed."""


class SinkError(KzConsumerError):
    """The sink could not make a batch durable: the member stops, nothing of the batch is committed."""


class DestinationWentBackError(SinkError):
    """The destination lacks a range that was written and committed: the member stops, and nothing is quarantined.

    `lacking` is the last one that was written before, `ends` the offset at which the destination ends (None: unknown,
    or it has nothing of the partition).
    """

    def __init__(
        self, lacking: RangeIdentity, ends: int | None = None, destination: object = "the destination"
    ) -> None:
        self.lacking = lacking
        self.ends = ends
        first, others = (lacking.first, ", perhaps with others before them") if ends is None else (ends, "")
        super().__init__(
            f"{destination}: {lacking.topic}-{lacking.partition}: offsets {first} to {lacking.until} were"
            f" written and committed, and are missing now{others}: the destination was"
            " restored from an older copy, or failed over to one. kzconsumer sink verify shows the gaps. With the"
            " group stopped, kzconsumer offsets reset to the first missing offset has it written again (--republish),"
            " and --to-current continues without it"
        )


class ContentRefusedError(SinkError):
    """The destination refuses what is in a batch: it would refuse it again, and it is known to work.

    Raised by a sink (`kzconsumer.sinks.Trying`), never for an outage, a fault of the settings or a full disk.
    """


class RecordNotWrittenError(SinkError):
    """A record of a batch cannot be written, and `[rejected]` says "fail" for it. The text names it."""


class RecordRejectedError(KzConsumerError):
    """A record was rejected, and `[rejected]` says "fail" for its class."""

    def __init__(self, topic: str, partition: int, offset: int, error_class: str, reason: str) -> None:
        self.topic_partition: TopicPartition = TopicPartition(topic, partition)
        self.offset = offset
        self.error_class = error_class
        self.reason = reason
        classified = "rejected" if error_class == "rejected" else f"rejected as {error_class}"  # without one of its own
        super().__init__(f"{self.topic_partition} at offset {offset} was {classified}: {reason}")


class DeadLetterError(KzConsumerError):
    """A dead letter could not be written; the write is repeated."""


class ConnectionLostError(KzConsumerError):
    """The connection broke; a request in flight may or may not have been executed."""


class LeaderlessError(ConnectionLostError):
    """The partition has no leader, say the brokers."""


class SecurityError(ConnectionLostError):
    """TLS or SASL failed: one side does not accept the other. No request was executed.

    A setting has to be changed, here or on the server.
    """


class BrokersUnreachableError(KzConsumerError):
    """No broker has answered; the text has the reason for each."""


class BrokerError(KzConsumerError):
    """A broker answered with an error code."""

    def __init__(self, code: int, name: str, detail: str, *, retriable: bool, refresh_metadata: bool) -> None:
        self.code = code
        self.name = name
        self.retriable = retriable
        self.refresh_metadata = refresh_metadata
        super().__init__(f"{detail}: {name} ({code})" if detail else f"{name} ({code})")


class CoordinatorError(KzConsumerError):
    """The group's coordinator, a broker, could not store or return the group's offsets."""


class ProtocolError(KzConsumerError):
    """Malformed bytes from a peer. The connection is closed."""


class UnsupportedVersionError(KzConsumerError):
    """No version of a request is supported by both sides."""


class UnusableBatchError(KzConsumerError):
    """A record batch is corrupt, or larger than may be fetched: `[fetch] on_corrupt` decides."""

    def __init__(self, topic_partition: TopicPartition, offset: int, text: str) -> None:
        self.topic_partition = topic_partition
        self.offset = offset
        super().__init__(text)


class CorruptRecordError(UnusableBatchError):
    """A record batch fails its checksum or its structure."""

    def __init__(self, topic_partition: TopicPartition, offset: int, reason: str) -> None:
        self.reason = reason
        super().__init__(topic_partition, offset, f"corrupt batch in {topic_partition} at offset {offset}: {reason}")


class NotOwnedError(KzConsumerError):
    """This member does not own the partition."""

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        super().__init__(f"{topic_partition} is not owned by this member")


class OffsetLostError(KzConsumerError):
    """The next offset or a planned range is not in the log (any more), and the settings say to fail."""


class RangeChangedError(KzConsumerError):
    """A planned range has other records than when it was planned (compaction, truncation); it is not written."""


class ZooKeeperError(KzConsumerError):
    """ZooKeeper refused a request."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        super().__init__(f"{path}: {reason}" if path else reason)


class NoNodeError(ZooKeeperError):
    def __init__(self, path: str) -> None:
        super().__init__(path, "no such node")


class NodeExistsError(ZooKeeperError):
    def __init__(self, path: str) -> None:
        super().__init__(path, "node exists")


class NotNowError(ZooKeeperError):
    """ZooKeeper has not executed a request, and wants it later: it is overloaded, or a quota of it is used up.

    `wait`: an operator has to change something. Sessions of members repeat such requests by themselves.
    """

    def __init__(self, path: str, reason: str, *, wait: bool) -> None:
        self.wait = wait
        super().__init__(path, reason)


class NotPermittedError(ZooKeeperError):
    """ZooKeeper's access control refuses a node."""

    def __init__(self, path: str) -> None:
        super().__init__(
            path, "not permitted: the ACL there is for another user ([zookeeper.sasl], [zookeeper.digest])"
        )


class NotEmptyError(ZooKeeperError):
    def __init__(self, path: str) -> None:
        super().__init__(path, "node has children")


class BadVersionError(ZooKeeperError):
    def __init__(self, path: str) -> None:
        super().__init__(path, "version is another")


class MultiFailedError(ZooKeeperError):
    """A transaction was refused as a whole; `index` and `error` are of the operation that failed."""

    def __init__(self, index: int, error: ZooKeeperError) -> None:
        self.index = index
        self.error = error
        super().__init__(error.path, f"transaction refused at operation {index}: {error}")


class TopicChangedError(KzConsumerError):
    """The topic was deleted or recreated after the group was read, so the assignment is of an earlier topic."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic} was deleted or recreated after the group was read")


class RunUnreadableError(KzConsumerError):
    """The node of the group's run has an unknown format."""


class GroupUnreadableError(ZooKeeperError):
    """A node of the group is unreadable, so that no assignment can be computed; `problem` names the kind of node."""

    def __init__(self, problem: str, path: str, reason: str) -> None:
        self.problem = problem
        self.reason = reason
        super().__init__(path, reason)


class SessionExpiredError(KzConsumerError):
    """The ZooKeeper session is over, and the membership with it."""


class UnfitError(KzConsumerError):
    """This member cannot work while others can: it leaves the group and rejoins later."""


class OtherClusterError(KzConsumerError):
    """ZooKeeper is that of another cluster than before: the member stays out of the group there."""


class ZooKeeperUnreachableError(KzConsumerError):
    """No ZooKeeper server answered in time."""


class CannotListenError(KzConsumerError):
    """The address for the status cannot be used; the text names it."""


class AlreadyRunningError(KzConsumerError):
    """Another process of this machine runs the same instance; the text names it."""


class OutputError(KzConsumerError):
    """Standard output cannot be written; the text has the reason, and what was changed before."""


class NotFoundError(KzConsumerError):
    """A group, topic or cluster does not exist; the text names it."""


class GroupInUseError(KzConsumerError):
    """The group has members, or got some meanwhile, and the operation requires none. The text says what was done."""


class NotDoneError(KzConsumerError):
    """An operator's request was not carried out; the text says why, and what of it was done."""


def sole_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The exception in a group. Of several KzConsumerErrors the first, with the others as its notes.

    The group itself if one of several is another exception: that is a bug, and all of it has to be seen.
    """
    found: dict[tuple[type, str], BaseException] = {}
    for error in leaves(group):
        found.setdefault((type(error), str(error)), error)  # two tasks may fail in the same way
    first, *others = found.values()
    if others and not all(isinstance(error, KzConsumerError) for error in found.values()):
        return group
    for other in others:
        first.add_note(f"and {type(other).__name__}: {other}")
    return first


PLUGIN_FAULTS = (Exception, SystemExit)
"""What the code of a plugin raises by a fault of its own: `sys.exit(0)` in it must not end a member as if it had been
stopped, with status 0."""


def raised(error: BaseException) -> str:
    """What a plugin raised, in one line: type, text, and the last line of the plugin's own code on the way to it."""
    places = [(frame.f_code.co_filename, number) for frame, number in walk_tb(error.__traceback__)]
    outside = [(file, number) for file, number in places if not file.startswith(_PACKAGE)]
    folder = os.path.dirname(outside[0][0]) if outside else ""
    own = [f" ({file}, line {number})" for file, number in outside if os.path.dirname(file) == folder]
    return f"{type(error).__name__}: {error}{own[-1] if own else ''}"


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions of a group, recursively; an exception that is no group itself."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from leaves(each)
    else:
        yield error
