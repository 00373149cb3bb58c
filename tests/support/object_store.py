"""Object stores on loopback (S3, Google's, Azure's), and the jars with which Spark uses S3.

Jars that Spark has are left out, and of Amazon's client all but what reads and writes objects: the bundle on which
Hadoop's module depends has half a gigabyte.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import socket
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from pyarrow import fs

from kzconsumer_sandbox.servers.configuration import HOST, free_port
from kzconsumer_sandbox.servers.server_process import ServerProcess
from tests.support.programs import AZURITE, FAKE_GCS_SERVER, need

Conditions: TypeAlias = Literal["all", "probes", "none", "lost", "late"]
Scheme: TypeAlias = Literal["s3", "gs", "abfss"]


class _Server(ServerProcess):
    def __init__(self, name: str, folder: Path, command: Callable[[int], list[str]]) -> None:
        super().__init__(name, folder)
        self.port = free_port()
        self._command = command

    def command(self) -> list[str]:
        return self._command(self.port)

    def serves(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self.port)) == 0


class ObjectStore:
    """With one bucket, `bucket`. `options` and `environment` are what sinks need to find it.

    `conf` is what Spark needs, `properties` what `pyiceberg` needs, with secrets that it takes from its environment.
    """

    scheme: Scheme
    bucket = "bucket"
    endpoint: str
    secret: str
    conf: dict[str, str]
    options: dict[str, str]
    environment: dict[str, str]
    properties: dict[str, str]

    def __init__(self, *servers: _Server) -> None:
        self._servers = servers

    @classmethod
    @contextmanager
    def running(cls, folder: Path, conditions: Conditions = "all", scheme: Scheme = "s3") -> Iterator[ObjectStore]:
        """`conditions`: see `s3_server` and `store_front`."""
        store = _STORES[scheme](folder, conditions)
        try:
            store.start()
            yield store
        finally:
            store.kill()

    def start(self) -> None:
        for server in self._servers:
            server.start()
            server.wait_ready()
        self.make_bucket()

    def kill(self) -> None:
        for server in reversed(self._servers):
            server.kill()

    @property
    def filesystem(self) -> Any:
        """The bucket, for readers."""
        return fs.SubTreeFileSystem(self.bucket, self._client())

    def uri(self, path: str = "", bucket: str = bucket) -> str:
        return f"{self.scheme}://{bucket}/{path}".rstrip("/")

    def make_bucket(self) -> None:
        self._client().create_dir(self.bucket)

    def copied(self) -> Callable[[], None]:
        """What restores the bucket."""
        files = self.filesystem
        copy = {name: files.open_input_stream(name).readall() for name in self.objects()}

        def restore() -> None:
            for name in {*self.objects()} - {*copy}:
                self.remove(name)
            for name, content in copy.items():
                self.put(name, content)

        return restore

    def objects(self) -> list[str]:
        """The names of all objects in the bucket."""
        found = self._client().get_file_info(fs.FileSelector(self.bucket, recursive=True))
        return sorted(each.path.removeprefix(f"{self.bucket}/") for each in found if each.is_file)

    def put(self, name: str, content: bytes) -> None:
        with self.filesystem.open_output_stream(name) as out:
            out.write(content)

    def remove(self, name: str) -> None:
        self.filesystem.delete_file(name)

    @abstractmethod
    def _client(self) -> Any:
        """A file system of all buckets, which may make them."""


class AmazonStore(ObjectStore):
    """S3: moto's server. `conf` is what Spark needs to find it."""

    scheme = "s3"

    def __init__(self, folder: Path, conditions: Conditions) -> None:
        server = _Server(
            "s3", folder, lambda port: [sys.executable, "-m", "tests.support.s3_server", str(port), conditions]
        )
        super().__init__(server)
        self.secret = secrets.token_hex(8)
        self.endpoint = f"http://{HOST}:{server.port}"
        self.conf = {
            "spark.hadoop.fs.s3a.endpoint": self.endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.access.key": "tester",
            "spark.hadoop.fs.s3a.secret.key": self.secret,
        }
        self.options = {"aws_endpoint": self.endpoint, "aws_region": "us-east-1"}
        self.environment = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": self.secret}
        self.properties = {"s3.endpoint": self.endpoint, "s3.region": "us-east-1"}

    def renew(self) -> None:
        """For the next test: running, and with nothing but an empty bucket."""
        if not all(server.alive for server in self._servers):
            self.start()
        else:
            with urlopen(Request(f"{self.endpoint}/moto-api/reset", method="POST")):
                self.make_bucket()

    def deny_writes(self) -> None:
        """Until it is renewed."""
        try:
            urlopen(Request(f"{self.endpoint}/read-only", method="POST")).close()
        except HTTPError as answer:  # to this request, too
            answer.close()

    def _client(self) -> Any:
        return fs.S3FileSystem(
            access_key="tester",
            secret_key=self.secret,
            endpoint_override=self.endpoint,
            region="us-east-1",
            allow_bucket_creation=True,
            request_timeout=30,  # 3 seconds unless it is said: too short for a loaded machine
        )


