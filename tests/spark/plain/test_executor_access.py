"""What tasks of executors get: parts of ranges, and secrets that no text shows and that need no files of the member.

And which errors they report as an outage.
"""

from __future__ import annotations

import pickle
import time
from itertools import pairwise
from pathlib import Path
from threading import Timer
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from pyspark.sql import SparkSession

from kzconsumer.brokers.protocol import error_codes
from kzconsumer.brokers.protocol.error_codes import broker_error
from kzconsumer.errors import (
    BrokersUnreachableError,
    ConfigError,
    ConnectionLostError,
    CorruptRecordError,
    KzConsumerError,
    OffsetLostError,
    SessionExpiredError,
)
from kzconsumer.fetcher.range_reader import RangeReader
from kzconsumer.model import Broker, OffsetRange, TopicPartition
from kzconsumer.records.forms import NO_RECORDS, Unfetched
from kzconsumer.rejected import producer_security
from kzconsumer.settings.sections import FetchSettings
from kzconsumer.settings.settings import Settings
from kzconsumer_spark.executors.broker_access import BrokerAccess
from kzconsumer_spark.executors.fetching import BrokersOutageError, fetched
from kzconsumer_spark.executors.planned_topics import KafkaRegistry
from kzconsumer_spark.executors.range_source import RangeStreamReader
from kzconsumer_spark.executors.task_parts import (
    FEWEST_OFFSETS,
    PublishedBatch,
    PublishedBatches,
    RangePart,
    split,
    task_ranges,
)
from kzconsumer_spark.worker.query import RangeStream
from kzconsumer_spark.worker_protocol.kafka_settings import Kafka
from kzconsumer_spark.worker_protocol.messages import BatchRange
from tests.support.batch_ranges import batch_range
from tests.support.range_data import range_data

PASSWORD = "horse battery\n"  # the last newline of a file does not count, others do
KEY_PASSWORD = "correct staple"


def span(partition: int, first: int, until: int) -> OffsetRange:
    return OffsetRange("t", partition, first, until)


def test_large_ranges_are_divided_among_the_tasks_and_small_ones_are_not() -> None:
    n = FEWEST_OFFSETS
    assert list(split([span(0, 5, 5 + n)], 8, {})) == [span(0, 5, 5 + n)]
    halves = [span(0, 100, 100 + 2 * n), span(0, 100 + 2 * n, 100 + 4 * n)]
    assert list(split([span(0, 100, 100 + 4 * n)], 2, {})) == halves
    mixed = [span(0, 0, 7 * n), span(1, 3, 4), span(2, 10, 10 + n)]
    parts = list(split(mixed, 4, {}))
    assert max(part.until - part.first for part in parts) <= 2 * n + 1
    for whole in mixed:
        bounds = [(part.first, part.until) for part in parts if part.partition == whole.partition]
        assert bounds[0][0] == whole.first
        assert bounds[-1][1] == whole.until
        assert all(before[1] == after[0] for before, after in pairwise(bounds))


def test_few_records_that_are_large_are_divided_among_the_tasks() -> None:
    large, small = span(0, 0, 12), span(1, 0, 12)
    parts = list(split([large, small], 4, {TopicPartition("t", 0): 50e6, TopicPartition("t", 1): 10.0}))
    assert parts == [span(0, 0, 3), span(0, 3, 6), span(0, 6, 9), span(0, 9, 12), small]
    assert list(split([span(0, 0, 2)], 4, {TopicPartition("t", 0): 50e6})) == [span(0, 0, 1), span(0, 1, 2)]


@pytest.mark.parametrize(("offsets", "weight", "tasks"), [(2_000_000, 100.0, 8), (524_288, 1024.0, 9), (10, 50e6, 8)])
def test_one_partition_s_largest_batch_is_divided_though_nobody_says_among_how_many_tasks(
    offsets: int, weight: float, tasks: int
) -> None:
    parts = list(split([span(0, 0, offsets)], None, {TopicPartition("t", 0): weight}))
    assert len(parts) == tasks
    eighth = offsets // 8
    assert [*split([span(n, 0, eighth) for n in range(8)], None, {})] == [span(n, 0, eighth) for n in range(8)]


