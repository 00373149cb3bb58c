"""The options of `GroupSource`: what they set, and one line for each fault."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from kzconsumer.errors import ConfigError
from kzconsumer.model import TopicPartition
from kzconsumer_spark import GroupSource
from kzconsumer_spark.ranges.batch import SCHEMA
from kzconsumer_spark.source.source_options import COLUMNS, Bounds, read_options

BASE = {"zookeeper.connect": "zk:2181", "group.id": "g", "topics": "a"}


def faults(**options: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        read_options({name.replace("__", "."): value for name, value in options.items()})
    return list(raised.value.faults)


def test_options_in_place_of_a_file() -> None:
    more = {"topics": "a, b-c", "maxrecordsperbatch": "500", "maxtriggerdelay": "5m", "includeheaders": "True"}
    more |= {"maxbytesperbatch": "8MiB"}
    read = read_options(BASE | more | {"minpartitions": "4", "minrecordsperbatch": "20"})
    assert read.settings.zookeeper.connect == "zk:2181"
    assert read.settings.group.id == "g"
    assert read.settings.subscription.topics == {"a": 1, "b-c": 1}
    assert read.settings.batch.most("ranges") == (500, 8 << 20)
    assert read.settings.batch.max_time == 300
    assert read.headers
    assert (read.least, read.tasks) == (20, 4)
    default = read_options(BASE)
    assert (default.settings.batch.most("ranges"), default.least, default.tasks) == (
        (2_000_000, 512 << 20),
        2_000_000,
        None,
    )
    named = read_options(BASE | {"group.id": "123", "topics": "7,a,a"}).settings
    assert (named.group.id, named.subscription.topics) == ("123", {"7": 1, "a": 1})


def test_a_file_and_options_for_batches(tmp_path: Path) -> None:
    file = tmp_path / "group.toml"
    file.write_text('zookeeper.connect = "zk:1"\ngroup.id = "g"\nsubscription.include = "a.*"\nbatch.max_time = "9s"\n')
    read = read_options({"config": str(file), "maxrecordsperbatch": "7"})
    assert read.settings.subscription.include == "a.*"
    assert (read.settings.batch.max_records, read.settings.batch.max_time) == (7, 9)
    assert (read.least, read.headers) == (7, False)


def test_brokers_of_a_cluster_without_zookeeper(tmp_path: Path) -> None:
    read = read_options(BASE | {"bootstrap.servers": "kafka1:9092, kafka2:9092"})
    assert read.settings.brokers.bootstrap == ("kafka1:9092", "kafka2:9092")
    file = tmp_path / "group.toml"
    file.write_text(
        'zookeeper.connect = "zk:1"\ngroup.id = "g"\nsubscription.topics.a = 1\nbrokers.bootstrap = ["b:1"]\n'
    )
    assert read_options({"config": str(file)}).settings.brokers.bootstrap == ("b:1",)
    assert faults(config=str(file), bootstrap__servers="b:1") == [
        "GroupSource: option bootstrap.servers: is in the file that option config names"
    ]
    assert faults(**BASE, kafka__bootstrap__servers="b:1") == [
        "GroupSource: option kafka.bootstrap.servers: unknown; did you mean bootstrap.servers?"
    ]
    (fault,) = faults(**BASE, bootstrap__servers="b")
    assert fault.startswith("GroupSource: option bootstrap.servers: [brokers] bootstrap")


def test_each_fault_names_its_option() -> None:
    assert faults(**BASE, maxrecordsperbatch="many") == [
        'GroupSource: option maxRecordsPerBatch: [batch] max_records: "many" is not a whole number'
    ]
    assert faults(**BASE, topic="a") == ["GroupSource: option topic: unknown; did you mean topics?"]
    assert faults(**BASE, includeheaders="yes") == ['GroupSource: option includeHeaders: "yes" is not true or false']
    assert faults(**BASE, minpartitions="0") == ['GroupSource: option minPartitions: "0" is not a number above 0']
    assert faults(**BASE, maxrecordsperbatch="5", minrecordsperbatch="6") == [
        "GroupSource: option minRecordsPerBatch: 6 is more than maxRecordsPerBatch, 5"
    ]
    assert faults(topics="a", group__id="g") == [
        "GroupSource: option zookeeper.connect: missing (or option config, a group's file)"
    ]
    assert faults(config="group.toml", topics="a") == [
        "GroupSource: option topics: is in the file that option config names"
    ]


def test_options_of_sparks_own_source_name_ours() -> None:
    assert faults(**BASE, subscribe="a") == ["GroupSource: option subscribe: unknown; use topics"]
    (fault,) = faults(**BASE, subscribepattern="a.*")
    assert fault.endswith("unknown; use [subscription] include in a file that option config names")
    (fault,) = faults(**BASE, maxoffsetspertrigger="5")
    assert fault.endswith("unknown; use maxRecordsPerBatch")
    (fault,) = faults(**BASE, assign='{"a":[0]}')
    assert fault.endswith("unknown; use topics, whose partitions the group assigns")
    (fault,) = faults(**BASE, kafka__security__protocol="SSL")
    assert fault.endswith("unknown; use [brokers] and [fetch] in a file that option config names")


def test_bounds_of_a_batch_read() -> None:
    assert read_options(BASE).bounds == Bounds("committed", "latest")
    offsets = read_options(BASE | {"startingoffsets": '{"a":{"0":23,"1":-2}}', "endingoffsets": "latest"}).bounds
    assert offsets == Bounds({TopicPartition("a", 0): 23, TopicPartition("a", 1): -2}, "latest")
    times = read_options(BASE | {"startingtimestamp": "1700000000000", "endingtimestamp": "1700000000001"})
    assert times.bounds == Bounds(1_700_000_000_000, 1_700_000_000_001)
    without_group = read_options({"zookeeper.connect": "zk:2181", "topics": "a", "startingoffsets": "earliest"})
    assert without_group.bounds == Bounds("earliest", "latest")


def test_faults_of_bounds() -> None:
    words = '"earliest" or "committed", nor JSON as {"orders":{"0":23}}'
    assert faults(**BASE, startingoffsets="latest") == [f'GroupSource: option startingOffsets: "latest" is not {words}']
    assert faults(**BASE, endingtimestamp="2026-01-01") == [
        'GroupSource: option endingTimestamp: "2026-01-01" is not a number of milliseconds since 1970'
    ]
    assert faults(**BASE, endingtimestamp=str(1 << 63)) == [
        "GroupSource: option endingTimestamp: 9223372036854775808 is too late for a time in ms since 1970"
    ]
    assert faults(zookeeper__connect="zk:2181", topics="a", endingoffsets="latest") == [
        "GroupSource: option group.id: missing (or option config, a group's file)"
    ]
    assert faults(**BASE, startingoffsets="earliest", startingtimestamp="1") == [
        "GroupSource: option startingTimestamp: startingOffsets is given, too"
    ]
    assert faults(**BASE, startingtimestamp="2", endingtimestamp="1") == [
        "GroupSource: option startingTimestamp: 2 is after endingTimestamp, 1"
    ]


@pytest.mark.parametrize(
    ("field", "fault"),
    [
        (StructField("ofset", LongType()), 'there is no column "ofset"; there are key, value, topic, partition'),
        (StructField("offset", IntegerType()), "column offset is bigint, not int: cast it in a select"),
        (StructField("value", StringType()), "column value is binary, not string: cast it in a select"),
    ],
)
def test_a_schema_has_some_of_the_columns_with_their_types(field: StructField, fault: str) -> None:
    """A batch read and a query refuse others before anything is joined."""
    source = GroupSource(CaseInsensitiveDict(BASE))  # type: ignore[arg-type]
    source.reader(StructType([StructField("value", BinaryType()), StructField("offset", LongType())]))
    schema = StructType([StructField("key", BinaryType()), field])
    with pytest.raises(ConfigError, match=f"^GroupSource: schema: {re.escape(fault)}"):
        source.reader(schema)
    reader = source.streamReader(schema)
    with pytest.raises(ConfigError, match=f"^GroupSource: schema: {re.escape(fault)}"):
        reader.latestOffset(reader.initialOffset(), ReadMaxRows(1))


def test_columns_are_those_of_the_schema() -> None:
    fields = (each.split(maxsplit=1) for each in re.split(r",(?![^<]*>)", SCHEMA))
    assert {name: kind.replace(": ", ":").replace(", ", ",") for name, kind in fields} == COLUMNS


def test_options_of_the_other_kind_of_query() -> None:
    with pytest.raises(ConfigError, match=r"option endingOffsets: is for spark\.read: a streaming query begins at"):
        read_options(BASE | {"endingoffsets": "latest"}).require_streaming()
    with pytest.raises(ConfigError, match=r"option maxTriggerDelay: is for spark\.readStream$"):
        read_options(BASE | {"maxtriggerdelay": "1s"}).require_batch()
    read_options(BASE).require_streaming()
    read_options(BASE | {"endingoffsets": "latest"}).require_batch()


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ('sink.plugin = "jsonlines"', "[sink]: the query has a sink of its own; this is a file for kzconsumer run"),
        ('subscription.stop_at = "end"', "[subscription] stop_at: use trigger(availableNow=True) in place of it"),
    ],
)
def test_settings_that_do_not_go_with_a_query(tmp_path: Path, table: str, fault: str) -> None:
    file = tmp_path / "group.toml"
    file.write_text(f'zookeeper.connect = "zk:1"\ngroup.id = "g"\nsubscription.topics.a = 1\n{table}\n')
    assert faults(config=str(file)) == [f"{file}: {fault}"]


def test_a_zip_of_the_packages_is_refused(tmp_path: Path) -> None:
    """As `spark-submit --py-files` has them: what is in C is not found there."""
    with zipfile.ZipFile(tmp_path / "packages.zip", "w") as packed:
        for name in ("kzconsumer", "kzconsumer_files", "kzconsumer_spark"):
            home = Path(importlib.import_module(name).__path__[0])
            for file in home.rglob("*.py"):
                packed.write(file, file.relative_to(home.parent))
    program = f"import sys; sys.path.insert(0, {str(tmp_path / 'packages.zip')!r}); import kzconsumer_spark as found"
    program += "; print(found.__file__); found.GroupSource"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "packages.zip" in done.stdout
    assert "ImportError: kzconsumer has a part in C, which cannot be imported from a zip" in done.stderr


def test_a_file_without_topics(tmp_path: Path) -> None:
    file = tmp_path / "group.toml"
    file.write_text('zookeeper.connect = "zk:1"\ngroup.id = "g"\n')
    assert faults(config=str(file)) == [f"{file}: [subscription] topics: missing (or include, or exclude)"]
