"""Without a token the status server answers only requests for loopback names (DNS rebinding)."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from pathlib import Path

import aiohttp
import pytest

from kzconsumer.status.status_server import ROUTES, serving
from kzconsumer_sandbox.servers.configuration import free_port
from tests.core.plain.test_status_server import observer


async def statuses(base: str, host: str, connector: aiohttp.BaseConnector | None = None) -> set[int]:
    """The status codes of all routes."""
    found = set()
    async with asyncio.timeout(20), aiohttp.ClientSession(base, connector=connector, headers={"Host": host}) as client:
        for route in ROUTES:
            async with client.get(route) as answer:
                found.add(answer.status)
    return found


@pytest.mark.parametrize(("host", "refused"), [("localhost", False), ("127.0.0.1", False), ("evil.example", True)])
async def test_requests_over_tcp_need_a_loopback_name(host: str, refused: bool) -> None:
    port = free_port()
    async with serving(observer(f"127.0.0.1:{port}")):
        found = await statuses(f"http://127.0.0.1:{port}", f"{host}:{port}")
    assert (found == {HTTPStatus.FORBIDDEN}) == refused
    assert (HTTPStatus.OK in found) != refused


async def test_requests_over_a_unix_socket_may_have_any_name(tmp_path: Path) -> None:
    """Browsers do not connect to unix sockets."""
    path = str(tmp_path / "s")
    async with serving(observer(f"unix:{path}")):
        found = await statuses("http://localhost", "evil.example", aiohttp.UnixConnector(path))
    assert HTTPStatus.FORBIDDEN not in found
