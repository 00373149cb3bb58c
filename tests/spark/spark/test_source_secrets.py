"""Passwords and keys of a group's file: a streaming query writes and shows them nowhere."""

from __future__ import annotations

import asyncio
import base64
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.spark.spark.test_group_source import send
from tests.support.extent import only_nightly
from tests.support.members import stored_offsets
from tests.support.secured import PLAIN_PASSWORD, PLAIN_USER, Secured
from tests.support.source_query import LIMIT

pytestmark = [pytest.mark.timeout(600), only_nightly]  # test_executor_access.py has what tasks are given
WRONG = "not-the-passw0rd"


def toml(table: dict[str, object]) -> str:
    def text(value: object) -> str:
        if isinstance(value, dict):
            return "{ " + ", ".join(f"{key} = {text(each)}" for key, each in value.items()) + " }"
        return f'"{value}"'

    return text(table)


def forms(secret: str) -> set[bytes]:
    """As texts and pickles have it, as SASL sends it, and in base64, at each of the three places."""
    raw = {secret.encode(), f"\0{PLAIN_USER}\0{secret}".encode()}
    encoded = {base64.b64encode(b"x" * shift + each)[4:-4] for each in raw for shift in range(3)}
    return raw | encoded | {secret.encode("utf-16-le"), secret.encode("unicode_escape")}


def found(folder: Path, secret: set[bytes]) -> set[str]:
    """The files with it, by their names below the folder."""
    contents = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    return {name for name, content in contents.items() if any(form in content for form in secret)}


def test_a_password_is_found_in_a_pickle_and_in_its_base64(tmp_path: Path) -> None:
    content = pickle.dumps({"password": PLAIN_PASSWORD.encode()})
    (tmp_path / "pickle").write_bytes(content)
    (tmp_path / "base64").write_bytes(base64.b64encode(content))
    (tmp_path / "other").write_bytes(pickle.dumps({"password": WRONG}))
    assert found(tmp_path, forms(PLAIN_PASSWORD)) == {"pickle", "base64"}


async def test_secrets_are_shown_and_written_nowhere(secured: Secured, unique: str, tmp_path: Path) -> None:
    """The control: the names of the group and of the source, which are no secrets, are found in these places."""
    cluster = secured.cluster_of("3.9.1")
    await create_topic(cluster.connect, unique, 2)
    await send(cluster, unique, 0, 500)
    base = f'zookeeper.connect = "{cluster.connect}"\ngroup.id = "{unique}"\nsubscription.topics.{unique} = 1\n'
    key = {"certificate": secured.client_certificate}
    files = []
    for name, password in (("group", PLAIN_PASSWORD), ("wrong", WRONG)):
        sasl = {"password_file": secured.file(f"{name}-password", f"{password}\n")}
        table = secured.table(cluster, "SASL_SSL", "PLAIN", tls=key, sasl=sasl)
        (tmp_path / f"{name}.toml").write_text(f"{base}brokers = {toml(table)}\n")
        files.append(str(tmp_path / f"{name}.toml"))
    folder = tmp_path / "shown"
    folder.mkdir()
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "-m", "tests.support.secret_query", str(folder), *files]
        process = await asyncio.to_thread(
            subprocess.run, command, stdout=log, stderr=subprocess.STDOUT, timeout=3 * LIMIT
        )
    assert process.returncode == 0, (folder / "log").read_text()[-5000:]
    assert await stored_offsets(cluster.connect, unique, unique, 2) == [250, 250]

    lines = Path(secured.client_certificate).read_bytes().split(b"-----BEGIN RSA PRIVATE KEY-----")[-1].splitlines()
    for secret in (forms(PLAIN_PASSWORD), forms(WRONG), set(lines[1:-1])):
        assert found(folder, secret) == set()
    group, source = found(folder, {unique.encode()}), found(folder, {b"kzconsumer"})
    assert {"scratch/spark.log", "kept/spark.log", "progress", "checkpoint/offsets/0"} <= group
    assert any(name.startswith("events/") for name in group)
    assert "plan" in source
    assert sum(name.startswith("pages/") for name in source) > 3
    assert "PLAIN as plain-user: Authentication failed" in (folder / "error").read_text()
