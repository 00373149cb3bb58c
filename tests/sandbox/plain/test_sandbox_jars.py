"""The sandbox's jars: fetched once per user, several at once, continued after an interruption, and never unverified."""

from __future__ import annotations

import hashlib
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme

from kzconsumer_sandbox.sandbox_errors import SandboxError
from kzconsumer_sandbox.servers import jar_fetch
from kzconsumer_sandbox.servers.jar_fetch import repositories
from kzconsumer_sandbox.servers.jars import VERSIONS, Jar, JarSet, read_jar_sets, resolve_jars
from tests.support.jars import SETS

CONTENTS = {"one": b"1" * 300_000, "two": b"2" * 7, "three": bytes(range(256)) * 4}


def jar(name: str, content: bytes | None = None) -> Jar:
    content = CONTENTS[name] if content is None else content
    return Jar(f"org.example:{name}:1.0", len(content), hashlib.sha256(content).hexdigest())


SMALL = JarSet("small", tuple(map(jar, CONTENTS)))


@dataclass
class Repository:
    """Serves CONTENTS. `fault` is asked first: it answers by itself, and returns True, or lets the usual answer be."""

    port: int
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """Jar and range of each request."""
    fault: Callable[[BaseHTTPRequestHandler, bytes], bool] = lambda _handler, _content: False


class Handler(BaseHTTPRequestHandler):
    repository: Repository
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        name = self.path.rsplit("/", 3)[-3]
        assert self.path == f"/maven/org/example/{name}/1.0/{name}-1.0.jar"
        wanted = self.headers["Range"]
        self.repository.asked.append((name, wanted))
        content = CONTENTS.get(name)
        if content is None:
            self.send_error(404)
        elif not self.repository.fault(self, content):
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
            self.answer(206 if wanted else 200, content[start:])

    def answer(self, status: int, content: bytes, promised: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content) if promised is None else promised))
        self.end_headers()
        self.wfile.write(content)
        self.close_connection = promised is not None

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    """In place of the public one, for a user without any jars; attempts follow each other at once."""
    found = Repository(0)
    with serving(type("Serving", (Handler,), {"repository": found})) as found.port:
        settings = tmp_path / "jgo.conf"
        settings.write_text(f"[repositories]\ncentral = http://127.0.0.1:{found.port}/maven/\n")
        monkeypatch.setenv("JGO_CONFIG_FILE", str(settings))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr(jar_fetch, "PAUSES", (0.0, 0.0, 0.0))
        yield found


def contents(folder: Path) -> dict[str, bytes]:
    return {each.name.removesuffix("-1.0.jar"): each.read_bytes() for each in folder.iterdir()}


RESOLVE = "from tests.sandbox.plain.test_sandbox_jars import SMALL, resolve_jars; print(resolve_jars(SMALL))"


