"""An object store with the S3 protocol on loopback, and the jars with which Spark uses it.

Jars that Spark has are left out, and of Amazon's client all but what reads and writes objects: the bundle on which
Hadoop's module depends has half a gigabyte.
"""

from __future__ import annotations

import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pyarrow import fs

from kzconsumer_sandbox.servers.jars import find_ivy, find_java, resolve_jars
from kzconsumer_sandbox.servers.ports import HOST, free_port
from kzconsumer_sandbox.servers.server_process import ServerProcess
from kzconsumer_sandbox.servers.versions import Artifact, JarSet

Conditions: TypeAlias = Literal["all", "probes", "none", "lost"]
_CLIENT = "2.35.4"  # that Hadoop 3.5.0 is built with
_AMAZON = "software.amazon.awssdk"


class ObjectStore(ServerProcess):
    """With one bucket, `bucket`. `conf` is what Spark needs to find it, `options` and `environment` what sinks do."""

    bucket = "bucket"

    def __init__(self, folder: Path, conditions: Conditions = "all") -> None:
        """`conditions`: see `s3_server`."""
        super().__init__("object-store", folder)
        self._conditions = conditions
        self._port = free_port()
        self.secret = secrets.token_hex(8)
        self.endpoint = f"http://{HOST}:{self._port}"
        self.conf = {
            "spark.hadoop.fs.s3a.endpoint": self.endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.access.key": "tester",
            "spark.hadoop.fs.s3a.secret.key": self.secret,
        }
        self.options = {"aws_endpoint": self.endpoint, "aws_region": "us-east-1"}
        self.environment = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": self.secret}

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.support.s3_server", str(self._port), self._conditions]

    def serves(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self._port)) == 0

    @classmethod
    @contextmanager
    def running(cls, folder: Path, conditions: Conditions = "all") -> Iterator[ObjectStore]:
        server = cls(folder, conditions)
        server.start()
        try:
            server.wait_ready()
            server.make_bucket()
            yield server
        finally:
            server.kill()

    @property
    def filesystem(self) -> Any:
        """The bucket, for readers."""
        return fs.SubTreeFileSystem(self.bucket, self._client())

    def make_bucket(self) -> None:
        self._client(allow_bucket_creation=True).create_dir(self.bucket)

    def objects(self) -> list[str]:
        """The names of all objects in the bucket."""
        found = self._client().get_file_info(fs.FileSelector(self.bucket, recursive=True))
        return sorted(each.path.removeprefix(f"{self.bucket}/") for each in found if each.is_file)

    def _client(self, *, allow_bucket_creation: bool = False) -> fs.S3FileSystem:
        return fs.S3FileSystem(
            access_key="tester",
            secret_key=self.secret,
            endpoint_override=self.endpoint,
            region="us-east-1",
            allow_bucket_creation=allow_bucket_creation,
            request_timeout=30,  # 3 seconds unless it is said: too short for a loaded machine
        )


def client_jars() -> str:
    """In the form of `spark.jars`."""
    jars = find_ivy().parent  # all of Spark's
    (hadoop,) = (each.stem.removeprefix("hadoop-client-api-") for each in jars.glob("hadoop-client-api-*.jar"))
    java = find_java()
    module = JarSet("hadoop-aws", (Artifact("org.apache.hadoop", "hadoop-aws", hadoop),), 1, transitive=False)
    client = JarSet(
        "s3-client",
        (
            *(Artifact(_AMAZON, name, _CLIENT) for name in ("s3", "s3-transfer-manager", "sts")),
            Artifact("software.amazon.s3.analyticsaccelerator", "analyticsaccelerator-s3", "1.3.1"),
        ),
        50,
    )
    there = {_module(each) for each in jars.glob("*.jar")}
    found = [each for jar_set in (module, client) for each in sorted(resolve_jars(jar_set, java).glob("*.jar"))]
    return ",".join(str(each) for each in found if _module(each) not in there)


def _module(jar: Path) -> str:
    return jar.stem.rpartition("-")[0]
