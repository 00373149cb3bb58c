"""The unit under a real systemd: start, reload, stop, watchdog, restarts, credentials, hardening."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import anyio
import pytest
from anyio import to_thread

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.debian_root import RELEASES, debian_root
from tests.support.members import stored_offsets
from tests.support.pages import files_shown
from tests.support.service_unit import ServiceUnit
from tests.support.system_manager import SystemManager, system_manager
from tests.support.zookeeper_sessions import until

LIMIT = 60.0
WATCHDOG = 5
everything = pytest.mark.skipif(not RELEASES, reason="make test-systemd, make thorough: others prove it in make test")
SINK = '{ plugin = "callable", options = { function = "tests.support.sinks:%s" } }'
PROBE = "/opt/kzconsumer/bin/python -m tests.support.forbidden"
UNHARDENED = f"""\
[Service]
Type=oneshot
User=nobody
WorkingDirectory=/srv/open
StandardOutput=file:/srv/open/outcomes
ExecStart={PROBE} /home/kept /tmp/kept
"""


@pytest.fixture(scope="module", params=["here", *RELEASES])
def manager(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemManager]:
    system = Path("/") if request.param == "here" else debian_root(request.param)
    with system_manager(tmp_path_factory.mktemp("systemd"), system) as running:
        running.install(f"WatchdogSec={WATCHDOG}")
        yield running


@pytest.fixture
async def unit(manager: SystemManager, cluster: Cluster, unique: str) -> ServiceUnit:
    await create_topic(cluster.connect, unique, 1)
    return ServiceUnit(manager, cluster, unique, SINK % "append_slowly")


async def test_start_reload_and_a_stop_with_a_batch_in_flight(unit: ServiceUnit, cluster: Cluster, unique: str) -> None:
    await unit.systemctl("start")
    assert (unit.show("ActiveState"), "consuming 1 partition" in unit.show("StatusText")) == ("active", True)
    unit.configure(unit.text + "fetch.max_bytes = 5000\n")
    await unit.systemctl("reload")
    note = "restart needed for fetch.max_bytes"
    await until(lambda: unit.show("StatusText").endswith(note), 0 if unit.manager.reload_waits else LIMIT)
    await anyio.sleep(WATCHDOG + 1)

    values = [str(number) for number in range(20)]
    await unit.produce(*values)
    await until(lambda: (unit.state / "began").exists(), LIMIT)
    assert not unit.written()
    await unit.systemctl("stop")
    assert (unit.show("ActiveState"), unit.show("Result"), unit.show("NRestarts")) == ("inactive", "success", "0")
    assert await stored_offsets(cluster.connect, unique, unique, 1) == [len(unit.written())] != [0]

    await unit.produce("last")
    await unit.systemctl("start")
    await until(lambda: "last" in unit.written(), LIMIT)
    assert unit.written() == [*values, "last"]


@everything  # one that hangs sends no keep-alive: test_service.py; a start after a crash: the test below
async def test_a_member_that_hangs_is_killed_by_the_watchdog_and_started_again(unit: ServiceUnit) -> None:
    await unit.systemctl("start")
    hung = unit.pid
    await unit.systemctl("kill", "--signal=STOP")
    await until(lambda: unit.show("Result") == "watchdog", LIMIT)
    await until(lambda: unit.show("ActiveState") == "active", LIMIT)
    assert (unit.show("NRestarts"), unit.pid != hung) == ("1", True)
    assert "Fatal Python error: Aborted" in unit.log()


async def test_a_crash_is_followed_by_a_start_and_a_wrong_configuration_is_not(unit: ServiceUnit) -> None:
    await unit.systemctl("start")
    await unit.systemctl("kill", "--signal=KILL")
    await until(lambda: unit.show("NRestarts") == "1" and unit.show("ActiveState") == "active", LIMIT)
    if unit.manager.reload_waits:
        assert unit.show("RestartUSecNext") == "3.948700s"  # RestartSteps=5 of the same drop-in

    unit.configure(unit.text.replace('"smallest"', '"smalest"'))
    await unit.systemctl("restart", check=False)
    assert (unit.show("ActiveState"), unit.show("ExecMainStatus")) == ("failed", "78")
    assert 'did you mean "smallest"' in unit.log()
    await anyio.sleep(3)  # RestartSec is 2
    assert unit.show("ActiveState") == "failed"


@everything  # the units: core/plain/test_systemd_units.py; a start after a crash: the test above
async def test_members_start_with_the_machine_and_restart_with_the_target(unit: ServiceUnit) -> None:
    """As docs/installation.md enables them. The log is read as docs/service.md does."""
    unit.configure(unit.text + 'log.format = "journald"\n')
    await unit.systemctl("enable", "--now", "kzconsumer.target")
    first = unit.pid
    await to_thread.run_sync(unit.manager.systemctl, "restart", "kzconsumer.target")
    await until(lambda: unit.show("ActiveState") == "active", LIMIT)
    assert first != unit.pid
    unit.manager.restart()
    await until(lambda: unit.show("ActiveState") == "active", LIMIT)
    assert unit.log("KZCONSUMER_EVENT=rebalanced", f"KZCONSUMER_GROUP={unit.topic}")
    assert not unit.log("KZCONSUMER_EVENT=rebalanced", "KZCONSUMER_GROUP=another")


@everything  # the units: core/plain/test_systemd_units.py; a job: test_runs.py
async def test_a_timer_starts_a_scheduled_job(unit: ServiceUnit) -> None:
    """With the units of docs/scheduled-jobs.md, but for the time. The log's end is reached once."""
    (unit.manager.config / "nightly.toml").write_text(unit.text + 'subscription.stop_at = "end"\n')
    for name, text in files_shown("docs/scheduled-jobs.md", "ini").items():
        soon = text.replace("OnCalendar=*-*-* 02:05:00", "OnCalendar=*:*:*\nAccuracySec=1ms")
        (unit.manager.units / name).write_text(soon.replace(" /usr/bin/kz", " /opt/kzconsumer/bin/kz"))
    await unit.produce("one", "two")
    unit.manager.systemctl("daemon-reload")
    unit.manager.systemctl("enable", "--now", "nightly.timer")
    records = unit.manager.root / "var/lib/private/kzconsumer/nightly/records"
    await until(records.exists, LIMIT)
    unit.manager.systemctl("disable", "--now", "nightly.timer")
    await until(lambda: unit.manager.show("nightly.service", "ActiveState") == "inactive", LIMIT)
    assert unit.manager.show("nightly.service", "ExecMainStatus") == "0"
    assert records.read_text() == "one\ntwo\n"


