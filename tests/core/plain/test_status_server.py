"""The status server alone: a real one, of a daemon that has not joined yet."""

from __future__ import annotations

import asyncio
import base64
import gc
import hashlib
import json
import os
import re
import resource
import socket
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from kzconsumer.errors import CannotListenError
from kzconsumer.service.systemd import Manager, ServiceReport
from kzconsumer.settings.settings import Settings
from kzconsumer.status import status_server, web_server
from kzconsumer.status.health import Health
from kzconsumer.status.observer import Observer
from kzconsumer.status.report import point
from kzconsumer.status.status_server import DOCUMENTS, ROUTES, page, serving
from kzconsumer.status.web_server import listening_socket
from kzconsumer.zookeeper.session import Lease


def observer(listen: str, **status: object) -> Observer:
    tables: dict[str, Any] = {
        "zookeeper": {"connect": "zk1:2181"},
        "group": {"id": "orders"},
        "status": {"listen": listen, **status},
    }
    settings, lease = Settings.from_dict(tables, source="group.toml"), Lease()
    health = Health(lease, 6.0, 60.0)
    report = ServiceReport(Manager.from_environment({}, os.getpid()), health)
    report.starting("waiting for ZooKeeper and a broker")
    return Observer(lambda: settings, health, lease)


async def test_a_daemon_that_has_not_joined_reports_that(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with (
        serving(observer(f"unix:{path}")),
        aiohttp.ClientSession("http://localhost", connector=aiohttp.UnixConnector(str(path))) as client,
    ):
        assert path.stat().st_mode & 0o777 == 0o660
        for route in ROUTES:
            async with client.get(route) as answer:
                assert answer.status == (503 if route == "/health/ready" else 200), route
                assert answer.headers["Cache-Control"] == "no-store"
                assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        async with client.get("/health/ready") as answer:
            assert await answer.json() == {
                "ready": False,
                "reason": "waiting for ZooKeeper and a broker",
                "health": "not examined",
                "findings": [],
                "not_asked": ["waiting for ZooKeeper and a broker"],
                "stalled": [],
            }
        async with client.get("/api/v1/group") as answer:
            group = await answer.json()
        assert (group["at"], group["partitions"]) == (None, [])
        async with client.get("/metrics") as answer:
            text = await answer.text()
        found = {s.name: s.value for f in text_string_to_metric_families(text) for s in f.samples}
        assert found["kzconsumer_ready"] == 0
        assert not {name for name in found if "partition_" in name or "member" in name}
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            for route in ROUTES:
                async with client.request(method, route, data=b"x") as answer:
                    assert answer.status == 405, (method, route)
    assert not path.exists()


async def test_a_client_that_hangs_delays_neither_others_nor_the_end() -> None:
    """It never finishes its request."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    listening = observer(f"127.0.0.1:{port}")
    async with asyncio.timeout(20):
        async with serving(listening):
            _, slow = await asyncio.open_connection("127.0.0.1", port)
            slow.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n")
            async with (
                aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client,
                client.get("/health/live") as answer,
            ):
                assert answer.status == 200
        slow.close()


def test_only_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with (
        listening_socket(f"unix:{path}", "group.toml: [status] listen"),
        pytest.raises(CannotListenError, match=r"^group.toml: \[status\] listen: "),
    ):
        listening_socket(f"unix:{path}", "group.toml: [status] listen")
    file = tmp_path / "file"
    file.write_text("precious")
    with pytest.raises(CannotListenError, match="in use"):
        listening_socket(f"unix:{file}", "group.toml")
    assert file.read_text() == "precious"


def test_a_port_that_is_taken() -> None:
    with listening_socket("127.0.0.1:0", "group.toml") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListenError, match=f"cannot listen at 127.0.0.1:{port}: Address already in use"):
            listening_socket(f"127.0.0.1:{port}", "group.toml")


def test_an_unknown_host() -> None:
    with pytest.raises(CannotListenError, match=r"cannot listen at nowhere\.invalid:1: "):
        listening_socket("nowhere.invalid:1", "group.toml")


async def texts(answer: aiohttp.ClientResponse) -> AsyncIterator[str]:
    """Each event, or comment, as it is sent."""
    begun = b""
    async for part in answer.content.iter_any():
        *whole, begun = (begun + part).split(b"\n\n")
        for text in whole:
            yield text.decode()


async def test_events_carry_changes_and_end_with_the_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first events hold everything, then only changes, then only keep-alive comments."""
    monkeypatch.setattr(status_server, "PERIOD", 0.05)
    monkeypatch.setattr(status_server, "MOST", 1)
    path, watched = tmp_path / "s", observer(f"unix:{tmp_path / 's'}")
    client = aiohttp.ClientSession("http://localhost", connector=aiohttp.UnixConnector(str(path)))
    async with asyncio.timeout(30), client:
        async with serving(watched):
            answer = await client.get("/api/v1/events")
            assert answer.content_type == "text/event-stream"
            sent = texts(answer)
            first = [await anext(sent) for _ in range(len(DOCUMENTS) - 1)]
            found = {
                name: data for name, _, data in (text.removeprefix("event: ").partition("\ndata: ") for text in first)
            }
            assert set(found) == set(DOCUMENTS) - {"history"}
            async with client.get("/api/v1/status") as asked:
                assert json.loads(found["status"]) == await asked.json()
            assert await anext(sent) == ":"
            for time in (7.0, 12.0, 5.0):  # the clock was set back before the last one
                watched.history.append(point(time, []))
                new = await anext(text async for text in sent if text != ":")
                assert new.startswith("event: history\n")
                assert [each["at"] for each in json.loads(new.partition("data: ")[2])["points"]] == [time]
                assert await anext(sent) == ":", "not again"
            async with client.get("/api/v1/events") as one_more:
                assert one_more.status == 503
        assert {text async for text in sent} <= {":"}
        answer.close()


async def test_the_whole_group_is_read_for_those_that_ask_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_server, "PERIOD", 0.05)
    client = aiohttp.ClientSession("http://localhost", connector=aiohttp.UnixConnector(str(tmp_path / "s")))
    watched = observer(f"unix:{tmp_path / 's'}")
    async with asyncio.timeout(30), serving(watched), client:
        async with client.get("/api/v1/events") as answer:
            plain = texts(answer)
            assert "event: group\n" not in "".join([await anext(plain) for _ in range(len(DOCUMENTS) + 5)])
            assert watched.group.status.reason is None, "nothing has been read"
        async with client.get("/api/v1/events?group") as answer:
            reason = "not a member of the group at the moment"
            await anext(text async for text in texts(answer) if text.startswith("event: group\n") and reason in text)


