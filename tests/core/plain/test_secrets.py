"""Secrets are read from files, and output about settings shows none, also where it was put into another key."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Thread

import pytest

from kzconsumer.display import HIDDEN, redacted
from kzconsumer.errors import ConfigError
from kzconsumer.settings.layers import read_secret
from tests.support.command_line import CommandLine


@pytest.mark.parametrize(
    ("content", "secret"),
    [
        (b"hunter2", b"hunter2"),
        (b"hunter2\n", b"hunter2"),
        (b"hunter2\r\n", b"hunter2"),
        (b" hunter 2 \t\n", b" hunter 2 \t"),
        (b"two\nlines\n", b"two\nlines"),
        (b"hunter2\n\n", b"hunter2\n"),
        (b"\xff\x00", b"\xff\x00"),
    ],
)
def test_one_line_end_is_removed(content: bytes, secret: bytes, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    faults: list[str] = []
    assert read_secret(str(file), None, "password", "[brokers.sasl]", faults) == secret
    assert faults == []


@pytest.mark.parametrize("content", [b"", b"\n", b"\r\n"])
def test_an_empty_secret_is_a_fault(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    faults: list[str] = []
    assert read_secret(str(file), None, "password", "[brokers.sasl]", faults) is None
    assert faults == ["[brokers.sasl] password_file: is empty"]


@pytest.mark.parametrize(("mode", "accepted"), [(0o600, True), (0o644, True), (0o666, False), (0o602, False)])
def test_a_secret_that_everybody_may_write_is_a_fault(mode: int, accepted: bool, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"hunter2")
    file.chmod(mode)
    faults: list[str] = []
    assert read_secret(str(file), None, "password", "[brokers.sasl]", faults) == (b"hunter2" if accepted else None)
    assert ("everybody may write it" in "".join(faults)) == (not accepted)


def test_a_secret_that_is_replaced_while_it_is_read_is_one_of_both(tmp_path: Path) -> None:
    """A pipe ends when its writer closes it: by then its name is gone."""
    file = tmp_path / "secret"
    os.mkfifo(file, 0o600)

    def write() -> None:
        with file.open("wb") as opened:
            opened.write(b"hunter2")
            file.unlink()

    writer = Thread(target=write)
    writer.start()
    faults: list[str] = []
    assert read_secret(str(file), None, "password", "[brokers.sasl]", faults) == b"hunter2"
    writer.join()
    assert faults == []


@pytest.mark.parametrize("variable", ["hunter-2", "p@ss", "2fast", "two words", ""])
def test_a_password_instead_of_a_variable_is_refused_and_not_shown(variable: str) -> None:
    faults: list[str] = []
    assert read_secret(None, variable, "password", "[brokers.sasl]", faults) is None
    assert faults == [
        "[brokers.sasl] password_env: is not the name of an environment variable; a password must not be written here"
    ]


GROUP = """\
[zookeeper]
connect = "zk:2181"
[group]
id = "g"
[subscription]
topics = { t = 1 }
"""
JSON_LINES = '[sink]\nplugin = "jsonlines"\n'
URL = "//me:PLANTED-in/a@url@host"
KEY = "-----BEGIN PRIVATE KEY-----\\nPLANTED\\n-----END PRIVATE KEY-----"
NO_URL = "//me:PLANTED\u2100@host"
"""The standard library's error contains the part before the host."""


def spark(options: str) -> str:
    return f'{GROUP}[sink]\nplugin = "spark"\n[sink.options]\n{options}\n'


def jdbc(rest: str) -> str:
    return spark(f'destination = "jdbc"\ntable = "t"\nuser = "me"\n{rest}')