# One that is not encrypted: test_what_the_hardening_prevents.
@pytest.mark.parametrize(
    "encrypted", [pytest.param(False, id="plain", marks=everything), pytest.param(True, id="encrypted")]
)
async def test_each_process_gets_the_credential(unit: ServiceUnit, encrypted: bool) -> None:
    await unit.credential("the-token", encrypted=encrypted)
    await unit.systemctl("start")
    assert await status_of(unit, "the-token") == 200
    await unit.systemctl("reload")
    await unit.systemctl("kill", "--signal=KILL")
    await until(lambda: unit.show("NRestarts") == "1" and unit.show("ActiveState") == "active", LIMIT)
    assert [await status_of(unit, token) for token in ("the-token", "another")] == [200, 401]


async def status_of(unit: ServiceUnit, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    url = f"http://{unit.status}/api/v1/status"
    async with aiohttp.ClientSession() as client, client.get(url, headers=headers) as answer:
        return answer.status


async def test_what_the_hardening_prevents(unit: ServiceUnit, cluster: Cluster, unique: str) -> None:
    """Each attempt of `forbidden` succeeds in an unprivileged service without hardening."""
    await unit.credential("the-token", encrypted=False)
    await unit.systemctl("start")
    unit.manager.run("sh", "-c", "mkdir -m 777 /srv/open && echo kept | tee /home/kept >/tmp/kept")
    prevented = {
        # Newer ones ask the kernel (PR_SET_MDWE), older ones have only the filter of system calls.
        "executable memory": "EACCES" if unit.manager.reload_waits else "EPERM",
        "niceness": "EPERM",
        "personality": "EPERM",
        "netlink": "EAFNOSUPPORT",
        "set-user-id": "EPERM",
        "user namespace": "EPERM",
        "process 1": "ENOENT",
        "the machine's memory": "ENOENT",
        "write to /srv": "EROFS",
        "/home/kept": "EACCES",
        "/tmp/kept": "ENOENT",
    }
    (unit.manager.units / "unhardened.service").write_text(UNHARDENED)
    unit.manager.systemctl("daemon-reload")
    unit.manager.systemctl("start", "unhardened")
    unhardened = json.loads((unit.manager.root / "srv/open/outcomes").read_text())
    assert unhardened == dict.fromkeys(prevented, "done")
    status = unit.manager.run("cat", f"/proc/{unit.pid}/status")
    assert "\nCapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\n" in status

    # All members have the same dynamic user, but each its own namespaces.
    process = f"/proc/{unit.pid}"
    credential = f"/run/credentials/{unit.name}/token"
    neighbours = {
        "/etc/kzconsumer/token": "EACCES",
        credential: "EACCES",
        f"{process}/root{credential}": "ENOENT",
        f"{process}/environ": "ENOENT",
        f"/var/lib/private/kzconsumer/{unique}/began": "ENOENT",
    }
    await unit.produce("a record")
    await until(lambda: unit.written(), LIMIT)
    await create_topic(cluster.connect, f"{unique}-2", 1)
    curious = ServiceUnit(unit.manager, cluster, f"{unique}-2", SINK % "try_what_is_forbidden")
    await curious.produce("/home/kept", "/tmp/kept", *neighbours)
    await curious.systemctl("start")
    outcomes = curious.state / "outcomes"
    await until(lambda: outcomes.exists() and outcomes.read_text(), LIMIT)
    assert json.loads(outcomes.read_text()) == prevented | neighbours
    seen_by_root = json.loads(unit.manager.run(*PROBE.split(), *neighbours))
    assert {seen_by_root[name] for name in neighbours} == {"done"}
