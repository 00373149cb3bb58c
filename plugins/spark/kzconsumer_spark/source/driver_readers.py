"""The readers that the source has in one driver: two of one group must not read the same topic.

Spark makes a reader, with a Python process of its own, for each `load()` of a query and for each query of one frame.
Each is a member of the group, so they would share the partitions, and each query would get a part of the records. In
one query it is worse: while the batch of the first is planned, the second takes its plan over, as from a member that
died, and the batch has the records twice.

A file for each driver and group on the driver's machine lists the readers. Entries of processes that have ended count
no more.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from kzconsumer.errors import ConfigError
from kzconsumer.own_directory import own_directory
from kzconsumer.process_lock import ProcessLock
from kzconsumer.settings.sections import SubscriptionSettings
from kzconsumer.settings.settings import Settings
from kzconsumer.settings.topic_filter import TopicFilter
from kzconsumer_spark.source.options import WHERE

_LOOK_SECONDS: Final = 0.1


class Reads(msgspec.Struct, frozen=True):
    """What one reader subscribes to; `began` distinguishes its process from a later one with the same id."""

    process: int
    began: str
    topics: tuple[str, ...]
    include: str | None
    exclude: str | None

    @property
    def filter(self) -> TopicFilter | None:
        return SubscriptionSettings(include=self.include, exclude=self.exclude).filter

    def shared(self, other: Reads) -> str | None:
        """A topic that both read, or what may stand for one; two patterns are taken to have topics in common."""
        if self.filter is not None and other.filter is not None:
            return "topics by pattern"
        for pattern, reads in ((self.filter, other), (other.filter, self)):
            if pattern is not None:
                return next((f"topic {topic}" for topic in reads.topics if pattern.allows(topic)), None)
        return next((f"topic {topic}" for topic in self.topics if topic in other.topics), None)


class DriverReaders:
    """The readers of the settings' group in the driver that is the parent of this process."""

    def __init__(self, settings: Settings) -> None:
        """Raises ConfigError if there is no directory that only this user can change."""
        wanted, driver = settings.subscription, os.getppid()
        self._group = settings.group.id
        self._reads = Reads(os.getpid(), _began(os.getpid()), tuple(wanted.topics), wanted.include, wanted.exclude)
        name = msgspec.json.encode([settings.zookeeper.connect, self._group, driver, _began(driver)])
        digest = hashlib.blake2b(name, digest_size=12).hexdigest()
        try:
            self._path = own_directory("spark") / f"readers-{digest}"
        except OSError as error:
            raise ConfigError([f"{WHERE}: {error}"]) from error

    def enter(self, patience: float) -> None:
        """Register this reader. Waits up to `patience` seconds for one that is leaving, as after `query.stop()`.

        Raises ConfigError if another one reads a topic of this one.
        """
        until = time.monotonic() + patience
        while True:
            with self._others() as others:
                clash = next(((each, what) for each in others if (what := self._reads.shared(each))), None)
                if clash is None:
                    others.append(self._reads)
                    return
            if time.monotonic() > until:
                other, what = clash
                raise ConfigError(
                    [
                        f"{WHERE}: {what} of group {self._group} is read in this driver already, by process "
                        f"{other.process}: give each query, and each load() of a query, a group.id of its own"
                    ]
                )
            time.sleep(_LOOK_SECONDS)

    def leave(self) -> None:
        with self._others():
            pass

    @contextmanager
    def _others(self) -> Iterator[list[Reads]]:
        """The readers of other processes, to be changed in the block. The file goes with the last one."""
        lock = self._locked()
        descriptor = lock.descriptor
        try:
            lines = os.pread(descriptor, os.fstat(descriptor).st_size, 0).splitlines()
            readers = [msgspec.json.decode(line, type=Reads) for line in lines]
            readers = [each for each in readers if _began(each.process) == each.began]
            readers = [each for each in readers if each.process != self._reads.process]
            yield readers
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"\n".join(map(msgspec.json.encode, readers)), 0)
            if not readers:
                self._path.unlink(missing_ok=True)
        finally:
            lock.release()

    def _locked(self) -> ProcessLock:
        while True:
            lock = ProcessLock.wait(self._path)
            assert lock is not None
            if os.fstat(lock.descriptor).st_nlink:
                return lock
            lock.release()  # its last reader has removed it meanwhile


def _began(process: int) -> str:
    """When it was started, in clock ticks since boot; "" if it has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
