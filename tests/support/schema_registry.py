"""A minimal schema registry over real HTTP, with faults on demand.

`SchemaRegistry` owns its server thread and the registered schemas. Paths are those of Confluent's registry.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


class SchemaRegistry:
    """`asked` has the path of every request; `fail_next` answers that many with 503, to be tried again in an hour."""

    def __init__(self) -> None:
        self.by_id: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.deleted: set[str] = set()
        """Subjects whose versions are shown on request only; their schemas keep their ids."""
        self.asked: list[str] = []
        self.authorizations: list[str | None] = []
        self.fail_next = 0
        self.not_ours: bytes | None = None
        """The body with which all requests are answered 404, as by a proxy that does not reach the registry."""
        self.url = ""

    def register(self, subject: str, number: int, schema: object, **more: object) -> None:
        """The next version of a subject, under the id `number`; `more` is `schemaType` or `references`."""
        self.by_id[number] = {"schema": json.dumps(schema), **more}
        self.subjects.setdefault(subject, []).append(number)

    def answer(self, path: str) -> dict[str, Any] | int:
        """Or the code of an error."""
        where, _, query = path.partition("?")
        match where.strip("/").split("/"):
            case ["schemas", "ids", number]:
                return self.by_id.get(int(number), 40403)
            case ["subjects", subject, "versions", version]:
                versions = self.subjects.get(unquote(subject), [])
                if not versions or (unquote(subject) in self.deleted and query != "deleted=true"):
                    return 40401
                if version != "latest" and int(version) > len(versions):
                    return 40402
                found = versions[-1 if version == "latest" else int(version) - 1]
                return {"subject": unquote(subject), "id": found, **self.by_id[found]}
        return 404


@contextmanager
def schema_registry() -> Iterator[SchemaRegistry]:
    registry = SchemaRegistry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            registry.asked.append(self.path)
            registry.authorizations.append(self.headers["Authorization"])
            found = registry.answer(self.path)
            status = 404 if isinstance(found, int) else 200
            if registry.fail_next:
                registry.fail_next -= 1
                status = found = 503
            body = json.dumps({"error_code": found} if isinstance(found, int) else found).encode()
            if registry.not_ours is not None:
                status, body = 404, registry.not_ours
            self.send_response(status)
            if status == 503:
                self.send_header("Retry-After", "3600")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Standard error belongs to the tests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    registry.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
