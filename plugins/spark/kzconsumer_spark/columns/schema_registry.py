"""A client of a Confluent schema registry, which is asked once for each schema, by the worker's driver process only."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kzconsumer_spark.columns.avro_and_protobuf import AvroSchema, Unsupported
from kzconsumer_spark.worker_protocol.column_options import RegistryOptions

_RETRIES = 3
_BACKOFF = 0.2
_TRY_AGAIN = (408, 429, 500, 502, 503, 504)
_NOT_REGISTERED = (40401, 40402, 40403)
"""Subject, version, schema. For an id that is unknown some registries answer with one of the first two."""
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"


class RegistryError(Exception):
    """The registry did not answer with a usable schema; one line with its address."""


class NotRegistered(RegistryError):
    """The registry does not have the schema."""


class Registry:
    """A client of one registry. Schemas by id are cached, since they never change."""

    def __init__(self, options: RegistryOptions) -> None:
        """Raises RegistryError when a file that the options name cannot be read."""
        import urllib3  # from an extra: only needed with a registry

        self._url = options.url.rstrip("/")
        headers = {"Accept": _ACCEPT}
        try:
            if options.password_file is not None:
                password = Path(options.password_file).read_text().rstrip("\n")
                headers |= urllib3.make_headers(basic_auth=f"{options.user}:{password}")
            context = ssl.create_default_context(cafile=options.ca_file) if options.url.startswith("https") else None
        except OSError as error:
            raise RegistryError(f"schema registry {self._url}: {error}") from error
        retries = urllib3.Retry(
            total=_RETRIES,
            backoff_factor=_BACKOFF,
            status_forcelist=_TRY_AGAIN,
            raise_on_status=False,
            redirect=3,
            respect_retry_after_header=False,  # a batch waits for the answer
        )
        self._pool = urllib3.PoolManager(
            headers=headers, timeout=options.timeout, retries=retries, ssl_context=context, maxsize=1
        )
        self._by_id: dict[int, AvroSchema] = {}

    def by_id(self, number: int) -> AvroSchema:
        """Raises NotRegistered for an id that the registry does not know, RegistryError."""
        if number not in self._by_id:
            self._by_id[number] = self._schema(f"/schemas/ids/{number}", f"schema id {number}")
        return self._by_id[number]

    def latest(self, subject: str) -> AvroSchema:
        """The newest version of a subject. Raises NotRegistered, RegistryError."""
        return self._schema(f"/subjects/{quote(subject, safe='')}/versions/latest", f"subject {subject}")

    def _schema(self, path: str, what: str) -> AvroSchema:
        answer = self._get(path, what)
        if answer.get("schemaType", "AVRO") != "AVRO":
            raise RegistryError(f"schema registry {self._url}: {what} is {answer['schemaType']}, not Avro")
        referred: dict[str, Any] = {}
        try:
            self._refer(answer, referred)
            return AvroSchema(json.loads(answer["schema"]), tuple(referred.values()))
        except NotRegistered as error:  # of another one: this one is registered, and its records are not bad
            raise RegistryError(f"{error}, to which {what} refers") from error
        except (Unsupported, ValueError, LookupError, TypeError) as error:
            raise RegistryError(f"schema registry {self._url}: {what}: {error}") from error

    def _refer(self, answer: dict[str, Any], found: dict[str, Any]) -> None:
        """Collect the referenced schemas, each after those it refers to itself.

        Those that are deleted, too: records remain that were written with them.
        """
        for reference in answer.get("references") or ():
            subject, version = reference["subject"], reference["version"]
            if reference["name"] not in found:
                path = f"/subjects/{quote(subject, safe='')}/versions/{version}?deleted=true"
                other = self._get(path, f"subject {subject} version {version}")
                self._refer(other, found)
                found[reference["name"]] = json.loads(other["schema"])

    def _get(self, path: str, what: str) -> dict[str, Any]:
        from urllib3.exceptions import HTTPError

        try:
            response = self._pool.request("GET", self._url + path)
        except HTTPError as error:
            cause = getattr(error, "reason", None) or error
            reason = " ".join(str(cause).split()).rpartition(">: ")[2]
            raise RegistryError(
                f"schema registry {self._url}: {what}: no answer in {_RETRIES + 1} attempts: {reason}"
            ) from error
        try:
            answer = dict(json.loads(response.data))
        except (ValueError, TypeError):
            answer = None
        if response.status == 404 and answer is not None and answer.get("error_code") in _NOT_REGISTERED:
            raise NotRegistered(f"schema registry {self._url}: {what} is not registered")
        if response.status == 404:  # of a proxy, or of a server that has other paths
            raise RegistryError(f"schema registry {self._url}: {what}: HTTP status 404, not of a registry: check `url`")
        if response.status != 200:
            raise RegistryError(f"schema registry {self._url}: {what}: HTTP status {response.status}")
        if answer is None:
            raise RegistryError(f"schema registry {self._url}: {what}: the answer is not JSON")
        return answer
