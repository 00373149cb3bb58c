"""How a task reaches the brokers: addresses, settings, and the secrets by their content.

Files that the settings name need not exist where executors run. The secrets travel in the pickled input partitions
alone, which Spark neither shows nor logs; no `repr` has them.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.transport import Security, load_security
from kzconsumer.errors import ConfigError, SecurityError
from kzconsumer.model import Broker
from kzconsumer.security.tokens import token_of
from kzconsumer.settings.layers import read_secret, reason_of
from kzconsumer.settings.sections import BrokersSettings, FetchSettings
from kzconsumer_spark.worker_protocol.kafka_settings import Kafka

_FILES: Final = ("ca", "certificate", "key")


class BrokerAccess:
    """Made in the driver, used by tasks. `brokers` are those to ask for leaders, `ids` those of `RangeReader`."""

    def __init__(
        self, kafka: Kafka, brokers: Sequence[Broker], ids: Mapping[str, str] | None = None, tasks: int = 1
    ) -> None:
        """Reads the files and variables that the settings name. Raises ConfigError.

        `tasks`: how many share `[fetch] rate_limit`.
        """
        self.brokers = tuple(brokers)
        self.ids = dict(ids or {})
        self.fetch: FetchSettings = kafka.fetch
        self.client = kafka.client
        limit = kafka.fetch.rate_limit
        self.rate_limit = None if limit is None else limit / max(tasks, 1)
        self._settings = kafka.brokers
        self._source = kafka.source
        self._secrets = _secrets(kafka.brokers, kafka.source)

    def __repr__(self) -> str:
        return f"BrokerAccess({', '.join(map(str, self.brokers))})"

    @contextmanager
    def settings(self) -> Iterator[BrokersSettings]:
        """The member's, with files in memory that exist meanwhile, and that only this process can open."""
        with ExitStack() as open_files:
            files: dict[str, str] = {}
            for name, content in self._secrets.items():
                file = open_files.enter_context(os.fdopen(os.memfd_create(name), "wb"))
                os.fchmod(file.fileno(), 0o600)
                file.write(content)
                file.flush()
                files[name] = f"/proc/self/fd/{file.fileno()}"
            tls = msgspec.structs.replace(
                self._settings.tls,
                **{name: files.get(name) for name in (*_FILES, "key_password_file")},
                key_password_env=None,
            )
            sasl = msgspec.structs.replace(
                self._settings.sasl,
                **{name: files.get(name) for name in ("password_file", "token_file")},
                password_env=None,
                token_command=(),
            )
            yield msgspec.structs.replace(self._settings, tls=tls, sasl=sasl)

    def security(self) -> Security:
        """Raises ConfigError."""
        with self.settings() as settings:
            return load_security(settings, self._source)

    @asynccontextmanager
    async def connections(self) -> AsyncIterator[Brokers]:
        """Raises ConfigError."""
        security = self.security()
        timeout = self.fetch.request_timeout
        async with Brokers(client_id=self.client, timeout=timeout, security=lambda: security) as brokers:
            yield brokers


class PlannedBrokers:
    """The brokers that were known when the batch was planned; any of them knows the others."""

    unusable: Final[Mapping[int, str]] = {}

    def __init__(self, brokers: Sequence[Broker]) -> None:
        self._brokers = brokers

    async def brokers(self) -> Sequence[Broker]:
        return self._brokers


def _secrets(settings: BrokersSettings, source: str) -> Mapping[str, bytes]:
    """By the key of the settings that names the file; a password ends with a newline, which is none of it."""
    faults: list[str] = []
    found: dict[str, bytes | None] = {}
    tls, sasl = settings.tls, settings.sasl
    for name in _FILES:
        if (path := getattr(tls, name)) is not None:
            try:
                found[name] = Path(path).read_bytes()
            except OSError as error:
                faults.append(f"{source}: [brokers.tls] {name}: {path} cannot be read: {reason_of(error)}")
    where = f"{source}: [brokers"
    key = read_secret(tls.key_password_file, tls.key_password_env, "key_password", f"{where}.tls]", faults)
    password = read_secret(sasl.password_file, sasl.password_env, "password", f"{where}.sasl]", faults)
    if sasl.mechanism == "OAUTHBEARER":
        try:
            found["token_file"] = token_of(sasl).encode()
        except SecurityError as error:
            faults.append(f"{where}.sasl] {error}")
    if faults:
        raise ConfigError(faults)
    found |= {"key_password_file": key and key + b"\n", "password_file": password and password + b"\n"}
    return {name: content for name, content in found.items() if content is not None}
