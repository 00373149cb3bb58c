"""Downloads jars from Maven repositories: several at once, continued, and kept only with the right hash.

Only jars.py imports this, when jars are missing.
"""

from __future__ import annotations

import hashlib
import os
import queue
import ssl
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import requests
from requests.adapters import HTTPAdapter

from kzconsumer_sandbox.sandbox_errors import SandboxError

if TYPE_CHECKING:
    from kzconsumer_sandbox.servers.jars import Jar, Progress

_AT_ONCE = 8
_TIMEOUT = 30.0  # seconds without a byte
PAUSES = (1.0, 3.0, 9.0)  # seconds before each further attempt
_PIECE = 64 << 10
_UPDATE = 0.2
_PARTIAL_CONTENT, _REFUSED, _TOO_MANY, _BROKEN = 206, 400, 429, 500
_AS_STORED = {"Accept-Encoding": "identity"}


def repositories() -> dict[str, str]:
    """Name and URL of each Maven repository, in the order in which they are asked.

    Those of the user's settings for jgo (`[repositories]`) come first, then Maven's public one, `central`, unless the
    settings give that name another URL.
    """
    from jgo.config import GlobalSettings
    from jgo.maven import MavenContext

    own: dict[str, str] = dict(GlobalSettings.load().repositories)
    public: dict[str, str] = dict(MavenContext().remote_repos)
    return own | {name: url for name, url in public.items() if name not in own}


class _RefusedError(Exception):
    """A repository's answer that another attempt does not change, as a sentence."""


class _StoppedError(Exception):
    """Another download has failed, or the caller was interrupted."""


class Fetch:
    """Downloads into a directory, several at once. One use."""

    def __init__(self, folder: Path, jars: Iterable[Jar]) -> None:
        self._folder = folder
        self._left = sorted(jars, key=lambda jar: jar.size)  # the largest begins first
        self._total = sum(jar.size for jar in self._left)
        self._there = dict.fromkeys(self._left, 0)
        """Bytes of each; every entry is written by one thread."""
        self._ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        """An item for each jar: None once it is there."""
        self._stop = threading.Event()
        self._changes = threading.Lock()
        self._repositories = repositories()
        # Connections are kept, and proxies come from the environment (https_proxy, no_proxy).
        self._session = requests.Session()
        self._session.mount("https://", _Trusting(pool_maxsize=_AT_ONCE))

    def run(self, progress: Progress | None) -> None:
        """Threads that wait for a server do not delay Ctrl-C: they are daemons, and write nothing after a stop."""
        left = len(self._left)
        for _ in range(min(_AT_ONCE, left)):
            threading.Thread(target=self._work, daemon=True).start()
        try:
            while left:
                with suppress(queue.Empty):
                    if error := self._ended.get(timeout=_UPDATE):
                        raise error
                    left -= 1
                if progress:
                    progress(sum(self._there.values()) >> 10, self._total >> 10)
        finally:
            with self._changes:
                self._stop.set()

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Around each change of a file: after a stop another fetch may have the directory, also one of this process."""
        with self._changes:
            if self._stop.is_set():
                raise _StoppedError
            yield

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                jar = self._left.pop()
            except IndexError:
                return
            try:
                self._fetch(jar)
            except Exception as error:
                self._ended.put(error)
            else:
                self._ended.put(None)

    def _fetch(self, jar: Jar) -> None:
        """Raises SandboxError, with each repository's reason."""
        faults = []
        for name, url in self._repositories.items():
            source = f"{url.rstrip('/')}/{jar.path}"
            try:
                self._fetch_patiently(jar, source)
                return
            except _RefusedError as error:
                faults.append(f"{name}, {source}: {error}")
        raise SandboxError(
            "cannot fetch a jar of the sandbox; what was fetched before is kept, so try again to continue."
            " A proxy is named by https_proxy, a certificate authority by SSL_CERT_FILE, a repository of your own by"
            " [repositories] in ~/.config/jgo.conf\n" + "\n".join(faults)
        )

    def _fetch_patiently(self, jar: Jar, source: str) -> None:
        reason = ""
        for pause in (0.0, *PAUSES):
            if self._stop.wait(pause):
                raise _StoppedError
            try:
                self._download(jar, source)
                return
            except requests.RequestException as error:
                reason = str(error)
                if "CERTIFICATE_VERIFY_FAILED" in reason:  # of OpenSSL, which other errors of TLS lack
                    raise _RefusedError(reason) from None
        raise _RefusedError(reason)

    def _download(self, jar: Jar, source: str) -> None:
        """Continues where an earlier attempt, or an earlier process, was interrupted."""
        part = self._folder / f"{jar.file}.part"
        with self._change():
            opened = part.open("ab")
        with opened as file:
            have = file.tell()
            if have >= jar.size:
                with self._change():
                    have = file.truncate(0)
            continued = have > 0
            resumed = {"Range": f"bytes={have}-"} if have else {}
            with self._session.get(source, headers=_AS_STORED | resumed, stream=True, timeout=_TIMEOUT) as answer:
                if answer.status_code >= _REFUSED:
                    reason = f"HTTP status {answer.status_code} ({answer.reason})"
                    again = answer.status_code >= _BROKEN or answer.status_code == _TOO_MANY
                    raise requests.HTTPError(reason) if again else _RefusedError(reason)
                if have and answer.status_code != _PARTIAL_CONTENT:  # the server always sends it whole
                    with self._change():
                        have = file.truncate(0)
                self._there[jar] = have
                for piece in answer.iter_content(_PIECE):
                    with self._change():
                        file.write(piece)
                        file.flush()
                    self._there[jar] += len(piece)
                    if self._there[jar] > jar.size:
                        break
            os.fsync(file.fileno())
        if self._there[jar] < jar.size:
            raise requests.ConnectionError(f"the connection broke after {self._there[jar]} of {jar.size} bytes")
        with part.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != jar.sha256:
            with self._change():
                part.unlink()
            if continued:  # of another repository's file, perhaps
                return self._download(jar, source)
            raise _RefusedError(f"not the file that is expected: its SHA-256 is {found}, not {jar.sha256}")
        with self._change():
            part.rename(self._folder / jar.file)
        return None


class _Trusting(HTTPAdapter):
    """Also trusts what OpenSSL trusts here, which SSL_CERT_FILE and SSL_CERT_DIR change.

    OpenSSL finds a file in a directory by the hash in its name. Directories without these names count, too.
    """

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options, ssl_context=self._context())

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        return super().proxy_manager_for(proxy, **options, ssl_context=self._context())

    @staticmethod
    def _context() -> ssl.SSLContext:
        context = ssl.create_default_context()
        directory = os.environ.get("SSL_CERT_DIR")
        if directory and os.path.isdir(directory):
            for file in Path(directory).iterdir():
                with suppress(OSError):  # SSLError, too: not a certificate
                    context.load_verify_locations(file)
        return context