def test_two_processes_fetch_once(repository: Repository, tmp_path: Path) -> None:
    resolving = [subprocess.Popen([sys.executable, "-c", RESOLVE], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    (folder,) = {process.communicate()[0].strip() for process in resolving}
    assert Path(folder).parent == tmp_path / "kzconsumer" / "jars"
    assert contents(Path(folder)) == CONTENTS
    assert sorted(repository.asked) == [(name, None) for name in sorted(CONTENTS)]


@pytest.mark.usefixtures("repository")
def test_kilobytes_are_reported() -> None:
    output: list[tuple[int, int]] = []
    resolve_jars(SMALL, lambda *step: output.append(step))
    total = sum(map(len, CONTENTS.values())) >> 10
    assert output[-1] == (total, total)
    assert {step[1] for step in output} == {total}


def test_what_is_there_is_not_fetched_again_and_what_was_taken_away_is(repository: Repository) -> None:
    folder = resolve_jars(SMALL)
    repository.asked.clear()
    assert resolve_jars(SMALL) == folder
    assert repository.asked == []
    (folder / "two-1.0.jar").unlink()
    (folder / "three-1.0.jar").write_bytes(b"cut off")
    assert contents(resolve_jars(SMALL)) == CONTENTS
    assert sorted(repository.asked) == [("three", None), ("two", None)]


@pytest.mark.usefixtures("repository")
def test_another_list_has_another_directory() -> None:
    """So two versions of the package do not fetch in turn, under the servers of the other."""
    assert resolve_jars(SMALL) != resolve_jars(JarSet("small", SMALL.jars[:2]))


def test_several_are_fetched_at_once(repository: Repository) -> None:
    together = threading.Barrier(3)

    def wait(handler: BaseHTTPRequestHandler, content: bytes) -> bool:
        together.wait(30)
        return False

    repository.fault = wait
    assert contents(resolve_jars(SMALL)) == CONTENTS


def test_a_broken_download_is_continued(repository: Repository) -> None:
    def cut(handler: BaseHTTPRequestHandler, content: bytes) -> bool:
        assert isinstance(handler, Handler)
        if handler.headers["Range"] or content != CONTENTS["one"]:
            return False
        handler.answer(200, content[:100_000], promised=len(content))
        return True

    repository.fault = cut
    assert contents(resolve_jars(SMALL)) == CONTENTS
    assert [wanted for name, wanted in repository.asked if name == "one"] == [None, "bytes=65536-"]


@pytest.mark.parametrize(
    ("left", "asked"),
    [
        (CONTENTS["one"][:5000], ["bytes=5000-"]),
        (b"of another file", ["bytes=15-", None]),
        (b"longer" * 100_000, [None]),
    ],
)
def test_what_a_killed_process_left_is_continued_if_it_fits(
    repository: Repository, left: bytes, asked: list[str | None], tmp_path: Path
) -> None:
    folder = tmp_path / "kzconsumer" / "jars" / SMALL.folder
    folder.mkdir(parents=True)
    (folder / "one-1.0.jar.part").write_bytes(left)
    assert contents(resolve_jars(SMALL)) == CONTENTS
    assert [wanted for name, wanted in repository.asked if name == "one"] == asked


def test_a_server_that_sends_everything_again_is_understood(repository: Repository, tmp_path: Path) -> None:
    folder = tmp_path / "kzconsumer" / "jars" / SMALL.folder
    folder.mkdir(parents=True)
    (folder / "one-1.0.jar.part").write_bytes(CONTENTS["one"][:5000])

    def whole(handler: BaseHTTPRequestHandler, content: bytes) -> bool:
        assert isinstance(handler, Handler)
        handler.answer(200, content)
        return True

    repository.fault = whole
    assert contents(resolve_jars(SMALL)) == CONTENTS
    assert [wanted for name, wanted in repository.asked if name == "one"] == ["bytes=5000-"]


def test_a_busy_repository_is_asked_again(repository: Repository) -> None:
    refused: list[str] = []

    def busy(handler: BaseHTTPRequestHandler, content: bytes) -> bool:
        assert isinstance(handler, Handler)
        first = handler.path not in refused
        refused.append(handler.path)
        if first:
            handler.answer(503, b"later")
        return first

    repository.fault = busy
    assert contents(resolve_jars(SMALL)) == CONTENTS
    assert len(repository.asked) == 2 * len(CONTENTS)


@pytest.mark.parametrize("served", [b"3" * 1024, b"3" * 9999])
def test_a_jar_with_other_content_is_refused(repository: Repository, served: bytes, tmp_path: Path) -> None:
    """Of the right length, or of another one."""

    def forged(handler: BaseHTTPRequestHandler, content: bytes) -> bool:
        assert isinstance(handler, Handler)
        if content == CONTENTS["three"]:
            handler.answer(200, served)
        return content == CONTENTS["three"]

    repository.fault = forged
    with pytest.raises(SandboxError, match=r"three-1\.0\.jar: not the file that is expected: its SHA-256 is "):
        resolve_jars(SMALL)
    assert not list((tmp_path / "kzconsumer" / "jars").glob("*/three*"))


def test_a_missing_jar_is_named_and_the_others_are_kept(repository: Repository) -> None:
    more = JarSet("more", (*SMALL.jars, jar("four", b"4")))
    with pytest.raises(SandboxError, match=r"so try again(.|\n)*central, http:.*/four-1\.0\.jar: HTTP status 404"):
        resolve_jars(more)
    CONTENTS["four"] = b"4"
    try:
        assert contents(resolve_jars(more)) == CONTENTS
    finally:
        del CONTENTS["four"]


def test_a_download_that_was_stopped_changes_no_file_of_the_next(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another jar is missing while one is synced. The next fetch has its file when the sync ends."""
    synced: list[threading.Thread] = []
    begun, again = threading.Event(), threading.Event()

    def sync(descriptor: int) -> None:
        if not os.readlink(f"/proc/self/fd/{descriptor}").endswith("three-1.0.jar.part"):
            return
        synced.append(threading.current_thread())
        if len(synced) == 1:
            begun.set()
            assert again.wait(10)
        else:
            again.set()
            synced[0].join(10)

    def refuse(self: jar_fetch.Fetch, jar: Jar, source: str) -> None:
        if jar.file.startswith("four"):
            assert begun.wait(10)
        fetch(self, jar, source)

    fetch = jar_fetch.Fetch._download
    monkeypatch.setattr(jar_fetch.Fetch, "_download", refuse)
    monkeypatch.setattr(os, "fsync", sync)
    more = JarSet("more", (*SMALL.jars, jar("four", b"4")))
    with pytest.raises(SandboxError, match="HTTP status 404"):
        resolve_jars(more)
    monkeypatch.setitem(CONTENTS, "four", b"4")
    assert contents(resolve_jars(more)) == CONTENTS
    assert len(synced) == 2
    assert not synced[0].is_alive()


def test_an_unreachable_repository_is_named(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = "http://127.0.0.1:9/maven"
    monkeypatch.setattr(jar_fetch, "repositories", lambda: {"ours": nobody})
    with pytest.raises(SandboxError, match=r"https_proxy(.|\n)*ours, http://127.0.0.1:9/.*Connection refused"):
        resolve_jars(SMALL)
    assert repository.asked == []


def test_the_users_repositories_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "jgo.conf"
    monkeypatch.setenv("JGO_CONFIG_FILE", str(settings))
    (public,) = repositories().items()
    assert public[0] == "central"
    assert public[1].startswith("https://")
    settings.write_text("[repositories]\nours = https://ours.test/maven\n")
    assert list(repositories().items()) == [("ours", "https://ours.test/maven"), public]


def test_ctrl_c_does_not_wait_for_a_silent_server(repository: Repository) -> None:
    silent = threading.Event()

    def wait(handler: BaseHTTPRequestHandler, content: bytes) -> bool:
        silent.set()
        handler.rfile.read()  # until the client has gone
        return True

    repository.fault = wait
    process = subprocess.Popen([sys.executable, "-c", RESOLVE], stderr=subprocess.PIPE, text=True)
    assert silent.wait(60)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert errors.endswith("KeyboardInterrupt\n")
    assert time.monotonic() - began < 20


class Proxy(Handler):
    """Answers in the place of every server that it is asked to connect to, with a certificate of its own."""

    context: ssl.SSLContext

    def do_CONNECT(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.flush()
        self.close_connection = True
        with suppress(OSError), self.context.wrap_socket(self.connection, server_side=True) as connection:
            type("Tunnel", (Handler,), {"repository": self.repository})(connection, self.client_address, self.server)


@pytest.fixture
def authority(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with the authority of the proxy that leads to the repository."""
    authority = trustme.CA()
    folder = tmp_path / "certs"
    folder.mkdir()
    authority.cert_pem.write_to_path(folder / "authority.crt")
    (folder / "README").write_text("not a certificate")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("repository.test").configure_cert(context)
    (tmp_path / "jgo.conf").write_text("[repositories]\ncentral = https://repository.test/maven\n")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.setenv(name, "/nonexistent")
    with serving(type("Serving", (Proxy,), {"repository": repository, "context": context})) as port:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        yield folder


@pytest.mark.parametrize(("variable", "name"), [("SSL_CERT_FILE", "authority.crt"), ("SSL_CERT_DIR", ".")])
def test_the_systems_proxy_and_authorities_are_used(
    authority: Path, variable: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, str(authority / name))
    assert contents(resolve_jars(SMALL)) == CONTENTS


@pytest.mark.usefixtures("authority")
def test_no_other_authority_is_trusted(repository: Repository) -> None:
    with pytest.raises(SandboxError, match=r"SSL_CERT_FILE(.|\n)*certificate verify failed"):
        resolve_jars(SMALL)
    assert repository.asked == []


@pytest.mark.parametrize(
    "jar_set", [*(each.jars for each in VERSIONS.values()), *SETS.values()], ids=lambda it: it.name
)
def test_the_lists_are_complete(jar_set: JarSet) -> None:
    files = [each.file for each in jar_set.jars]
    assert len(set(files)) == len(files) > 0
    assert all(each.size > 0 and len(bytes.fromhex(each.sha256)) == 32 for each in jar_set.jars)


def test_a_jar_has_its_place_in_a_repository(tmp_path: Path) -> None:
    (tmp_path / "list.toml").write_text(f'["x"]\nroots = []\njars = ["org.a.b:c:1.0:tests 12 {"0" * 64}"]\n')
    (found,) = read_jar_sets(tmp_path / "list.toml")["x"].jars
    assert found == Jar("org.a.b:c:1.0:tests", 12, "0" * 64)
    assert found.path == "org/a/b/c/1.0/c-1.0-tests.jar"


def test_options_are_parsed_without_the_packages_of_a_download() -> None:
    """The manual is made where these are not installed, when the wheel of the tools is built."""
    code = "import sys, kzconsumer_sandbox.commands.sandbox_command as _; "
    code += "sys.exit(bool({'requests', 'jgo'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