def test_small_ranges_share_a_task() -> None:
    """2,000 tasks took Spark minutes. None waits for more than 20 ranges, nor for one that is large."""
    small = [span(n, 0, 10) for n in range(2000)]
    assert task_ranges(small, None, {}) == [small[n : n + 20] for n in range(0, 2000, 20)]
    tasks = task_ranges(small[:90], 30, {})
    assert tasks == [small[n : n + 3] for n in range(0, 90, 3)]
    assert task_ranges(small[:4], 8, {}) == [[each] for each in small[:4]], "as many as may be"
    heavy = {TopicPartition("t", 1): 240e3, TopicPartition("t", 3): 240e3}
    assert [len(each) for each in task_ranges(small[:6], None, heavy)] == [3, 3]
    large = span(9, 0, FEWEST_OFFSETS)
    assert task_ranges([small[0], large, small[1]], None, {}) == [[small[0]], [large], [small[1]]]
    assert task_ranges([], None, {}) == []


def test_offsets_that_the_log_has_lost_are_not_fetched() -> None:
    whole = range_data("t", 1, 50, 100)
    for pieces, spans in (
        ((), []),
        ((NO_RECORDS,), []),
        ((Unfetched(50, 60), Unfetched(60, 100)), [(50, 100)]),
        ((NO_RECORDS, Unfetched(80, 90), Unfetched(90, 100)), [(80, 100)]),
        ((Unfetched(50, 52), Unfetched(60, 70), Unfetched(70, 80)), [(50, 52), (60, 80)]),
    ):
        part = BatchRange.of(msgspec.structs.replace(whole, pieces=pieces))
        assert (part.range, part.spans) == (span(1, 50, 100), tuple(span(1, *each) for each in spans))
        assert part.records == sum(until - first for first, until in spans)
    assert BatchRange.of(whole).spans == ()
    part = BatchRange.of(msgspec.structs.replace(whole, pieces=(Unfetched(80, 90),)).without(((70, 81), (85, 86))))
    assert (part.spans, part.left_out, part.records) == ((span(1, 80, 90),), ((80, 81), (85, 86)), 8)


def kafka(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kafka:
    """With a certificate whose key is in an encrypted file, and passwords in the environment."""
    authority = trustme.CA()
    issued = authority.issue_cert("client.example")
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(KEY_PASSWORD.encode()))
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem.bytes())
    (tmp_path / "client.pem").write_bytes(issued.cert_chain_pems[0].bytes())
    (tmp_path / "key.pem").write_bytes(encrypted)
    monkeypatch.setenv("BROKER_PASSWORD", PASSWORD)
    monkeypatch.setenv("BROKER_KEY_PASSWORD", KEY_PASSWORD)
    names = {"ca": "ca.pem", "certificate": "client.pem", "key": "key.pem"}
    brokers = {
        "security_protocol": "SASL_SSL",
        "tls": {key: str(tmp_path / name) for key, name in names.items()} | {"key_password_env": "BROKER_KEY_PASSWORD"},
        "sasl": {"mechanism": "PLAIN", "username": "u", "password_env": "BROKER_PASSWORD"},
    }
    return Kafka.of(of_brokers(**brokers))