def parquet(rest: str) -> str:
    return spark(f'destination = "parquet"\npath = "lake"\n{rest}')


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (GROUP.replace("zk:2181", f"zk:{URL}") + JSON_LINES, "is not a list of hosts"),
        (GROUP.replace("zk:2181", f"zk/http:{URL}/") + JSON_LINES, "is not a ZooKeeper path"),
        (
            f'{GROUP}{JSON_LINES}[brokers]\nsecurity_protocol = "SSL"\n[brokers.tls]\nca = "{KEY}"',
            "ca: (hidden) cannot",
        ),
        (f'{GROUP}{JSON_LINES}[brokers.sasl]\npassword = "PLANTED"', "unknown key; did you mean"),
        (f'{GROUP}[sink]\nplugin = "http:{URL}"', 'no sink "http://(hidden)@host" is installed'),
        (f'{GROUP}[sink]\nplugin = "callable"\noptions = {{ function = "http:{URL}" }}', 'is not "module:function"'),
        (spark(f'destination = "http:{URL}"'), "is not one of"),
        (spark(f'destination = "parquet"\npath = "s3:{URL}"'), "is a URI with a password"),
        (spark(f'destination = "parquet"\npath = "s3:{NO_URL}"'), "is a URI with a password"),
        (jdbc(f'url = "jdbc:postgresql:{URL}/db"'), "url is not"),
        (jdbc('url = "jdbc:postgresql://me:PLANTED/@host/db"'), "url is not"),
        (jdbc('url = "jdbc:postgresql://me:1/PLANTED@host/db"'), "url holds a user"),
        (jdbc('url = "jdbc:postgresql://me:PLANTED@host/db"'), "url holds a user"),
        (jdbc(f'url = "jdbc:postgresql:{NO_URL}/db"'), "url is not"),
        (jdbc('url = "jdbc:postgresql://host/db?password=PLANTED"'), "the parameter password is not supported"),
        (jdbc('url = "jdbc:postgresql://host/db"\npassword = "PLANTED"'), "did you mean password_env?"),
        (parquet(f'registry = {{ url = "http:{URL}" }}'), "is not the URL of a schema registry"),
        (parquet(f'registry = {{ url = "http:{NO_URL}" }}'), "is not the URL of a schema registry"),
        (parquet('registry = { url = "http://:PLANTED@host" }'), "is not the URL of a schema registry"),
        (parquet(f'conf = {{ "http:{URL}" = "" }}'), "Spark's settings begin with spark."),
    ],
)
async def test_a_fault_does_not_show_the_secret(
    text: str, reported: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "group.toml"
    file.write_text(text)
    done = await CommandLine(capsys)("check-config", str(file))
    assert done.status == 78
    assert reported in done.err
    assert not [part for part in ("PLANTED", "a@url") if part in done.out + done.err]


@pytest.mark.parametrize("output", ["toml", "json"])
async def test_the_effective_configuration_does_not_show_the_secret(
    output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "group.toml"
    conf = '"spark.hadoop.fs.s3a.secret.key" = "PLANTED", "spark.hadoop.proxy" = "http://me:PLANTED@proxy"'
    file.write_text(parquet(f"conf = {{ {conf} }}").replace('"lake"', f'"{tmp_path}/lake"'))
    done = await CommandLine(capsys)("check-config", str(file), "--effective", "-o", output)
    assert (done.status, done.err) == (0, "")
    assert "http://(hidden)@proxy" in done.out
    assert "PLANTED" not in done.out


async def test_an_imported_configuration_does_not_show_the_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "consumer.properties"
    file.write_text(f"zookeeper.connect=zk\ngroup.id=g\nssl.key.password=PLANTED\nproxy=http:{URL}\n")
    done = await CommandLine(capsys)("config", "import", str(file))
    assert "proxy=http://(hidden)@host" in done.out
    assert "PLANTED" not in done.out + done.err


def test_an_application_gets_no_more_detail_than_the_command() -> None:
    assert str(ConfigError(["a: http://me:PLANTED@host", "b"])) == "a: http://(hidden)@host\nb"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://host/a and https://me:p@host/b", "http://host/a and https://(hidden)@host/b"),
        ("postgresql://host/db?user=a&password=p&sslmode=b", "postgresql://host/db?user=a&password=(hidden)&sslmode=b"),
        ("token=abc&scope=all; Secret=def ghi", "token=(hidden)&scope=all; Secret=(hidden) ghi"),
        ("tokens: 3, password length: 8", "tokens: 3, password length: 8"),
        ("at a@b://c", "at a@b://c"),
        ("PUT http://host/x?sp=rw&sig=a%2Fb%3D in 2 ms", "PUT http://host/x?sp=rw&sig=(hidden) in 2 ms"),
        (
            "abfss://container@account/x@y and abfss://me:p@host",
            "abfss://container@account/x@y and abfss://(hidden)@host",
        ),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\nmore", "(hidden)\nmore"),
        ("-----BEGIN PRIVATE KEY-----\nabc", "(hidden)"),
        ("-----BEGIN CERTIFICATE-----\nabc", "-----BEGIN CERTIFICATE-----\nabc"),
    ],
)
def test_what_is_redacted_in_a_text(text: str, shown: str) -> None:
    assert redacted(text) == shown


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "ssl.keystore.passwd",
        "client_secret",
        "Token",
        "credentials",
        "basic.auth.credentials.source",
        "fs.s3a.access.key",
        "aws_access_key_id",
        "api-key",
        "PRIVATE_KEY",
        "fs.azure.account.key.lake",
    ],
)
def test_values_of_secret_keys_are_hidden(name: str) -> None:
    assert redacted({"options": [{name: "PLANTED", "path": "lake"}]}) == {"options": [{name: HIDDEN, "path": "lake"}]}


@pytest.mark.parametrize("name", ["password_file", "token_env", "key", "partition_key", "user", "path"])
def test_other_values_are_shown(name: str) -> None:
    assert redacted({name: "shown"}) == {name: "shown"}