class GoogleStore(ObjectStore):
    """Google Cloud Storage: fake-gcs-server behind its XML API. Credentials are those of the machine's role."""

    scheme = "gs"

    def __init__(self, folder: Path, conditions: Conditions) -> None:
        program = str(need(FAKE_GCS_SERVER))
        server = _Server(
            "fake-gcs-server",
            folder / "server",
            lambda port: [
                *(program, "-scheme", "http", "-host", HOST, "-port", str(port), "-backend", "memory"),
                *("-public-host", f"{HOST}:{port}", "-log-level", "warn"),
            ],
        )
        self.secret = secrets.token_hex(16)
        front = _front(folder, f"google:{server.port}", conditions, self.secret)
        super().__init__(server, front)
        self._json = f"{HOST}:{server.port}"
        self.endpoint = f"http://{HOST}:{front.port}"
        self.options = {"google_base_url": self.endpoint}
        here = f"{HOST}:{front.port}"
        self.environment = {"GCE_METADATA_HOST": here, "GCE_METADATA_IP": here}
        self.properties = {
            "gcs.service.host": f"http://{self._json}",
            "gcs.oauth2.token": self.secret,
            "gcs.oauth2.token-expires-at": "32503680000000",
        }

    def _client(self) -> Any:
        return fs.GcsFileSystem(anonymous=True, endpoint_override=self._json, scheme="http", project_id="test")


class AzureStore(ObjectStore):
    """Azure Blob Storage: Azurite, with a proxy before it if `conditions` is not "all"."""

    scheme = "abfss"
    account = "account"

    def __init__(self, folder: Path, conditions: Conditions) -> None:
        program = str(need(AZURITE))
        server = _Server(
            "azurite",
            folder / "server",
            # In the environment of the child alone: `ServerProcess` passes on that of this process.
            lambda port: [
                *("/usr/bin/env", f"AZURITE_ACCOUNTS={self.account}:{self.secret}", program, "--silent"),
                *("--blobHost", HOST, "--blobPort", str(port), "--inMemoryPersistence", "--skipApiVersionCheck"),
                *("--disableProductStyleUrl", "--disableTelemetry"),
            ],
        )
        self.secret = base64.b64encode(secrets.token_bytes(32)).decode()
        self._direct = f"{HOST}:{server.port}"
        servers = [server]
        if conditions != "all":
            servers.append(_front(folder, f"azure:{server.port}", conditions, self.shared_access_signature()))
        super().__init__(*servers)
        self.endpoint = f"http://{HOST}:{servers[-1].port}"
        self.options = {"azure_storage_endpoint": f"{self.endpoint}/{self.account}"}
        self.environment = {"AZURE_STORAGE_ACCOUNT_KEY": self.secret}
        place = f"BlobEndpoint=http://{self._direct}/{self.account}"
        self.properties = {"adls.connection-string": f"AccountName={self.account};AccountKey={self.secret};{place}"}

    def uri(self, path: str = "", bucket: str = ObjectStore.bucket) -> str:
        return f"abfss://{bucket}@{self.account}.dfs.core.windows.net/{path}".rstrip("/")

    def shared_access_signature(self) -> str:
        """Of the account, for all that can be done with blobs, of the version 2020-08-04."""
        said = {"sv": "2020-08-04", "ss": "b", "srt": "sco", "sp": "rwdlacup", "se": "2999-01-01T00:00:00Z"}
        signed = "\n".join(
            [self.account, said["sp"], said["ss"], said["srt"], "", said["se"], "", "http,https", said["sv"], ""]
        )
        digest = hmac.new(base64.b64decode(self.secret), signed.encode(), hashlib.sha256).digest()
        return urlencode(said | {"spr": "http,https", "sig": base64.b64encode(digest).decode()})

    def _client(self) -> Any:
        file_system: Any = fs.AzureFileSystem  # the stubs have other names of its arguments
        return file_system(
            account_name=self.account,
            account_key=self.secret,
            blob_storage_authority=self._direct,
            blob_storage_scheme="http",
            dfs_storage_authority=self._direct,
            dfs_storage_scheme="http",
        )


_STORES: dict[Scheme, Callable[[Path, Conditions], ObjectStore]] = {
    "s3": AmazonStore,
    "gs": GoogleStore,
    "abfss": AzureStore,
}


def _front(folder: Path, server: str, conditions: Conditions, token: str) -> _Server:
    return _Server(
        "front",
        folder / "front",
        lambda port: [sys.executable, "-m", "tests.support.store_front", str(port), server, conditions, token],
    )
