"""The error for a certificate of another host; both ends of the handshake are real, in memory."""

from __future__ import annotations

import ssl

import pytest
import trustme

from kzconsumer.security.tls import BROKER, ZOOKEEPER, Peer, explain, tls_context
from kzconsumer.settings.sections import TlsSettings

AUTHORITY = trustme.CA()


def refused(certificate: trustme.LeafCert, host: str, ca_file: str, peer: Peer = BROKER) -> str | None:
    """How the client's error is reported; None if it accepts the certificate."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(server)
    faults: list[str] = []
    client = tls_context(TlsSettings(ca=ca_file), "test", faults)
    assert not faults
    to_server, from_server, to_client, from_client = (ssl.MemoryBIO() for _ in range(4))
    ends = [
        client.wrap_bio(to_client, from_client, server_hostname=host),
        server.wrap_bio(to_server, from_server, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                assert end is ends[0]
                return explain(error, peer, certificate_given=False)
            to_server.write(from_client.read())
            to_client.write(from_server.read())
    return None


@pytest.fixture(scope="module")
def ca_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("authority") / "ca.pem"
    AUTHORITY.cert_pem.write_to_path(file)
    return str(file)


def test_the_names_in_a_certificate(ca_file: str) -> None:
    issued = AUTHORITY.issue_cert("kafka.example", "*.eu.kafka.example", "10.0.0.1")
    for accepted in ("kafka.example", "b1.eu.kafka.example", "10.0.0.1"):
        assert refused(issued, accepted, ca_file) is None
    names = "kafka.example, *.eu.kafka.example, 10.0.0.1"
    ways = (
        (BROKER, "change advertised.listeners of the broker, or set [brokers.tls] verify_hostname = false"),
        (ZOOKEEPER, "change [zookeeper] connect, or set [zookeeper.tls] verify_hostname = false"),
    )
    for peer, way in ways:
        for other in ("kafka", "10.0.0.2"):
            said = refused(issued, other, ca_file, peer)
            assert said == f"its certificate is not for {other}, only for {names}: {way}"


def test_many_names(ca_file: str) -> None:
    many = refused(AUTHORITY.issue_cert(*(f"b{n}.example" for n in range(7))), "b7.example", ca_file)
    assert many is not None
    assert "only for b0.example, b1.example, b2.example, b3.example, b4.example and 2 more: " in many


def test_a_certificate_without_alternative_names(ca_file: str) -> None:
    issued = AUTHORITY.issue_cert(common_name="kafka.example")
    assert refused(issued, "kafka.example", ca_file) is None
    said = refused(issued, "kafka", ca_file)
    assert said is not None
    assert said.startswith("its certificate is not for kafka, only for kafka.example: ")


def test_another_authority_is_the_first_reason(ca_file: str) -> None:
    said = refused(trustme.CA().issue_cert("other.example"), "kafka.example", ca_file)
    assert said is not None
    assert said.startswith("its certificate is signed by no authority of [brokers.tls] ca ")