async def test_everything_but_the_empty_page_requires_the_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("sesame")
    path = tmp_path / "s"
    async with (
        serving(observer(f"unix:{path}", token_file=str(tmp_path / "token"))),
        aiohttp.ClientSession("http://localhost", connector=aiohttp.UnixConnector(str(path))) as client,
    ):
        for route in ROUTES:
            async with client.get(route, allow_redirects=False) as answer:
                assert answer.status == {"/": 302, "/status": 200}.get(route, 401), route
                assert "orders" not in await answer.text()
        async with client.get("/status/../api/v1/config") as answer:
            assert answer.status == 401


def test_the_content_security_policy_matches_the_page() -> None:
    """The policy allows exactly what the page contains."""
    html, policy = page()
    assert html.count("<script") == html.count("<style") == 1
    for kind in ("script", "style"):
        (inside,) = re.findall(rf"<{kind}[^>]*>(.*?)</{kind}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert re.findall(r"(?:https?:)?//[\w.]+", html.replace("http://www.w3.org/2000/svg", "")) == []


def test_a_daemon_that_serves_nothing_loads_nothing_for_it() -> None:
    code = "import sys, kzconsumer.service.daemon; print({'aiohttp', 'prometheus_client'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"


def half_a_request(address: str) -> socket.socket:
    """From a client that never sends the rest."""
    if address.startswith("unix:"):
        client = socket.socket(socket.AF_UNIX)
        client.connect(address.removeprefix("unix:"))
    else:
        host, _, port = address.rpartition(":")
        client = socket.create_connection((host, int(port)))
    client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n")
    return client


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_incomplete_requests_take_few_descriptors_and_block_no_client(tmp_path: Path, kind: str) -> None:
    """They do not end an open stream of events either."""
    address = f"127.0.0.1:{free_port()}" if kind == "tcp" else f"unix:{tmp_path / 's'}"
    unix = aiohttp.UnixConnector(str(tmp_path / "s"), force_close=True)
    connector = unix if kind == "unix" else aiohttp.TCPConnector(force_close=True)
    client = aiohttp.ClientSession(f"http://{address}" if kind == "tcp" else "http://localhost", connector=connector)
    async with asyncio.timeout(60), serving(observer(address)), client:
        pages = [await client.get("/api/v1/events") for _ in range(3)]
        before, half = descriptors(), []
        try:
            for number in range(300):
                half.append(half_a_request(address))
                if number % 50 == 49:
                    async with client.get("/health/live") as answer:
                        assert answer.status == 200
            async with client.get("/metrics") as answer:
                assert "kzconsumer_ready" in await answer.text()
            assert descriptors() - before - len(half) <= 70
            for page_of_events in pages:
                sent = texts(page_of_events)
                assert "event: " in await anext(sent)
                async with asyncio.timeout(20):
                    while await anext(sent) != ":":
                        pass
                page_of_events.close()
        finally:
            for each in half:
                each.close()


async def test_a_connection_with_an_unfinished_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """So is an idle connection: neither is kept until its place is needed."""
    monkeypatch.setattr(web_server, "IDLE", 0.2)
    address = f"127.0.0.1:{free_port()}"
    async with asyncio.timeout(30), serving(observer(address)):
        with half_a_request(address) as half:
            half.setblocking(False)
            assert await asyncio.get_running_loop().sock_recv(half, 100) == b""


async def test_without_descriptors_it_waits_and_logs_one_line(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    address = f"127.0.0.1:{free_port()}"
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with asyncio.timeout(30), serving(observer(address)):
        with socket.socket() as client:
            client.connect(("127.0.0.1", int(address.rpartition(":")[2])))
            lowest_free = os.dup(0)
            os.close(lowest_free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, most[1]))
            try:
                await asyncio.sleep(0.1)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, most)
            client.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            client.setblocking(False)
            answer = await asyncio.get_running_loop().sock_recv(client, 1000)
    assert answer.startswith(b"HTTP/1.1 200 OK")
    output = capfd.readouterr()
    assert "Traceback" not in output.out + output.err + caplog.text
    assert caplog.text.count("status connection not accepted") == 1


async def test_a_connection_accepted_during_shutdown_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    accepted = asyncio.Event()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response()

    async def make_room(*given: object) -> None:
        accepted.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(web_server, "make_room", make_room)
    with warnings.catch_warnings(record=True) as output, socket.create_server(("127.0.0.1", 0)) as listening:
        warnings.simplefilter("always", ResourceWarning)
        accepting = asyncio.create_task(web_server.accept(listening, web.Server(answer), ()))
        with socket.create_connection(listening.getsockname()):
            await asyncio.wait_for(accepted.wait(), 30)
            accepting.cancel()
            await asyncio.wait([accepting])
            del accepting
            gc.collect()
    assert [each.message for each in output if each.category is ResourceWarning] == []
