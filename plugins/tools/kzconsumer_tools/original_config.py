"""Translates a configuration of the original consumer (Kafka 0.8.2 to 1.1) into a group's file, with notes.

Source of keys and defaults: `kafka.consumer.ConsumerConfig` and the classes it uses (1.1.1; earlier releases from 0.8.2
on have fewer keys).
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal

import msgspec

from kzconsumer.display import HIDDEN, is_secret, redacted_text
from kzconsumer.errors import ConfigError
from kzconsumer.settings.settings import Settings
from kzconsumer.settings.table_reader import show_byte_size, show_duration

_LARGEST: Final = 2**31 - 1
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,10}")

Kind = Literal["same", "changed", "unsafe", "left_out", "unknown"]
"""Same meaning; different meaning; a value that loses or repeats records, or stops a group; no counterpart; not a key
of the original consumer."""


class Note(msgspec.Struct, frozen=True):
    """The translation of one key. `value` is the file's, or the original's default (then `given` is false);
    `setting`: our table.key, None if there is none."""

    key: str
    value: str
    given: bool
    kind: Kind
    setting: str | None
    explanation: str

    def __str__(self) -> str:
        where = "" if self.given else " (not set: the original's default)"
        setting = f" -> [{'] '.join(self.setting.rsplit('.', 1))}" if self.setting else ""
        explanation = f": {self.explanation}" if self.explanation else ""
        return f"{self.key}={self.value}{where}{setting}{explanation}"


class Imported(msgspec.Struct, frozen=True):
    """`settings`: table -> key -> value as in TOML. Every key of the file has a note."""

    settings: Mapping[str, Mapping[str, object]]
    notes: tuple[Note, ...]


Value = str | int | bool
Translated = tuple[Value | None, Kind, str]
"""The value to write (None: none), and the note's kind and explanation."""


class _Key(msgspec.Struct, frozen=True):
    """`default` of the original: used for a missing key if our default differs, or if it needs a note."""

    translate: Callable[[str, Mapping[str, str]], Translated]
    setting: str | None = None
    default: str | None = None


def _left_out(why: str) -> _Key:
    return _Key(lambda value, file: (None, "left_out", why))


def _same(setting: str, read: Callable[[str], Value], default: str | None = None) -> _Key:
    return _Key(lambda value, file: (read(value), "same", ""), setting, default)


def _changed(setting: str, read: Callable[[str], Value], how: str) -> _Key:
    return _Key(lambda value, file: (read(value), "changed", how), setting)


def _text(value: str) -> str:
    return value


def _number(value: str) -> int:
    if not _NUMBER.fullmatch(value):
        raise ValueError("is not a whole number")
    return int(value)


def _milliseconds(value: str) -> str:
    return show_duration(_number(value) / 1000)


def _bytes(value: str) -> str | int:
    return show_byte_size(_number(value))


def _truth(value: str) -> bool:
    if value not in ("true", "false"):  # as the original: `VerifiableProperties.getBoolean`
        raise ValueError("is neither true nor false")
    return value == "true"


def _one_of(value: str, *words: str) -> str:
    if value not in words:
        raise ValueError(f"is not a value of the original's: {', '.join(words)}")
    return value


def _queue(value: str, file: Mapping[str, str]) -> Translated:
    size = _number(value) * _number(file.get("fetch.message.max.bytes", "1048576"))
    return (
        show_byte_size(min(size, _LARGEST)),
        "changed",
        "bytes of a stream's queue, not chunks: the size of that many chunks",
    )


def _socket(value: str, file: Mapping[str, str]) -> Translated:
    if _number(value) == 0:
        return None, "left_out", "there is no unlimited timeout: the default applies"
    return _milliseconds(value), "changed", "also for connecting to a broker"


def _auto_commit(value: str, file: Mapping[str, str]) -> Translated:
    if _truth(value):
        return None, "left_out", "always on: processed messages are committed"
    why = "cannot be turned off: a message counts as processed when the next one is taken, and is committed then. An "
    return (
        None,
        "unsafe",
        f'{why}application that needs it for longer uses acknowledge="explicit" (docs/python.md)',
    )


def _reset(value: str, file: Mapping[str, str]) -> Translated:
    if _one_of(value, "smallest", "largest") == "smallest":
        return value, "same", ""
    why = "a partition without stored offset, even a new one, is read from its end: earlier records are skipped. "
    return value, "unsafe", f'{why}"smallest" skips none'


def _consumer_id(value: str, file: Mapping[str, str]) -> Translated:
    return value, "unsafe", "for tests: two members with the same id cannot both be in the group"


def _timeout(value: str, file: Mapping[str, str]) -> Translated:
    if _number(value) < 0:
        return None, "left_out", "streams wait without limit, as they do here"
    return None, "left_out", "streams wait without limit: an application that needs a limit sets it where it waits"


def _internal(value: str, file: Mapping[str, str]) -> Translated:
    if _truth(value):
        return None, "left_out", "always so for a topic filter"
    return None, "unsafe", "internal topics match no topic filter: name them in [subscription] topics"


def _strategy(value: str, file: Mapping[str, str]) -> Translated:
    if _one_of(value, "range", "roundrobin") == "range":
        return value, "same", ""
    why = "compatible with members of Kafka 1.0 and 1.1; with older ones use roundrobin-legacy. All members of a group "
    return value, "unsafe", f"{why}must use the same one, or they claim each other's partitions"


def _storage(value: str, file: Mapping[str, str]) -> Translated:
    return _one_of(value.lower(), "zookeeper", "kafka"), "same", ""