def test_a_task_connects_with_the_secrets_of_the_member_where_their_files_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = BrokerAccess(kafka(tmp_path, monkeypatch), [Broker(1, "h", 9092)])
    part = RangePart(span(0, 1, 2), access)
    arrived = pickle.loads(pickle.dumps(part))
    for file in tmp_path.iterdir():
        file.unlink()
    for variable in ("BROKER_PASSWORD", "BROKER_KEY_PASSWORD"):
        monkeypatch.delenv(variable)
    security = arrived.access.security()
    assert security.tls is not None
    assert len(security.tls.get_ca_certs()) == 1
    assert security.certificate_given
    assert security.sasl is not None
    assert next(security.sasl.begin("h")) == f"\0u\0{PASSWORD}".encode()
    with arrived.access.settings() as brokers:
        producer = producer_security(brokers)
        assert (producer["sasl.password"], producer["ssl.key.password"]) == (PASSWORD, KEY_PASSWORD)
        assert Path(str(producer["ssl.key.location"])).read_bytes().startswith(b"-----BEGIN")
        assert Path(str(producer["ssl.key.location"])).parent.stat().st_mode & 0o077 == 0
    assert not Path(str(producer["ssl.key.location"])).exists()
    assert (repr(part), repr(access)) == ("RangePart(t-0[1..2))", "BrokerAccess(broker 1 (h:9092))")


def test_a_task_has_the_leader_epoch_and_the_rejected_records_of_its_range(tmp_path: Path) -> None:
    parts = (span(0, 1, 2), span(1, 5, 9), span(2, 0, 1))
    settings = msgspec.structs.replace(of_brokers(), fetch=FetchSettings(rate_limit=3000))
    batch = PublishedBatch(
        parts=parts, tasks=2, epochs=(3, -1, 0), left_out=((), ((6, 7),), ()), brokers=(), kafka=Kafka.of(settings)
    )
    PublishedBatches(tmp_path).publish(0, batch)
    tasks = RangeStreamReader(tmp_path).partitions({"batch": -1}, {"batch": 0})
    assert [(each.part, each.epochs, each.left_out) for each in tasks if isinstance(each, RangePart)] == [
        (parts[0], {TopicPartition("t", 0): 3}, ()),
        (parts[1], {}, ((6, 7),)),
        (parts[2], {TopicPartition("t", 2): 0}, ()),
    ]
    assert [each.access.rate_limit for each in tasks if isinstance(each, RangePart)] == [1500.0] * 3
    assert [each.accounts for each in tasks if isinstance(each, RangePart)] == [tmp_path / "0.accounts"] * 3
    elsewhere = RangeStreamReader(tmp_path, accounts_in_rows=True).partitions({"batch": -1}, {"batch": 0})
    assert [each.accounts for each in elsewhere if isinstance(each, RangePart)] == [None] * 3


def test_a_query_waits_for_a_batch_and_not_for_long(tmp_path: Path) -> None:
    """It asks at once again, and may be about to be stopped."""
    reader, settings = RangeStreamReader(tmp_path), of_brokers()
    batch = PublishedBatch(parts=(), tasks=1, epochs=(), left_out=(), brokers=(), kafka=Kafka.of(settings))
    began = time.monotonic()
    assert reader.latestOffset() == {"batch": -1}
    assert 0.4 < time.monotonic() - began < 5
    later = Timer(0.05, PublishedBatches(tmp_path).publish, (0, batch))
    later.start()
    assert reader.latestOffset() == {"batch": 0}
    later.join()


def test_tasks_share_the_rate_limit_that_the_member_has_at_the_attempt(tmp_path: Path) -> None:
    class NoBrokers(KafkaRegistry):
        def brokers(self) -> tuple[Broker, ...]:
            return ()

    path = tmp_path / "stream"
    two_tasks = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2, master="local[2]"))
    stream = RangeStream(cast("SparkSession", two_tasks), path, NoBrokers(Kafka.of(of_brokers())))
    for number, limit, share in ((0, 3000, 1500.0), (1, None, None)):
        stream.publish([batch_range(until=2 * FEWEST_OFFSETS)], limit)
        tasks = RangeStreamReader(path).partitions({"batch": number - 1}, {"batch": number})
        assert [each.access.rate_limit for each in tasks if isinstance(each, RangePart)] == [share, share]


