"""The commands of docs/migration.md, run as printed beside a live group: from original members to ours, then to the
brokers, then to Kafka's own consumer.

Between its commands happens what the page says in words. Every record is delivered exactly once.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import signal
import tomllib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup, TaskStatus

import kzconsumer
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.command_line import CommandLine
from tests.support.extent import only_nightly
from tests.support.kafka_consumer import read_to_the_end
from tests.support.kafka_offsets import kafka_offset
from tests.support.original import Original, Record, console_consumer
from tests.support.pages import form, printed
from tests.support.producing import Sent, produce
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import session, until

PAGE = "docs/migration.md"
TEXT = (Path(__file__).parents[3] / PAGE).read_text()
PARTITIONS = 4
LIMIT = 60.0
_PROPERTIES = re.compile(r"^```properties\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_TOML = re.compile(r"^```toml\n(.*?)^```$", re.DOTALL | re.MULTILINE)

IDS = {letter: f"host-{letter}-17952825{number}8531-b17338{number}f" for number, letter in enumerate("abcd")}


class Group:
    """The members of the page, what they received, and what was produced."""

    def __init__(self, servers: Servers, cluster: Cluster, folder: Path, tasks: TaskGroup, stack: ExitStack) -> None:
        self.servers, self.cluster, self.folder, self.tasks, self.stack = servers, cluster, folder, tasks, stack
        self.originals: dict[str, Original] = {}
        self.ours: dict[str, tuple[kzconsumer.ConsumerConnector, anyio.Event, anyio.Event]] = {}
        self.delivered: list[Record] = []
        self.produced = 0

    async def produce(self, each: int) -> None:
        """So many more for each partition, all of them delivered to some member."""
        self.produced += each
        await asyncio.to_thread(produce, self.cluster.bootstrap, self.cluster.version, "orders", self.records(each))
        await until(lambda: len(self.all_delivered()) >= self.produced * PARTITIONS, LIMIT)

    def records(self, each: int) -> list[Sent]:
        """The last ones of each partition."""
        offsets = range(self.produced - each, self.produced)
        return [Sent(n, None, Record("orders", n, offset).value()) for offset in offsets for n in range(PARTITIONS)]

    def all_delivered(self) -> list[Record]:
        return self.delivered + [record for member in self.originals.values() for record in member.delivered()]

    def start_original(self, letter: str) -> None:
        self.originals[letter] = self.stack.enter_context(
            console_consumer(
                self.servers,
                self.cluster,
                "billing",
                "orders",
                self.folder / letter,
                consumer=IDS[letter],
                auto_commit_interval_ms=1000,
                auto_offset_reset="smallest",
            )
        )

    async def stop_original(self, letter: str) -> None:
        self.originals[letter].signal(signal.SIGTERM)
        await self.originals[letter].ended(LIMIT)

    async def start(self, letter: str, tables: dict[str, Any], **offsets: object) -> None:
        group, more = tables["group"] | {"consumer_id": IDS[letter]}, tables["offsets"] | offsets
        configured = kzconsumer.Settings.from_dict(tables | {"group": group, "offsets": more})
        self.ours[letter] = await self.tasks.start(self._live, configured)

    async def _live(
        self, configured: kzconsumer.Settings, *, task_status: TaskStatus[tuple[Any, anyio.Event, anyio.Event]]
    ) -> None:
        stop, stopped = anyio.Event(), anyio.Event()
        async with kzconsumer.connect(configured) as consumer, anyio.create_task_group() as reading:
            (stream,) = (await consumer.create_message_streams({"orders": 1}))["orders"]
            reading.start_soon(self._read, stream)
            task_status.started((consumer, stop, stopped))
            await stop.wait()
            reading.cancel_scope.cancel()
        stopped.set()

    async def _read(self, stream: kzconsumer.KafkaStream) -> None:
        async for message in stream:
            self.delivered.append(Record.parse(bytes(message.value or b"").decode()))
            stream.ack()

    async def stop(self, letter: str) -> None:
        _, stop, stopped = self.ours.pop(letter)
        stop.set()
        await stopped.wait()

    async def restart(self, letters: str, tables: dict[str, Any], **offsets: object) -> None:
        for letter in letters:
            await self.stop(letter)
            await self.start(letter, tables, **offsets)

    async def shared_out(self) -> None:
        """Every member owns two of the four partitions, and no rebalance is pending."""
        owners = {f"billing_{IDS[letter]}-0" for letter in (*self.ours, *self._running())}

        async def owned() -> list[str]:
            async with session(self.cluster.connect) as zookeeper:
                nodes = [await zookeeper.find(f"/consumers/billing/owners/orders/{n}") for n in range(PARTITIONS)]
            return [node.data.decode() for node in nodes if node is not None]

        await eventually(owned, lambda found: len(found) == PARTITIONS and set(found) == owners)

    def _running(self) -> list[str]:
        return [letter for letter, member in self.originals.items() if member.process.poll() is None]

    async def stored(self, *, in_zookeeper: bool) -> None:
        """All that was produced is stored."""
        for consumer, _, _ in self.ours.values():
            await consumer.commit()

        async def offsets() -> list[int | None]:
            if not in_zookeeper:
                return [await kafka_offset(self.cluster, "billing", "orders", n) for n in range(PARTITIONS)]
            async with session(self.cluster.connect) as zookeeper:
                nodes = [await zookeeper.find(f"/consumers/billing/offsets/orders/{n}") for n in range(PARTITIONS)]
            return [int(node.data) if node is not None else None for node in nodes]

        await eventually(offsets, lambda found: found == [self.produced] * PARTITIONS)


async def eventually(look: Callable[[], Awaitable[Any]], right: Callable[[Any], bool]) -> None:
    with anyio.fail_after(LIMIT):
        while not right(await look()):
            await anyio.sleep(0.1)


@pytest.fixture
def migrating(servers: Servers) -> Iterator[Cluster]:
    """The topic and the group have the names that are printed."""
    cluster = servers.cluster("migrating", "1.1.1")
    anyio.run(create_topic, cluster.connect, "orders", PARTITIONS)
    yield cluster
    cluster.kill()


# Members of both kinds: test_join_and_leave.py; both storages: core/servers/test_offset_storage.py; what the commands
# print: tools/servers/test_docs_commands.py, test_groups_move.py.
@only_nightly
async def test_the_page_as_printed(
    servers: Servers,
    migrating: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    kzconsumer_says, commands = CommandLine(capsys), iter(printed(PAGE))
    (properties,) = _PROPERTIES.findall(TEXT)
    (both,) = (tomllib.loads(block)["offsets"] for block in _TOML.findall(TEXT))
    Path("consumer.properties").write_text(properties.replace("zk1:2181", migrating.connect))

    async def next_command(about: str) -> str:
        command, answer = next(commands)
        assert command.startswith(about)
        done = await kzconsumer_says(*shlex.split(command.replace("zk1:2181", migrating.connect)))
        out = done.out.replace(migrating.connect, "zk1:2181")
        assert (done.status, form(out.splitlines())) == (0, form(answer)), f"{command}\n{out}"
        return done.out

    with ExitStack() as stack:
        async with anyio.create_task_group() as tasks:
            group = Group(servers, migrating, tmp_path, tasks, stack)
            group.start_original("a")
            group.start_original("b")
            await group.shared_out()
            await group.produce(10)
            await group.stored(in_zookeeper=True)
            tables = tomllib.loads(await next_command("config import"))

            await group.stop_original("a")
            await group.start("c", tables)
            await group.shared_out()
            await group.produce(1)
            await group.stored(in_zookeeper=True)
            await next_command("groups describe")

            await group.stop_original("b")
            await group.start("d", tables)
            await group.shared_out()
            await group.produce(1)
            await group.stored(in_zookeeper=True)
            await next_command("groups verify")

            await group.restart("cd", tables, **both)
            await group.shared_out()
            await group.produce(1)
            await group.stored(in_zookeeper=True)
            await group.stored(in_zookeeper=False)
            await next_command("offsets show")

            await group.restart("cd", tables, **both | {"dual_commit": False})
            await group.shared_out()
            await group.produce(1)
            await group.stored(in_zookeeper=False)
            await group.restart("cd", tables, **both)
            await group.shared_out()
            await group.produce(1)
            await group.stored(in_zookeeper=True)
            for letter in "cd":
                await group.stop(letter)
            for _ in ("--execute", "--verify"):
                await next_command("groups move")
            assert next(commands, None) is None
            group.produced += 1
            await asyncio.to_thread(produce, migrating.bootstrap, migrating.version, "orders", group.records(1))
            rest = await read_to_the_end(migrating, "billing-v2", "orders", partitions=PARTITIONS)
            group.delivered += [Record.parse(value.decode()) for value in rest]
            delivered = sorted(group.all_delivered())
            assert delivered == sorted(
                Record("orders", n, at) for n in range(PARTITIONS) for at in range(group.produced)
            )
