"""moto's server with whole requests: `python -m tests.support.s3_server PORT CONDITIONS`.

By itself moto looks whether an object exists and puts it later, so two conditional puts at once may both succeed: here
one request is answered after the other. CONDITIONS says which puts `If-None-Match` applies to: "all", "none", or
"probes" (those by which a store is tested for it). With "lost" it applies to all, and the first conditional put of each
object is answered with an error after it has succeeded. From a request for /read-only on, until moto is reset, nothing
may be written.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import Any

import moto.server
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

from kzconsumer_sandbox.servers.configuration import HOST

HANDLER: Any = moto.server.MotoRequestHandler  # type: ignore[attr-defined]
# Headers and body are sent one after the other: otherwise the second waits 40 ms for the first to be acknowledged.
HANDLER.disable_nagle_algorithm = True


class WholeRequests:
    def __init__(self, conditions: str) -> None:
        self._app = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self._conditions = conditions
        self._lost: set[str] = set()
        self._read_only = False

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        is_probe = "/probe-" in environ["PATH_INFO"]
        if self._conditions == "none" or (self._conditions == "probes" and not is_probe):
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if environ["PATH_INFO"] in ("/read-only", "/moto-api/reset"):
            self._read_only = environ["PATH_INFO"] == "/read-only"
        if self._read_only and environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            start_response("403 Forbidden", [("Content-Type", "application/xml")])
            return [b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"]
        with self._lock:
            if (
                self._conditions == "lost"
                and "HTTP_IF_NONE_MATCH" in environ
                and environ["PATH_INFO"] not in self._lost
            ):
                self._lost.add(environ["PATH_INFO"])
                self._app(environ, lambda *ignored: None)
                start_response("500 Internal Server Error", [("Content-Length", "0")])
                return []
            answer: Iterable[bytes] = self._app(environ, start_response)
            return answer


if __name__ == "__main__":
    run_simple(HOST, int(sys.argv[1]), WholeRequests(sys.argv[2]), threaded=True, request_handler=HANDLER)
