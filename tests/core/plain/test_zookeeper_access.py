"""Who a member is to ZooKeeper: which identities its settings give, and that restricted nodes need one."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from kzconsumer.errors import ConfigError
from kzconsumer.settings.settings import Settings
from kzconsumer.zookeeper.credentials import load_access


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


def test_a_digest_without_a_name_is_a_fault() -> None:
    settings = Settings.from_dict(
        {"zookeeper": {"connect": "zk1:2181", "digest": {"password_env": "P"}}, "group": {"id": "g"}}
    )
    with pytest.raises(ConfigError, match=r"group.toml: \[zookeeper.digest\] username: missing"):
        load_access(settings.zookeeper, "group.toml")
