"""Who a member is to ZooKeeper: which identities its settings give, and that restricted nodes need one."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from kzconsumer.errors import ConfigError
from kzconsumer.settings.settings import Settings
from kzconsumer.zookeeper.credentials import load_access, needs_access


@pytest.mark.parametrize(
    ("acl", "digest", "sasl"), list(product(["open", "creator-writes", "creator-only"], [False, True], [False, True]))
)
def test_restricted_nodes_need_an_identity(acl: str, digest: bool, sasl: bool, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret")
    user = {"username": "u", "password_file": str(tmp_path / "password")}
    table: dict[str, Any] = {"connect": "zk1:2181", "acl": acl}
    table |= {"digest": user} if digest else {}
    table |= {"sasl": user} if sasl else {}
    settings = Settings.from_dict({"zookeeper": table, "group": {"id": "g"}}).zookeeper
    if acl == "open" or digest or sasl:
        access = load_access(settings)
        assert access.digest == (b"u:secret" if digest else None)
        assert (access.sasl is not None) is sasl
    else:
        with pytest.raises(ConfigError) as caught:
            load_access(settings, "group.toml")
        (fault,) = caught.value.faults
        assert fault.startswith(f"group.toml: [zookeeper] acl: {acl} needs an identity")


PASSWORD = {"password_env": "ZOOKEEPER_PASSWORD"}


@pytest.mark.parametrize(
    ("table", "faults"),
    [
        ({"digest": PASSWORD}, ["[zookeeper.digest] username: missing"]),
        ({"digest": {"username": "u"}}, ["[zookeeper.digest] password_file: missing (or password_env)"]),
        (
            {"digest": {"username": "a:b", **PASSWORD}},
            ["[zookeeper.digest] username: holds a colon, which ends names in this scheme"],
        ),
        ({"sasl": {"username": "a:b", **PASSWORD}}, []),
        ({"sasl": {"username": "u"}}, ["[zookeeper.sasl] password_file: missing (or password_env)"]),
        ({"tls": {"ca": "/no/ca"}}, ["[zookeeper.tls]: secure is false, so no TLS is used"]),
        (
            {"tls": {"ca": "/no/ca"}, "secure": True},
            ["[zookeeper.tls] ca: /no/ca cannot be read: No such file or directory"],
        ),
        (
            {"tls": {"ca": "/no/ca"}, "digest": PASSWORD, "acl": "creator-only"},
            ["[zookeeper.tls]: secure is false, so no TLS is used", "[zookeeper.digest] username: missing"],
        ),
    ],
)
def test_each_fault_of_the_settings_is_a_line(
    table: dict[str, Any], faults: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZOOKEEPER_PASSWORD", "secret")
    settings = Settings.from_dict({"zookeeper": {"connect": "zk1:2181", **table}, "group": {"id": "g"}}).zookeeper
    assert needs_access(settings)
    for source, begin in (("group.toml", "group.toml: "), ("", "")):
        if not faults:
            assert str(load_access(settings, source).sasl) == "DIGEST-MD5 as a:b"
            continue
        with pytest.raises(ConfigError) as raised:
            load_access(settings, source)
        assert list(raised.value.faults) == [begin + fault for fault in faults]


def test_a_certificate_is_an_identity_and_nothing_is_read_without_settings() -> None:
    plain = Settings.from_dict({"zookeeper": {"connect": "zk1:2181"}, "group": {"id": "g"}}).zookeeper
    assert not needs_access(plain)
    assert load_access(plain).certificate_given is False
    secure = Settings.from_dict({"zookeeper": {"connect": "zk1:2181", "secure": True}, "group": {"id": "g"}}).zookeeper
    access = load_access(secure)
    assert access.tls is not None
    assert access.certificate_given is False
