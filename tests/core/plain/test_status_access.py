"""Whom the status server answers: who has the token, and without one who asks for a loopback name (DNS rebinding)."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kzconsumer.errors import ConfigError
from kzconsumer.settings.settings import Settings
from kzconsumer.settings.value_readers import is_local
from kzconsumer.status.access import load_token, refusal
from kzconsumer.status.status_server import ROUTES, effective_settings, serving
from kzconsumer_sandbox.servers.configuration import free_port
from tests.core.plain.test_status_server import observer

REQUIRED: dict[str, Any] = {"zookeeper": {"connect": "zk1:2181"}, "group": {"id": "orders"}}


def settings(**status: object) -> Settings:
    return Settings.from_dict(REQUIRED | {"status": status}, source="group.toml")


@pytest.mark.parametrize("listen", ["127.0.0.1:9308", "localhost:0", "[::1]:9308", "127.9.9.9:1", "unix:/run/kz/s"])
def test_loopback_needs_no_token(listen: str) -> None:
    assert is_local(listen)
    settings(listen=listen)


@pytest.mark.parametrize("listen", ["0.0.0.0:9308", "[::]:9308", "10.0.0.1:80", "localhost.example:80", "metrics:9308"])
def test_other_addresses_need_a_token(listen: str) -> None:
    with pytest.raises(ConfigError, match="open to other machines: token_file or token_env"):
        settings(listen=listen)
    settings(listen=listen, token_file="/run/token")


@pytest.mark.parametrize(
    ("listen", "published"),
    [
        ("10.0.0.1:80", "10.0.0.1:80"),
        ("metrics:9308", "metrics:9308"),
        ("0.0.0.0:9308", ""),
        ("[::]:9308", ""),
        ("metrics:0", ""),
        ("127.0.0.1:9308", ""),
        ("unix:/run/kz/s", ""),
    ],
)
def test_only_an_address_that_others_can_use_is_published(listen: str, published: str) -> None:
    assert settings(listen=listen, token_file="/run/token").status.published == published
    assert settings().status.published == ""


@pytest.mark.parametrize(
    "listen", ["9308", ":9308", "localhost", "localhost:65536", "unix:s", "http://localhost:1", 9308]
)
def test_invalid_addresses(listen: object) -> None:
    with pytest.raises(ConfigError, match=r"\[status\] listen: .* is not an address such as"):
        settings(listen=listen)


def test_a_token_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = settings(listen="0.0.0.0:1", token_file=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"^group.toml: \[status\] token_file: cannot be read: No such file"):
        load_token(missing.status, missing.source)
    both = settings(token_file=str(tmp_path), token_env="TOKEN")
    with pytest.raises(ConfigError, match="token_env: cannot be given together with token_file"):
        load_token(both.status, both.source)
    monkeypatch.setenv("TOKEN", "secret")
    assert load_token(settings(token_env="TOKEN").status, "") == b"secret"
    assert load_token(settings().status, "") is None


@pytest.mark.parametrize("host", ["localhost", "localhost:9308", "127.0.0.1:9308", "[::1]:9308", "[::1]", None])
def test_a_host_header_of_this_machine(host: str | None) -> None:
    assert refusal(None, "", host) is None


@pytest.mark.parametrize(
    "host", ["", "evil.example", "localhost.evil.example:9308", "127.0.0.1.evil.example", "[::2]:1"]
)
def test_a_foreign_host_header(host: str) -> None:
    assert refusal(None, "Bearer x", host) is HTTPStatus.FORBIDDEN


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer ", "Bearer other", "Basic secret", "secret", "Bearer secret2"])
def test_without_the_token(given: str) -> None:
    for host in ("localhost", None):
        assert refusal(b"secret", given, host) is HTTPStatus.UNAUTHORIZED


def test_with_the_token() -> None:
    assert refusal(b"secret", "Bearer secret", "anything.example") is None
    assert refusal("gehéim".encode(), "bearer gehéim", None) is None


def test_settings_are_shown_without_secrets() -> None:
    shown = effective_settings(
        Settings.from_dict(
            REQUIRED
            | {
                "sink": {
                    "plugin": "x",
                    "options": {
                        "url": "jdbc:postgresql://u:do-not-tell@db/x",
                        "properties": {"password": "do-not-tell", "password_file": "/run/secret"},
                    },
                }
            }
        )
    )
    assert "do-not-tell" not in repr(shown)
    assert "/run/secret" in repr(shown), "where a secret is found is none"
    assert shown["offsets.commit_interval"] == "10s"
    assert shown["group.id"] == "orders"


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
