"""Dead letters as records of a Kafka topic: `[rejected] topic`. The only user of confluent-kafka.

Once `write` returns, all in-sync replicas have the letters. Brokers, certificates and passwords are read again for each
producer, so after each failure.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from time import time
from typing import Any

import anyio
import anyio.from_thread
from anyio import to_thread

from kzconsumer.clock import now
from kzconsumer.errors import DeadLetterError
from kzconsumer.rejected.dead_letter import DeadLetter
from kzconsumer.security.oauth_bearer import token_of
from kzconsumer.settings.secret import read_secret
from kzconsumer.settings.sections import BrokersSettings

# No limit here: the brokers refuse what is too large for a topic.
_LARGEST = 1_000_000_000
# The producer reports failures a little after the timeout.
_LATE = 1.0
# Seconds until a token is read again, which may live longer.
_TOKEN_READ = 60.0
# Seconds between two checks whether the caller was cancelled.
_LOOK = 0.2


class LetterTopic:
    """`bootstrap` returns the registered brokers; `timeout` is for each `write`, in seconds."""

    def __init__(
        self,
        topic: str,
        settings: BrokersSettings,
        client_id: str,
        timeout: float,
        bootstrap: Callable[[], Awaitable[str]],
    ) -> None:
        self._topic = topic
        self._settings = settings
        self._client_id = client_id
        self._timeout = timeout
        self._bootstrap = bootstrap
        self._producer: Any = None
        self._last_error = ""  # the producer's last error, which says more than "timed out"
        self._one_at_a_time = anyio.Lock()

    async def write(self, letters: Sequence[DeadLetter]) -> None:
        """Write all of them. Raises DeadLetterError, and what `bootstrap` raises: then some may have been written."""
        async with self._one_at_a_time:
            bootstrap = "" if self._producer is not None else await self._bootstrap()
            await to_thread.run_sync(self._write, letters, bootstrap)

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            producer.flush(_LOOK)

    def _write(self, letters: Sequence[DeadLetter], bootstrap: str) -> None:
        from confluent_kafka import KafkaException

        try:
            self._send(letters, bootstrap)
        except (KafkaException, BufferError) as error:
            self.close()
            raise DeadLetterError(f"topic {self._topic}: {error}") from error
        except BaseException:
            self.close()  # what it still has must not be sent along with the next attempt
            raise

    def _send(self, letters: Sequence[DeadLetter], bootstrap: str) -> None:
        failed: list[str] = []

        def delivered(error: object, _: object) -> None:
            if error is not None:
                failed.append(str(error))

        if self._producer is None:
            self._producer = self._made(bootstrap)
        for letter in letters:
            key, value = letter.message.key, letter.message.value
            self._producer.produce(self._topic, value, key, headers=letter.headers, on_delivery=delivered)
        until = now() + self._timeout + _LATE
        while (left := self._producer.flush(_LOOK)) and now() < until:
            anyio.from_thread.check_cancelled()
        if left or failed:
            reasons = dict.fromkeys([*failed[:1], self._last_error])
            raise DeadLetterError(f"topic {self._topic}: {'; '.join(filter(None, reasons)) or 'no answer'}")

    def _made(self, bootstrap: str) -> Any:
        from confluent_kafka import Producer

        self._last_error = ""

        def keep(error: object) -> None:
            self._last_error = str(error)

        return Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": self._client_id,
                "acks": "all",
                "enable.idempotence": True,
                "message.timeout.ms": int(self._timeout * 1000),
                "message.max.bytes": _LARGEST,
                "partitioner": "murmur2_random",
                "log_level": 0,
                "error_cb": keep,
                **producer_security(self._settings),
            }
        )


def producer_security(settings: BrokersSettings) -> dict[str, object]:
    """TLS and SASL as librdkafka's settings. Raises DeadLetterError if a file cannot be read."""
    tls, sasl, faults = settings.tls, settings.sasl, list[str]()
    properties: dict[str, object] = {"security.protocol": settings.security_protocol}
    if settings.uses_tls:
        key = tls.key if tls.key is not None else tls.certificate
        password = read_secret(tls.key_password_file, tls.key_password_env, "key_password", "[brokers.tls]", faults)
        properties |= {
            "ssl.ca.location": tls.ca,
            "ssl.certificate.location": tls.certificate,
            "ssl.key.location": key,
            "ssl.key.password": password.decode() if password is not None else None,
            "ssl.endpoint.identification.algorithm": "https" if tls.verify_hostname else "none",
        }
    if settings.uses_sasl and sasl.mechanism == "OAUTHBEARER":
        properties |= {"sasl.mechanism": sasl.mechanism, "oauth_cb": lambda _: (token_of(sasl), time() + _TOKEN_READ)}
    elif settings.uses_sasl:
        secret = read_secret(sasl.password_file, sasl.password_env, "password", "[brokers.sasl]", faults)
        properties |= {
            "sasl.mechanism": sasl.mechanism,
            "sasl.username": sasl.username,
            "sasl.password": secret.decode() if secret is not None else None,
        }
    if faults:
        raise DeadLetterError("; ".join(faults))
    return {name: value for name, value in properties.items() if value is not None}