def _dual(value: str, file: Mapping[str, str]) -> Translated:
    if file.get("offsets.storage", "zookeeper").lower() == "zookeeper":
        return None, "left_out", "applies to offsets.storage=kafka only"
    if _truth(value):
        return True, "same", ""
    return False, "unsafe", "only safe if all members have committed to both before (docs/migration.md)"


_NEVER_READ = "not read by the original either"
_METRICS = "see [status] listen (docs/monitoring.md)"

KEYS: Mapping[str, _Key] = {
    "zookeeper.connect": _same("zookeeper.connect", _text),
    "zookeeper.session.timeout.ms": _same("zookeeper.session_timeout", _milliseconds),
    "zookeeper.connection.timeout.ms": _left_out("a member waits for ZooKeeper without limit"),
    "zookeeper.sync.time.ms": _left_out("it was the default of rebalance.backoff.ms"),
    "group.id": _same("group.id", _text),
    "consumer.id": _Key(_consumer_id, "group.consumer_id"),
    "client.id": _left_out("the group's id is sent to the brokers"),
    "socket.timeout.ms": _Key(_socket, "fetch.request_timeout"),
    "socket.receive.buffer.bytes": _left_out("the operating system sizes it"),
    "fetch.message.max.bytes": _changed(
        "fetch.max_bytes", _bytes, "a larger message is delivered, too; it stopped the original's stream"
    ),
    "fetch.max.bytes": _changed("fetch.response_bytes", _bytes, "it has an effect here; the original never used it"),
    "fetch.min.bytes": _same("fetch.min_bytes", lambda value: _number(value) or 1),
    "fetch.wait.max.ms": _same("fetch.max_wait", _milliseconds),
    "num.consumer.fetchers": _left_out("one per broker and 100 partitions, each with a connection"),
    "queued.max.message.chunks": _Key(_queue, "fetch.queue_bytes"),
    "auto.commit.enable": _Key(_auto_commit, default="true"),
    "auto.commit.interval.ms": _same("offsets.commit_interval", _milliseconds, "60000"),
    "rebalance.max.retries": _left_out("a member never gives up: it keeps its partitions and waits for the others"),
    "rebalance.backoff.ms": _left_out("a member waits for the owner that blocks it"),
    "refresh.leader.backoff.ms": _left_out("a partition's leader is looked up when it changes"),
    "offsets.storage": _Key(_storage, "offsets.storage"),
    "dual.commit.enabled": _Key(_dual, "offsets.dual_commit"),
    "offsets.channel.backoff.ms": _left_out(
        "a coordinator that moved is looked up at once, then with increasing delays"
    ),
    "offsets.channel.socket.timeout.ms": _left_out("[fetch] request_timeout applies to all responses of brokers"),
    "offsets.commit.max.retries": _left_out("a failed commit is logged, and repeated by the next one"),
    "auto.offset.reset": _Key(_reset, "offsets.reset", "largest"),
    "consumer.timeout.ms": _Key(_timeout),
    "exclude.internal.topics": _Key(_internal),
    "partition.assignment.strategy": _Key(_strategy, "group.assignor"),
    "kafka.metrics.reporters": _left_out(_METRICS),
    "kafka.metrics.polling.interval.secs": _left_out(_METRICS),
    "kafka.csv.metrics.dir": _left_out(_METRICS),
    "kafka.csv.metrics.reporter.enabled": _left_out(_METRICS),
    "serializer.encoding": _left_out("keys and values are bytes here"),
    "mirror.topics.whitelist": _left_out(_NEVER_READ),
    "mirror.topics.blacklist": _left_out(_NEVER_READ),
    "mirror.consumer.numthreads": _left_out(_NEVER_READ),
}
REQUIRED = ("zookeeper.connect", "group.id")


def read(content: bytes, source: str) -> Imported:
    """Raises ConfigError, with `source` before every fault, if the original would not start with the file."""
    import javaproperties  # with the standard library's clients of HTTP and mail: not for every `--help`

    try:
        file: dict[str, str] = {key: value.strip() for key, value in javaproperties.load(io.BytesIO(content)).items()}
    except ValueError as error:
        raise ConfigError([f"{source}: {error}"]) from None
    faults = [f"{source}: {key}: missing" for key in REQUIRED if key not in file]
    settings: dict[str, dict[str, object]] = {}
    notes = []
    for key, value, given in _values(file):
        shown = HIDDEN if is_secret(key) else redacted_text(value)
        if (known := KEYS.get(key)) is None:
            why = "not a key of the original consumer, which ignored it"
            notes.append(Note(key, shown, True, "unknown", None, why))
            continue
        try:
            translated, kind, explanation = known.translate(value, file)
        except ValueError as error:
            faults.append(f"{source}: {key}: {value!r} {error}")
            continue
        setting = known.setting if translated is not None else None
        if setting is not None:
            table, _, name = setting.partition(".")
            settings.setdefault(table, {})[name] = translated
        if given or kind != "left_out":
            notes.append(Note(key, shown, given, kind, setting, explanation))
    if faults:
        raise ConfigError(faults)
    Settings.from_dict(settings, source=source)
    return Imported(settings, tuple(notes))


def _values(file: Mapping[str, str]) -> Iterator[tuple[str, str, bool]]:
    """Key, value and whether the file has it: known keys in the order of KEYS, then the others."""
    for key, known in KEYS.items():
        if key in file:
            yield key, file[key], True
        elif known.default is not None:
            yield key, known.default, False
        elif key == "queued.max.message.chunks" and "fetch.message.max.bytes" in file:
            yield key, "2", False
    for key in sorted(file.keys() - KEYS.keys()):
        yield key, file[key], True
