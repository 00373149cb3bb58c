"""Two daemons under a load, with one of two sinks, and the state of their work at any moment.

`SoakGroup` owns the daemon processes, `Without` and `With` the output of each sink. No record is kept: only ranges.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from pathlib import Path
from typing import cast

import pyarrow.parquet as pq

from kzconsumer_sandbox.servers.cluster import Cluster
from tests.soak.ledger import Ledger
from tests.soak.member import TASKS
from tests.soak.process import Held, held
from tests.soak.sink import RANGES
from tests.support.chaos import LIMIT, DaemonGroup
from tests.support.ensemble import Ensemble
from tests.support.members import Daemon


class Written(ABC):
    """What a sink has written, read repeatedly; each file is read once."""

    tables: str
    exactly_once: bool

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledger = Ledger()

    @abstractmethod
    def look(self) -> None:
        """Bring `ledger` up to what is there now."""


class Without(Written):
    """A function that records what it gets."""

    exactly_once = False
    tables = '[sink]\nplugin = "callable"\n[sink.options]\nfunction = "tests.soak.sink:store"\n'

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._read: Counter[Path] = Counter()

    def look(self) -> None:
        for path in self.folder.glob("*.ranges"):
            with path.open("rb") as file:
                file.seek(self._read[path])
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # being written
                    self._read[path] += len(line)
                    partition, first, until, records = map(int, line.split())
                    assert records == until - first, f"{path.name}: {line.decode()}"
                    self.ledger.add(partition, first, until)


class With(Written):
    """Spark's Parquet files: each is read when it has its final name, and must have every offset in its name."""

    exactly_once = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
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
        self, three: Ensemble, cluster: Cluster, topic: str, partitions: int, folder: Path, written: Written, batch: int
    ) -> None:
        super().__init__(three, cluster, topic, partitions, folder, written.tables)
        self.written = written
        self._batch = batch
        """Most records of a batch: written and not committed when a member is killed, and so redelivered."""

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
        return member

    def held(self, name: str) -> Held:
        return held(self.process(name), self._folder / name / "tasks")
