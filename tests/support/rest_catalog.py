"""The REST catalog with which Iceberg's own tests try clients: SQLite behind HTTP, tables in a directory."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kzconsumer_sandbox.servers.configuration import HOST, free_port
from kzconsumer_sandbox.servers.jars import classpath, find_java
from kzconsumer_sandbox.servers.server_process import ServerProcess
from tests.support.jars import fetched, spark_jars

_ICEBERG, _REVISION = "org.apache.iceberg", "1.10.1"
_JARS = f"iceberg-rest-{_REVISION}"


class _RestCatalog(ServerProcess):
    def __init__(self, folder: Path) -> None:
        super().__init__("rest-catalog", folder)
        self._port = free_port()
        self.options = {"type": "rest", "uri": f"http://{HOST}:{self._port}/"}

    def command(self) -> list[str]:
        settings = {
            "CATALOG_REST_PORT": str(self._port),
            "CATALOG_URI": f"jdbc:sqlite:{self.folder}/catalog.db",
            "CATALOG_WAREHOUSE": (self.folder / "lake").as_uri(),
        }
        java = find_java()
        # Hadoop's classes and a log come from PySpark; ours go first.
        places = [classpath(fetched(_JARS)), classpath(spark_jars())]
        output = [f"{name}={value}" for name, value in settings.items()]
        program = ["-Xmx128m", "-cp", os.pathsep.join(places), f"{_ICEBERG}.rest.RESTCatalogServer"]
        return ["/usr/bin/env", *output, str(java), *program]

    def serves(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.options['uri']}v1/config", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@contextmanager
def rest_catalog(folder: Path) -> Iterator[dict[str, str]]:
    """The options with which pyiceberg connects."""
    server = _RestCatalog(folder)
    try:
        server.start()
        server.wait_ready()
        yield server.options
    finally:
        server.kill()
