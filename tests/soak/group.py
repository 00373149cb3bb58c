"""Two daemons under a load, with one of several sinks, and the state of their work at any moment.

`SoakGroup` owns the daemon processes, `Without`, `Slow` and `With` the output of each sink. No record is kept: only
ranges, of partitions that are numbered through all topics.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from pathlib import Path
from typing import cast

import pyarrow.parquet as pq

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from tests.soak.ledger import Ledger
from tests.soak.member import TASKS
from tests.soak.process import Held, held
from tests.soak.sink import PACE, RANGES
from tests.support.chaos import LIMIT, DaemonGroup
from tests.support.ensemble import Ensemble
from tests.support.members import Daemon


class Written(ABC):
    """What a sink has written, read repeatedly; each file is read once."""

    tables: str
    exactly_once: bool
    shares: tuple[float, ...] = (1.0,)
    """Which part of the records each topic gets."""
    spare: float = math.inf
    """How much more than what arrives the sink takes; if it has a limit, the broker has a quota, too."""

    def __init__(self, folder: Path, topics: list[str], partitions: int) -> None:
        self.folder = folder
        self.topics = topics
        self.partitions = partitions
        self.ledger = Ledger()

    @abstractmethod
    def look(self) -> None:
        """Bring `ledger` up to what is there now."""


class Without(Written):
    """A function that records what it gets."""

    exactly_once = False
    tables = '[sink]\nplugin = "callable"\n[sink.options]\nfunction = "tests.soak.sink:store"\n'

    def __init__(self, folder: Path, topics: list[str], partitions: int) -> None:
        super().__init__(folder, topics, partitions)
        self._read: Counter[Path] = Counter()

    def look(self) -> None:
        for path in self.folder.glob("*.ranges"):
            with path.open("rb") as file:
                file.seek(self._read[path])
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # being written
                    self._read[path] += len(line)
                    topic, *numbers = line.decode().split()
                    partition, first, until, records = map(int, numbers)
                    assert records == until - first, f"{path.name}: {line.decode()}"
                    self.ledger.add(self.topics.index(topic) * self.partitions + partition, first, until)


class Slow(Without):
    """The same with two topics, a sink that takes little more than what arrives, and a quota of the broker.

    Nine of ten records are of the first topic: the second one must not wait for them.
    """

    shares = (0.9, 0.1)
    spare = 1.3


class With(Written):
    """Spark's Parquet files: each is read when it has its final name, and must have every offset in its name."""

    exactly_once = True

    def __init__(self, folder: Path, topics: list[str], partitions: int) -> None:
        super().__init__(folder, topics, partitions)
        self.tables = (
            f'[sink]\nplugin = "spark"\n[sink.options]\ndestination = "parquet"\npath = "{folder}/lake"\n'
            f'start_timeout = "{LIMIT:.0f}s"\nconf = {{ "spark.driver.memory" = "512m" }}\n'
        )
        self._read: set[Path] = set()

    def look(self) -> None:
        for path in (self.folder / "lake").glob("*.parquet"):
            if path in self._read:
                continue
            self._read.add(path)
            *_, first, until = path.stem.split("+")
            partition = int(path.stem.split("+")[1])
            offsets = pq.read_table(path, columns=["offset"], partitioning=None)["offset"]
            assert sorted(cast("list[int]", offsets.to_pylist())) == list(range(int(first), int(until))), path.name
            self.ledger.add(partition, int(first), int(until))


class SoakGroup(DaemonGroup):
    def __init__(
        self, three: Ensemble, cluster: Cluster, folder: Path, written: Written, batch: int, rate: float
    ) -> None:
        super().__init__(three, cluster, written.topics[0], written.partitions, folder, written.tables)
        self.topics = written.topics
        self.written = written
        self._batch = batch
        """Most records of a batch: written and not committed when a member is killed, and so redelivered."""
        self._pace = rate * written.spare

    def made(self, folder: Path) -> Daemon:
        member = super().made(folder)
        text = member.config.read_text()
        text = text.replace('max_time = "100ms"', 'max_time = "1s"').replace(
            "max_records = 50000", f"max_records = {self._batch}"
        )
        text = text.replace('level = "debug"', 'level = "info"').replace('"200ms"', '"10s"')
        member.config.write_text(text)
        member.module = "tests.soak.member"
        member.environment = {TASKS: str(folder / "tasks"), RANGES: str(self.written.folder)}
        member.environment[PACE] = str(self._pace)
        return member

    def events(self, event: str) -> int:
        """How often the members have logged it."""
        return sum(len(member.events(event)) for member in self._members.values())

    def held(self, name: str) -> Held:
        return held(self.process(name), self._folder / name / "tasks")
