"""The unit under a real systemd: start, reload, stop, watchdog, restarts, credentials, executable memory."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import anyio
import pytest
from anyio import to_thread

from kzconsumer_sandbox.servers.cluster import Cluster
from kzconsumer_sandbox.servers.ports import HOST, free_port
from kzconsumer_sandbox.servers.topics import create_topic
from tests.support.members import stored_offsets
from tests.support.producing import produce
from tests.support.user_manager import UserManager, user_manager
from tests.support.zookeeper_sessions import until

ROOT = Path(__file__).parents[3]
LIMIT = 60.0
WATCHDOG = 5
DROP_IN = f"""\
[Service]
ExecStart=
ExecStart={sys.executable} -m kzconsumer --config %E/%i.toml
Environment=PYTHONPATH={ROOT}
StandardError=append:%E/%i.log
WatchdogSec={WATCHDOG}
# For the system's manager only.
DynamicUser=no
# This Python, the source tree and the test's files may be there.
ProtectHome=no
PrivateTmp=no
"""


class Unit:
    """An instance of `kzconsumer@.service` with a group of its own; its sink takes two seconds for a batch."""

    def __init__(self, manager: UserManager, cluster: Cluster, name: str) -> None:
        self.manager = manager
        self.name = f"kzconsumer@{name}.service"
        folder = manager.units.parents[1]
        self.config = folder / f"{name}.toml"
        self.log = folder / f"{name}.log"
        self.status = f"{HOST}:{free_port()}"
        self.state = folder / "kzconsumer" / name
        self.text = (
            f'zookeeper = {{ connect = "{cluster.connect}", session_timeout = "6s" }}\n'
            f'group.id = "{name}"\nsubscription.topics = {{ {name} = 1 }}\n'
            'sink = { plugin = "callable", options = { function = "tests.support.sinks:append_slowly" } }\n'
            f'status.listen = "{self.status}"\n'
        )
        self.config.write_text(self.text)

    async def systemctl(self, verb: str, *, check: bool = True) -> None:
        await to_thread.run_sync(lambda: self.manager.systemctl(verb, self.name, check=check))

    async def drop_in(self, lines: str) -> None:
        folder = self.manager.units / f"{self.name}.d"
        folder.mkdir()
        (folder / "own.conf").write_text(f"[Service]\n{lines}")
        await to_thread.run_sync(self.manager.systemctl, "daemon-reload")

    def show(self, name: str) -> str:
        return self.manager.show(self.name, name)

    @property
    def pid(self) -> int:
        return int(self.show("MainPID"))

    def written(self) -> list[str]:
        file = self.state / "records"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UserManager]:
    with units(tmp_path_factory.mktemp("systemd")) as running:
        yield running


@contextmanager
def units(folder: Path) -> Iterator[UserManager]:
    """A manager with our units and the drop-in."""
    with user_manager(folder) as running:
        shutil.copy(ROOT / "systemd" / "kzconsumer@.service", running.units)
        shutil.copy(ROOT / "systemd" / "kzconsumer.target", running.units)
        (running.units.parents[1] / "token").write_text("the-token")
        drop_ins = running.units / "kzconsumer@.service.d"
        drop_ins.mkdir()
        (drop_ins / "test.conf").write_text(DROP_IN)
        running.systemctl("daemon-reload")
        yield running


@pytest.fixture
async def unit(manager: UserManager, cluster: Cluster, unique: str) -> Unit:
    await create_topic(cluster.connect, unique, 1)
    return Unit(manager, cluster, unique)


async def test_start_reload_and_a_stop_with_a_batch_in_flight(unit: Unit, cluster: Cluster, unique: str) -> None:
    await unit.systemctl("start")
    assert (unit.show("ActiveState"), "consuming 1 partition" in unit.show("StatusText")) == ("active", True)
    unit.config.write_text(unit.text + "fetch.max_bytes = 5000\n")
    await unit.systemctl("reload")
    await until(lambda: unit.show("StatusText").endswith("restart needed for fetch.max_bytes"), LIMIT)
    await anyio.sleep(WATCHDOG + 1)

    records = [(0, None, b"%d" % number) for number in range(20)]
    await to_thread.run_sync(produce, cluster.bootstrap, cluster.version, unique, records)
    await until(lambda: (unit.state / "began").exists(), LIMIT)
    assert not unit.written()
    await unit.systemctl("stop")
    assert (unit.show("ActiveState"), unit.show("Result"), unit.show("NRestarts")) == ("inactive", "success", "0")
    assert unit.written() == [str(number) for number in range(len(unit.written()))]
    assert await stored_offsets(cluster.connect, unique, unique, 1) == [len(unit.written())] != [0]


async def test_a_member_that_hangs_is_killed_by_the_watchdog_and_started_again(unit: Unit) -> None:
    await unit.systemctl("start")
    hung = unit.pid
    os.kill(hung, signal.SIGSTOP)
    await until(lambda: unit.show("Result") == "watchdog", LIMIT)
    await until(lambda: unit.show("ActiveState") == "active", LIMIT)
    assert (unit.show("NRestarts"), unit.pid != hung) == ("1", True)
    assert "Fatal Python error: Aborted" in unit.log.read_text()


async def test_a_crash_is_followed_by_a_start_and_a_wrong_configuration_is_not(unit: Unit) -> None:
    await unit.systemctl("start")
    os.kill(unit.pid, signal.SIGKILL)
    await until(lambda: unit.show("NRestarts") == "1" and unit.show("ActiveState") == "active", LIMIT)

    unit.config.write_text(unit.text + 'offsets.reset = "smalest"\n')
    await unit.systemctl("restart", check=False)
    assert (unit.show("ActiveState"), unit.show("ExecMainStatus")) == ("failed", "78")
    assert 'did you mean "smallest"' in unit.show("StatusText") + unit.log.read_text()
    await anyio.sleep(3)  # RestartSec is 2
    assert unit.show("ActiveState") == "failed"


async def test_each_process_gets_the_credential(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    """In a container the ExecReload of a unit with a credential fails, so the other tests have none."""
    await create_topic(cluster.connect, unique, 1)
    with units(tmp_path) as manager:
        unit = Unit(manager, cluster, unique)
        await unit.drop_in("LoadCredential=token:%E/token\nEnvironment=KZCONSUMER__STATUS__TOKEN_FILE=%d/token\n")
        await unit.systemctl("start")
        assert await status_of(unit, "the-token") == 200
        os.kill(unit.pid, signal.SIGKILL)
        await until(lambda: unit.show("NRestarts") == "1" and unit.show("ActiveState") == "active", LIMIT)
        assert [await status_of(unit, token) for token in ("the-token", "another")] == [200, 401]


async def status_of(unit: Unit, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    url = f"http://{unit.status}/api/v1/status"
    async with aiohttp.ClientSession() as client, client.get(url, headers=headers) as answer:
        return answer.status


@pytest.mark.parametrize("denied", ["yes", "no"])
async def test_executable_memory(unit: Unit, cluster: Cluster, unique: str, denied: str) -> None:
    """The daemon needs none; with the drop-in for Spark it may have some."""
    await unit.drop_in(f"MemoryDenyWriteExecute={denied}\n")
    await unit.systemctl("start")
    await to_thread.run_sync(produce, cluster.bootstrap, cluster.version, unique, [(0, None, b"0")])
    await until(lambda: unit.written() == ["0"], LIMIT)
    assert (unit.state / "began").read_text() == {"yes": "PermissionError", "no": "allowed"}[denied]
    await unit.systemctl("stop")
