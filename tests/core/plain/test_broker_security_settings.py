"""The settings of `[brokers]` checked against the files and variables they name: each fault is one line without
secrets.
"""

from __future__ import annotations

import re
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from kzconsumer.brokers.transport import Security, load_security
from kzconsumer.cli.main import main
from kzconsumer.errors import ConfigError, SecurityError
from kzconsumer.installation import pip_install
from kzconsumer.security.tls import BROKER, ZOOKEEPER, Peer, explain
from kzconsumer.settings.settings import Settings

SECRET = "s3cret-of-mine"
CA = trustme.CA()
ISSUED = CA.issue_cert("client.example")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A directory with valid files and some invalid ones."""
    CA.cert_pem.write_to_path(str(tmp_path / "ca"))
    ISSUED.cert_chain_pems[0].write_to_path(str(tmp_path / "certificate"))
    ISSUED.private_key_pem.write_to_path(str(tmp_path / "key"))
    CA.issue_cert("other.example").private_key_pem.write_to_path(str(tmp_path / "other-key"))
    key = serialization.load_pem_private_key(ISSUED.private_key_pem.bytes(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(SECRET.encode()),
    )
    (tmp_path / "encrypted-key").write_bytes(encrypted)
    (tmp_path / "password").write_text(SECRET + "\n")
    (tmp_path / "wrong-password").write_text("wrong")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "nonsense").write_text(SECRET)
    return tmp_path


def load(files: Path, protocol: str, tls: dict[str, Any], sasl: dict[str, Any]) -> Security:
    """Values of keys that name files are file names in that directory."""

    def placed(table: dict[str, Any]) -> dict[str, Any]:
        named = {"ca", "certificate", "key", "key_password_file", "password_file", "token_file", "keytab"}
        return {key: str(files / value) if key in named else value for key, value in table.items()}

    brokers = {"security_protocol": protocol, "tls": placed(tls), "sasl": placed(sasl)}
    content = {"zookeeper": {"connect": "z"}, "group": {"id": "g"}, "brokers": brokers}
    settings = Settings.from_dict(content, source="group.toml")
    return load_security(settings.brokers, settings.source)


PLAIN = {"mechanism": "PLAIN", "username": "me", "password_file": "password"}


@pytest.mark.parametrize(
    ("protocol", "tls", "sasl", "expected"),
    [
        ("PLAINTEXT", {}, {}, (False, "")),
        ("SSL", {}, {}, (True, "")),
        ("SSL", {"ca": "ca", "certificate": "certificate", "key": "key"}, {}, (True, "")),
        (
            "SSL",
            {"certificate": "certificate", "key": "encrypted-key", "key_password_file": "password"},
            {},
            (True, ""),
        ),
        ("SASL_PLAINTEXT", {}, PLAIN, (False, "PLAIN as me")),
        (
            "SASL_PLAINTEXT",
            {},
            {"mechanism": "OAUTHBEARER", "token_command": ["true"]},
            (False, "OAUTHBEARER with token_command"),
        ),
        (
            "SASL_SSL",
            {},
            {"mechanism": "OAUTHBEARER", "token_command": ["sh", "-c", "echo t", "no-such-program"]},
            (True, "OAUTHBEARER with token_command"),
        ),
        (
            "SASL_SSL",
            {"ca": "ca"},
            {"mechanism": "SCRAM-SHA-512", "username": "me", "password_env": "KZ_TEST_PASSWORD"},
            (True, "SCRAM-SHA-512 as me"),
        ),
    ],
)
def test_valid_settings(
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
    protocol: str,
    tls: dict[str, Any],
    sasl: dict[str, Any],
    expected: tuple[bool, str],
) -> None:
    monkeypatch.setenv("KZ_TEST_PASSWORD", SECRET)
    security = load(files, protocol, tls, sasl)
    identity = str(security.sasl or "")
    assert (security.tls is not None, identity) == expected
    if security.tls is not None:
        assert security.tls.verify_mode is ssl.CERT_REQUIRED
        assert security.tls.check_hostname
    if sasl == PLAIN:
        assert security.sasl is not None
        assert next(security.sasl.begin("h")) == f"\0me\0{SECRET}".encode()


@pytest.mark.parametrize("named", [False, True])
def test_the_authorities_of_the_system_are_trusted_unless_others_are_named(
    files: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    system = trustme.CA()
    system.cert_pem.write_to_path(str(files / "system"))
    monkeypatch.setenv("SSL_CERT_FILE", str(files / "system"))
    monkeypatch.setenv("SSL_CERT_DIR", str(files / "none"))
    context = load(files, "SSL", {"ca": "ca"} if named else {}, {}).tls
    assert context is not None
    trusted = CA if named else system
    assert [*map(ssl.DER_cert_to_PEM_cert, context.get_ca_certs(binary_form=True))] == [
        trusted.cert_pem.bytes().decode()
    ]
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


OWN = {"certificate": "certificate"}


@pytest.mark.parametrize(
    ("protocol", "tls", "sasl", "said"),
    [
        ("PLAINTEXT", {"ca": "ca"}, {}, [r"\[brokers.tls\]: security_protocol PLAINTEXT uses no TLS"]),
        ("SASL_PLAINTEXT", {"verify_hostname": False}, PLAIN, [r"\[brokers.tls\]: .* SASL_PLAINTEXT uses no TLS"]),
        ("SSL", {}, PLAIN, [r"\[brokers.sasl\]: security_protocol SSL uses no SASL"]),
        (
            "SASL_SSL",
            {},
            {},
            [
                r"\[brokers.sasl\] mechanism: missing \(PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or GSSAPI\)",
                r"\[brokers.sasl\] username: missing",
                r"\[brokers.sasl\] password_file: missing \(or password_env\)",
            ],
        ),
        (
            "SASL_SSL",
            {},
            PLAIN | {"password_env": SECRET},
            [r"\[brokers.sasl\] password_env: cannot be given together with password_file"],
        ),
        (
            "SASL_SSL",
            {},
            {"mechanism": "PLAIN", "username": "me", "password_env": SECRET},
            [r"\[brokers.sasl\] password_env: is not the name of an environment variable; .*"],
        ),
        (
            "SASL_SSL",
            {},
            {"mechanism": "PLAIN", "username": "me", "password_env": "NO_SUCH_VARIABLE"},
            [r"\[brokers.sasl\] password_env: the environment has no such variable, or an empty one"],
        ),
        (
            "SASL_SSL",
            {},
            PLAIN | {"password_file": SECRET},
            [r"\[brokers.sasl\] password_file: cannot be read: No such file or directory"],
        ),
        ("SASL_SSL", {}, PLAIN | {"password_file": "empty"}, [r"\[brokers.sasl\] password_file: is empty"]),
        (
            "SASL_SSL",
            {},
            PLAIN | {"token_file": "password", "principal": "me"},
            [
                r"\[brokers.sasl\] principal: is for GSSAPI, but mechanism is PLAIN",
                r"\[brokers.sasl\] token_file: is for OAUTHBEARER, but mechanism is PLAIN",
            ],
        ),
        (
            "SASL_SSL",
            {},
            {"mechanism": "OAUTHBEARER", "username": "me"},
            [
                r"\[brokers.sasl\] username: is for a password, but mechanism is OAUTHBEARER",
                r"\[brokers.sasl\] token_file: missing \(or token_command\)",
            ],
        ),
        (
            "SASL_SSL",
            {},
            {"mechanism": "OAUTHBEARER", "token_file": "password", "token_command": ["true"]},
            [r"\[brokers.sasl\] token_command: cannot be given together with token_file"],
        ),
        (
            "SASL_SSL",
            {},
            {"mechanism": "OAUTHBEARER", "token_file": "empty"},
            [r"\[brokers.sasl\] token_file: is empty"],
        ),
        (
            "SASL_SSL",
            {},
            {"mechanism": "OAUTHBEARER", "token_command": ["no-such-program", SECRET]},
            [r"\[brokers.sasl\] token_command: no-such-program is not a program that can be run"],
        ),
        (
            "SASL_SSL",
            {},
            PLAIN | {"service_name": "kafka-of-ours"},
            [r"\[brokers.sasl\] service_name: is for GSSAPI, but mechanism is PLAIN"],
        ),
        ("SSL", {"ca": "gone"}, {}, [r"\[brokers.tls\] ca: .*/gone cannot be read: No such file or directory"]),
        ("SSL", {"ca": "nonsense"}, {}, [r"\[brokers.tls\] ca: .*/nonsense holds no certificate in PEM"]),
        ("SSL", {"key": "key"}, {}, [r"\[brokers.tls\] certificate: missing, but its key is given"]),
        ("SSL", OWN | {"key": "gone"}, {}, [r"\[brokers.tls\] key: .*/gone cannot be read: .*"]),
        (
            "SSL",
            OWN | {"key": "other-key"},
            {},
            [r"\[brokers.tls\] key: .*/other-key is not the key of .*/certificate"],
        ),
        (
            "SSL",
            OWN | {"key": "nonsense"},
            {},
            [r"\[brokers.tls\] certificate: .* and .*/nonsense hold no certificate .*"],
        ),
        (
            "SSL",
            OWN,
            {},
            [r"\[brokers.tls\] certificate: .*/certificate and no key file hold no certificate and key .*"],
        ),
        (
            "SSL",
            OWN | {"key": "encrypted-key"},
            {},
            [r"\[brokers.tls\] key: is encrypted; key_password_file or key_password_env is missing"],
        ),
        (
            "SSL",
            OWN | {"key": "encrypted-key", "key_password_file": "wrong-password"},
            {},
            [r"\[brokers.tls\] key: the password given does not open it"],
        ),
    ],
)
def test_each_fault_is_reported(
    files: Path, protocol: str, tls: dict[str, Any], sasl: dict[str, Any], said: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(files, protocol, tls, sasl)
    assert len(caught.value.faults) == len(said), caught.value.faults
    for output, pattern in zip(caught.value.faults, said, strict=True):
        assert re.fullmatch("group.toml: " + pattern, output), output
        assert SECRET not in output


@pytest.mark.parametrize(
    ("sasl", "said"),
    [
        ({"keytab": "password"}, ["principal: missing, but keytab is given"]),
        ({"keytab": "gone", "principal": "me"}, ["keytab: .*/gone cannot be read: No such file or directory"]),
        (
            {"keytab": "password", "principal": "me", "ticket_cache": "FILE:tickets"},
            ["ticket_cache: cannot be given together with keytab"],
        ),
    ],
)
def test_each_fault_of_kerberos_is_reported(
    files: Path, monkeypatch: pytest.MonkeyPatch, sasl: dict[str, Any], said: list[str]
) -> None:
    """Also that it is not installed, which is so here from now on."""
    monkeypatch.setitem(sys.modules, "gssapi", None)
    missing = rf"mechanism: GSSAPI needs gssapi \(.*\): {re.escape(pip_install('kerberos'))}"
    with pytest.raises(ConfigError) as caught:
        load(files, "SASL_SSL", {}, {"mechanism": "GSSAPI", **sasl})
    for output, pattern in zip(caught.value.faults, [missing, *said], strict=True):
        assert re.fullmatch(r"group.toml: \[brokers.sasl\] " + pattern, output), output


def test_check_config_reads_keys_and_passwords(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"""
        zookeeper.connect = "z"
        group.id = "g"
        subscription.topics = {{ t = 1 }}
        sink.plugin = "jsonlines"
        [brokers]
        security_protocol = "SASL_SSL"
        tls.ca = "{files}/ca"
        sasl = {{ mechanism = "PLAIN", username = "me", password_file = "{files}/password" }}
    """
    file = files / "group.toml"
    file.write_text(text)
    assert main(["check-config", str(file)]) == 0
    file.write_text(text.replace("/ca", "/gone"))
    assert main(["check-config", str(file)]) == 78
    printed = capsys.readouterr()
    fault = f"[brokers.tls] ca: {files}/gone cannot be read: No such file or directory"
    assert printed.err == f"kzconsumer: {file}:8: {fault}\n"
    assert SECRET not in printed.out + printed.err


def test_a_password_in_the_settings_file_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_dict(
            {
                "zookeeper": {"connect": "z"},
                "group": {"id": "g"},
                "brokers": {"sasl": {"password": SECRET}, "tls": {"key_password": SECRET}},
            }
        )
    assert [fault.split(";")[0] for fault in caught.value.faults] == [
        "settings: [brokers.sasl] password: unknown key",
        "settings: [brokers.tls] key_password: unknown key",
    ]
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "name", "store"),
    [
        ({}, None, None),
        ({"ticket_cache": "FILE:/cache"}, None, {"ccache": "FILE:/cache"}),
        ({"ticket_cache": "FILE:/cache", "principal": "me"}, "me", {"ccache": "FILE:/cache"}),
        ({"keytab": "nonsense", "principal": "me"}, "me", {"client_keytab": "nonsense", "ccache": "MEMORY:"}),
    ],
)
def test_kerberos_takes_its_tickets_from_where_the_settings_say(
    files: Path,
    options: dict[str, str],
    name: str | None,
    store: dict[str, str] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gssapi = pytest.importorskip("gssapi", reason=pip_install("kerberos"))
    sasl = load(files, "SASL_PLAINTEXT", {}, {"mechanism": "GSSAPI", **options}).sasl
    assert sasl is not None
    asked: list[dict[str, Any]] = []

    def credentials(**about: Any) -> None:
        asked.append(about)
        raise SecurityError("asked")

    monkeypatch.setattr(gssapi, "Credentials", credentials)
    with pytest.raises(SecurityError):
        next(sasl.begin("kafka1"))
    (found,) = asked
    assert (str(found["name"]) if found["name"] is not None else None, found["usage"]) == (name, "initiate")
    got = found["store"]
    assert got.keys() == store.keys() if store is not None else got is None
    for key, value in (store or {}).items():
        assert got[key].startswith(value) or got[key] == str(files / value)


@pytest.mark.parametrize(("loading", "gone"), [("load_verify_locations", "ca"), ("load_cert_chain", "certificate")])
def test_a_file_that_is_replaced_while_it_is_read_is_a_fault(
    files: Path, monkeypatch: pytest.MonkeyPatch, loading: str, gone: str
) -> None:
    """Nothing else is raised: a member reads it again soon."""
    real = getattr(ssl.SSLContext, loading)

    def removed(context: ssl.SSLContext, *arguments: object) -> None:
        (files / gone).unlink()
        real(context, *arguments)

    monkeypatch.setattr(ssl.SSLContext, loading, removed)
    with pytest.raises(ConfigError) as raised:
        load(files, "SSL", {"ca": "ca", "certificate": "certificate", "key": "key"}, {})
    (fault,) = raised.value.faults
    assert fault.startswith(f"group.toml: [brokers.tls] {gone}: {files / gone}")
    assert fault.endswith("cannot be read: No such file or directory")


def tls_error(reason: str | None, code: int | None = None) -> ssl.SSLError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed") if code is not None else ssl.SSLError(1, "no")
    error.reason = reason or ""
    if isinstance(error, ssl.SSLCertVerificationError) and code is not None:
        error.verify_code, error.verify_message = code, "unable to get local issuer certificate"
    return error


@pytest.mark.parametrize("peer", [BROKER, ZOOKEEPER])
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (tls_error(None, 9), "not valid yet: are the clocks right"),
        (tls_error(None, 10), "has expired"),
        (tls_error(None, 20), "signed by no authority of {table} ca (unable to get local issuer certificate)"),
        (tls_error(None, 99), "is refused (unable to get local issuer certificate)"),
        (tls_error("WRONG_VERSION_NUMBER"), "does not answer in TLS (wrong version number): {whether}"),
        (tls_error("TLSV1_ALERT_UNKNOWN_CA"), "TLS failed (tlsv1 alert unknown ca): {question}"),
        (tls_error(None), "TLS failed ("),
    ],
)
def test_each_failure_of_tls_names_what_to_check(peer: Peer, given: bool, error: ssl.SSLError, said: str) -> None:
    text = explain(error, peer, certificate_given=given)
    expired = f"has {peer.table} certificate expired, or does this {peer.what} not trust it?"
    question = expired if given else f"does this {peer.what} want {peer.table}"
    assert said.format(table=peer.table, whether=peer.whether, question=question) in text
    assert "\n" not in text