@pytest.mark.parametrize("error", [ConnectionLostError("zk1: closed"), SessionExpiredError("gone")])
def test_a_connection_that_breaks_while_a_driver_looks_does_not_end_the_query(error: Exception) -> None:
    failures: list[Exception] = []
    there = Broker(1, "b", 9092)

    class Breaking(KafkaRegistry):
        async def _brokers(self) -> tuple[Broker, ...]:
            if failures:
                raise failures.pop()
            return (there,)

        _reach = _brokers

    registry = Breaking(Kafka.of(of_brokers()))
    failures[:] = [error] * 2
    assert registry.reachable() == (there,)
    failures[:] = [error] * 3
    with pytest.raises(type(error)):
        registry.brokers()
    assert registry.brokers() == (there,)
    failures[:] = [error] * 3
    assert registry.brokers() == (there,), "those of the last call"


def test_a_task_has_the_token_that_the_driver_was_given(tmp_path: Path) -> None:
    sasl = {"mechanism": "OAUTHBEARER", "token_command": ["echo", "the-token"]}
    settings = of_brokers(security_protocol="SASL_PLAINTEXT", sasl=sasl)
    arrived = pickle.loads(pickle.dumps(BrokerAccess(Kafka.of(settings), [])))
    identity = arrived.security().sasl
    assert (str(identity), next(identity.begin("h"))) == (
        "OAUTHBEARER with token_file",
        b"n,,\1auth=Bearer the-token\1\1",
    )
    failing = of_brokers(security_protocol="SASL_PLAINTEXT", sasl=sasl | {"token_command": ["false"]})
    with pytest.raises(ConfigError, match=r"\[brokers.sasl\] token_command: false ended with exit status 1"):
        BrokerAccess(Kafka.of(failing), [])


def test_executors_of_a_cluster_need_kerberos_tickets_of_their_own() -> None:
    """Tasks of a local Spark have those of the member."""
    fault = r"^\[brokers.sasl\] mechanism: executors of a cluster do not have this user's tickets: set ticket_cache, or"
    given: list[tuple[dict[str, str], bool]] = [
        ({}, True), ({}, False), ({"ticket_cache": "FILE:/t"}, True), ({"keytab": "/k"}, True),
    ]  # fmt: skip
    for sasl, elsewhere in given:
        settings = of_brokers(security_protocol="SASL_PLAINTEXT", sasl={"mechanism": "GSSAPI"} | sasl)
        if sasl or not elsewhere:
            Kafka.of(settings, elsewhere=elsewhere)
            continue
        with pytest.raises(ConfigError, match=fault):
            Kafka.of(settings, elsewhere=elsewhere)


def of_brokers(**brokers: object) -> Settings:
    return Settings.from_dict({"zookeeper": {"connect": "h:1"}, "group": {"id": "g"}, "brokers": brokers})


def test_a_missing_file_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described = kafka(tmp_path, monkeypatch)
    (tmp_path / "key.pem").unlink()
    with pytest.raises(ConfigError, match=r"\[brokers.tls\] key: .*key.pem cannot be read"):
        BrokerAccess(described, [])


@pytest.mark.parametrize(
    ("error", "is_outage"),
    [
        (BrokersUnreachableError("none is up"), True),
        (ConnectionLostError("cut"), True),
        (broker_error(error_codes.NOT_LEADER_OR_FOLLOWER, "t-0"), True),
        (broker_error(error_codes.UNKNOWN_LEADER_EPOCH, "t-0"), True),
        (broker_error(error_codes.UNKNOWN_SERVER_ERROR, "t-0"), False),
        (broker_error(error_codes.CORRUPT_MESSAGE, "t-0"), False),
        (OffsetLostError("t-0"), False),
        (CorruptRecordError(TopicPartition("t", 0), 5, "checksum"), False),
    ],
)
def test_only_what_may_pass_is_an_outage(
    monkeypatch: pytest.MonkeyPatch, error: KzConsumerError, is_outage: bool
) -> None:
    settings = Settings.from_dict({"zookeeper": {"connect": "h:1"}, "group": {"id": "g"}})
    access = BrokerAccess(Kafka.of(settings), [])

    async def read(*_: object) -> object:
        raise error
        yield

    monkeypatch.setattr(RangeReader, "read", read)
    with pytest.raises(BrokersOutageError if is_outage else type(error)):
        list(fetched([span(0, 0, 3)], access))
