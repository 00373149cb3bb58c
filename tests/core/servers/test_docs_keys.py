"""Java's key stores converted to files of ours by the commands in docs/security.md, and accepted by a broker."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import anyio
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509 import load_pem_x509_certificates

from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.consuming import member, take
from tests.support.extent import only_nightly
from tests.support.producing import produce
from tests.support.programs import KEYTOOL, OPENSSL, need
from tests.support.secured import STORE_PASSWORD, Secured

PAGE = Path(__file__).parents[3] / "docs" / "security.md"


def keytool(*words: str, folder: Path) -> None:
    done = subprocess.run([need(KEYTOOL), *words], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def java_stores(secured: Secured, folder: Path) -> None:
    """`truststore.jks`, `keystore.jks` and `store.pw`, as a Java client has them."""
    (folder / "store.pw").write_text(STORE_PASSWORD)
    common = ("-noprompt", "-storepass:file", "store.pw")
    keytool(
        "-importcert", "-alias", "caroot", "-file", secured.ca_file,
        "-keystore", "truststore.jks", "-storetype", "JKS", *common, folder=folder,
    )  # fmt: skip
    pem = Path(secured.client_certificate).read_bytes()
    key = serialization.load_pem_private_key(pem, None)
    first, *others = load_pem_x509_certificates(pem)
    encryption = serialization.BestAvailableEncryption(STORE_PASSWORD.encode())
    store = pkcs12.serialize_key_and_certificates(b"client", key, first, others, encryption)  # type: ignore[arg-type]
    (folder / "client.p12").write_bytes(store)
    keytool(
        "-importkeystore", "-srckeystore", "client.p12", "-srcstorepass:file", "store.pw",
        "-destkeystore", "keystore.jks", "-deststoretype", "JKS", "-deststorepass:file", "store.pw", folder=folder,
    )  # fmt: skip


@only_nightly  # files of ours that a broker accepts: test_broker_security.py
@pytest.mark.needs(KEYTOOL, OPENSSL)
async def test_a_broker_accepts_the_converted_keys(secured: Secured, unique: str, tmp_path: Path) -> None:
    cluster = secured.cluster_of("3.9.1")
    await create_topic(cluster.connect, unique, 1)
    await anyio.to_thread.run_sync(produce, cluster.bootstrap, "3.9.1", unique, [(0, None, b"seen")])
    await anyio.to_thread.run_sync(java_stores, secured, tmp_path)
    (shown,) = re.findall(r"^```\n(keytool .*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    path = os.pathsep.join((str(need(KEYTOOL).parent), str(need(OPENSSL).parent), os.environ["PATH"]))
    done = await anyio.run_process(["bash", "-ec", shown], cwd=tmp_path, env=os.environ | {"PATH": path}, check=False)
    assert done.returncode == 0, done.stderr.decode()
    tls = {
        "ca": str(tmp_path / "ca.pem"),
        "certificate": str(tmp_path / "member.pem"),
        "key": str(tmp_path / "member.key"),
    }
    table = secured.table(cluster, "MUTUAL") | {"tls": tls}
    async with member(cluster, unique, {unique: 1}, brokers=table) as (_, streams):
        assert [each.value for each in await take(streams[unique][0], 1)] == [b"seen"]
