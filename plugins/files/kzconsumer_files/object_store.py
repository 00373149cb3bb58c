"""A place in an object store (S3, Google Cloud Storage, Azure): objects below a URI, put whole, and only once if asked.

All calls of the package `obstore` are here. They block, and raise OSError with a text of one line. `StateFiles` are a
target's small files, each of which is made once: in a directory, or in such a store.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from fnmatch import fnmatch
from io import SEEK_SET, BufferedIOBase, BufferedReader, RawIOBase
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, cast

import msgspec

from kzconsumer.display import is_secret, redacted_text
from kzconsumer.durable_files import create_whole, sync_directory
from kzconsumer.errors import ConfigError, PluginError
from kzconsumer.installation import pip_install
from kzconsumer_files.range_names import NotOurs

_URI: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)")
# Of Azure's URIs a container is the user.
_NOT_A_PLACE: Final = re.compile(r"[?#]|://[^/@]*:.*@")
_ELSEWHERE: Final = re.compile("bucket(_name)?$|container_name$", re.IGNORECASE)
_UNSAFE: Final = re.compile("unsafe|conditional_put|copy_if_not_exists", re.IGNORECASE)
# As options; of those without the name of a vendor no variable counts.
_ENDPOINT: Final = re.compile(
    r"((aws_)?endpoint(_url(_s3)?)?|(google_)?base_url|azure_(storage_)?endpoint)", re.IGNORECASE
)
_VENDOR: Final = re.compile("(aws|google|azure)_", re.IGNORECASE)
_SCHEMES: Final = {"s3": "s3", "s3a": "s3", "gs": "gs", "abfss": "abfss"}
_CREDENTIALS: Final = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    "gs": ("GOOGLE_APPLICATION_CREDENTIALS",),
    "abfss": ("AZURE_STORAGE_ACCOUNT_KEY",),
}
# What a client asks the machine for, if it has been given no credentials.
_ROLE: Final = re.compile("latest/(api/token|meta-data)|computeMetadata|metadata/identity")
# A listing says these by another error than a read.
_REFUSED: Final = re.compile("status code: 40[13]")
_NO_BUCKET: Final = re.compile("NoSuchBucket|ContainerNotFound")
# A call that takes longer fails, and is repeated with the batch.
_CLIENT: Final = {"timeout": "30s", "connect_timeout": "5s"}
_LOOKED_AT: Final = 1000  # objects, which is one request
_RETRIES: Final = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}


class StoreUnavailable(OSError):
    """The store does not answer, or with errors of its own: a later call may succeed."""


class StoredObject(NamedTuple):
    name: str
    size: int


Put: TypeAlias = Callable[[Path, str], None]
"""Puts a file under a name of its own. Blocks, and raises OSError. Can be pickled for another process."""


class StorePut(msgspec.Struct, frozen=True):
    """Into the place `uri` of a store, with what the process that calls it has of credentials."""

    uri: str
    options: Mapping[str, str]

    def __call__(self, file: Path, name: str) -> None:
        ObjectStore(self.uri, self.options).upload(file, name)


def is_object_store(path: str) -> bool:
    """Whether it is the URI of one. Raises ValueError ("is not ...") for another scheme."""
    found = _URI.fullmatch(path)
    if found is None or found[1] == "file":
        return False
    if found[1] not in _SCHEMES:
        raise ValueError(f"is not a directory, nor a URI with {', '.join(_SCHEMES)}")
    if found[2][:1] in ("", "/"):
        raise ValueError(f'names no bucket, as "{found[1]}://bucket/orders" does')
    return True


def require_usable_options(path: str, options: Mapping[str, str]) -> None:
    """Raises ValueError for options that hold a secret, or that take conditional puts away."""
    if options and not is_object_store(path):
        raise ValueError(f"store_options go with a path such as s3://bucket/orders, which {path} is not")
    if is_object_store(path) and _NOT_A_PLACE.search(path):
        raise ValueError("path is a URI with a password, a ? or a #: only bucket and prefix belong into it")
    for key, value in options.items():
        if _ELSEWHERE.search(key):
            raise ValueError(f"store_options.{key} is not supported: path names the bucket")
        if _UNSAFE.search(key):
            raise ValueError(f"store_options.{key} is not supported: a range is published by conditional puts")
        if is_secret(key) or "sas" in key.lower() or redacted_text(value) != value:
            raise ValueError(
                f"store_options.{key} is not for a file that others read: credentials come from the environment"
                " (AWS_ACCESS_KEY_ID and so on) or from the machine's role"
            )


def without_store(options: Mapping[str, object]) -> Mapping[str, object]:
    """The options of a sink for a directory in place of a store."""
    return {key: value for key, value in options.items() if key != "store_options"}


def client_options(options: Mapping[str, str]) -> dict[str, str]:
    """Leave to speak plain HTTP, if that is what the endpoint says, in `options` or in the environment."""
    said = {**{key: value for key, value in os.environ.items() if _VENDOR.match(key)}, **options}
    plain = any(_ENDPOINT.fullmatch(key) and value.startswith("http://") for key, value in said.items())
    return {"allow_http": "true"} if plain else {}


def store_uri(path: str) -> str:
    """As `obstore` and `deltalake` know it, without a slash at its end."""
    scheme, _, rest = path.partition("://")
    return f"{_SCHEMES[scheme]}://{rest.rstrip('/')}"


class ObjectStore:
    """Names are relative to `uri`. `options` are keys of `obstore`, such as `aws_endpoint`, beside the environment.

    Making one raises ConfigError, PluginError.
    """

    def __init__(self, uri: str, options: Mapping[str, str]) -> None:
        try:
            import obstore
        except ImportError as error:
            raise PluginError(
                f"kzconsumer-files: {uri} needs obstore: {pip_install('object-store', 'kzconsumer-files')}"
            ) from error
        self.uri = store_uri(uri)
        self.options = options
        self._calls = obstore
        try:
            self._store: Any = obstore.store.from_url(
                self.uri,
                config=cast(Any, dict(options)),
                client_options=cast(Any, {**_CLIENT, **client_options(options)}),
                retry_config=cast(Any, _RETRIES),
            )
        except (obstore.exceptions.BaseError, ValueError) as error:
            raise ConfigError([f"[sink.options] store_options: {self.uri}: {_one_line(error)}"]) from None

    def __str__(self) -> str:
        return self.uri

    def require_conditional_puts(self, below: str) -> None:
        """Raises NotOurs if the store replaces an object where it was asked to create one; OSError."""
        name = f"{below}/probe-{uuid.uuid4().hex}"
        try:
            self.create(name, b"1")  # False if the reply to a first try was lost, or was an error
            if self.create(name, b"2") or self.read(name) != b"1":
                raise NotOurs(
                    f"{self.uri}: this store does not honour conditional writes (If-None-Match: *), without which two"
                    " members could publish one range: use a store that does"
                )
        finally:
            with suppress(OSError):
                self.remove([name])

    def create(self, name: str, data: bytes) -> bool:
        """Put an object unless there is one of this name; True if this call did.

        A call that was repeated on its way may return False although it did.
        """
        with self._errors():
            try:
                self._calls.put(self._store, name, data, mode="create", use_multipart=False)
            except self._calls.exceptions.AlreadyExistsError:
                return False
        return True

    def upload(self, file: Path, name: str) -> None:
        """Put a file under a name of its own."""
        with self._errors():
            self._calls.put(self._store, name, file)

    def copy(self, source: str, name: str) -> bool:
        """False if the copy has only begun: call it again. Raises FileNotFoundError if there is no such source.

        Azure may answer while a copy is pending: then it is empty, and lost with its source. So there a copy that has
        begun is not replaced by another one.
        """
        with self._errors():
            if not self.uri.startswith("abfss:"):
                self._calls.copy(self._store, source, name)
                return True
            size = self._calls.head(self._store, source)["size"]
            with suppress(self._calls.exceptions.AlreadyExistsError):
                self._calls.copy(self._store, source, name, overwrite=False)
            return bool(self._calls.head(self._store, name)["size"] == size)

    def read(self, name: str) -> bytes | None:
        """None if there is no such object."""
        with self._errors():
            try:
                return bytes(self._calls.get(self._store, name).bytes())
            except FileNotFoundError:
                return None

    def exists(self, name: str) -> bool:
        with self._errors():
            try:
                self._calls.head(self._store, name)
            except FileNotFoundError:
                return False
        return True

    def listed(self, below: str = "", after: str | None = None) -> Iterator[StoredObject]:
        """In the order of their names, those after `after`, which is below `below`."""
        with self._errors():
            for chunk in self._calls.list(self._store, below or None, offset=after):
                for each in chunk:
                    yield StoredObject(each["path"], each["size"])

    def tops(self, below: str = "") -> tuple[list[str], list[str]]:
        """The places directly below this one, and the names of the objects in it."""
        with self._errors():
            found = self._calls.list_with_delimiter(self._store, below or None)
        # Consoles, and clients that show directories, put an empty object in the place of each.
        return list(found["common_prefixes"]), [each["path"] for each in found["objects"] if each["size"]]

    def parents(self) -> Iterator[tuple[ObjectStore, str]]:
        """The places above this one, the nearest first; each with the name in it that leads here."""
        place, _, name = self.uri.rpartition("/")
        while "://" in place:
            yield ObjectStore(place, self.options), name
            place, _, name = place.rpartition("/")

    def has(self, pattern: str) -> bool:
        """Whether an object has this name; with a `*`, whether one of the first objects beside it has.

        False if they may not be looked at.
        """
        try:
            if "*" not in pattern:
                return self.exists(pattern)
            beside = islice(self.listed(pattern.rpartition("/")[0]), _LOOKED_AT)
            return any(fnmatch(each.name, pattern) for each in beside)
        except StoreUnavailable:
            raise
        except OSError:
            return False

    def open(self, name: str) -> BufferedIOBase:
        """To read parts of it. Raises FileNotFoundError."""
        with self._errors():
            return BufferedReader(_Reading(self._calls.open_reader(self._store, name)))

    def remove(self, names: Sequence[str]) -> None:
        """Those that are gone are no error."""
        with self._errors():
            for name in names:
                with suppress(FileNotFoundError):
                    self._calls.delete(self._store, name)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, self._calls.exceptions.GenericError) as error:
            if _NO_BUCKET.search(str(error)):
                what = "there is no such bucket or container: make it"
                raise FileNotFoundError(f"{self.uri}: {what}; {_one_line(error)}") from None
            if isinstance(error, FileNotFoundError):
                raise FileNotFoundError(f"{self.uri}: {_one_line(error)}") from None
            if _REFUSED.search(str(error)):
                raise OSError(f"{self.uri}: {_one_line(error)}") from None
            raise StoreUnavailable(f"{self.uri}: {self._missing(str(error))}{_one_line(error)}") from None
        except (self._calls.exceptions.BaseError, ValueError, PermissionError) as error:
            raise OSError(f"{self.uri}: {_one_line(error)}") from None

    def _missing(self, error: str) -> str:
        """What to set, if the error is that of a machine without a role."""
        if _ROLE.search(error) is None:
            return ""
        known = _CREDENTIALS[self.uri.partition("://")[0]]
        names = " and ".join(name for name in known if name not in os.environ)
        return f"no credentials: set {names or 'others'} in the environment, or give this machine a role; "


class _Reading(RawIOBase):
    """What `obstore` reads, as a file of Python's."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        return int(self._reader.seek(offset, whence))

    def readinto(self, into: Any) -> int:
        data = bytes(self._reader.read(len(into)))
        into[: len(data)] = data
        return len(data)


def _one_line(error: Exception) -> str:
    return redacted_text(" ".join(str(error).partition("\n\n")[0].split()))[:500]


class StateFiles(Protocol):
    """Raises OSError."""

    def place(self, name: str) -> str:
        """As messages name it."""
        ...

    def names(self, prefix: str) -> list[str]:
        """Of those directly in it, in order."""
        ...

    def read(self, name: str) -> bytes | None:
        """None if there is none."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Durably, unless it exists; True if this call did."""
        ...


class StateDirectory:
    def __init__(self, path: Path) -> None:
        self._path = path

    def place(self, name: str) -> str:
        return str(self._path / name)

    def names(self, prefix: str) -> list[str]:
        return sorted(each.name for each in self._path.glob(f"{prefix}*"))

    def read(self, name: str) -> bytes | None:
        try:
            return (self._path / name).read_bytes()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENAMETOOLONG):
                raise
            return None

    def create(self, name: str, data: bytes) -> bool:
        place = self._path / name
        if place.parent != self._path:
            # Not those above it: what was moved away is not made again.
            place.parent.mkdir(exist_ok=True)
            sync_directory(self._path)
        return create_whole(place, data)


class StateObjects:
    """Those below `top` in a store."""

    def __init__(self, store: ObjectStore, top: str) -> None:
        self._store = store
        self._top = top

    def place(self, name: str) -> str:
        return f"{self._store.uri}/{self._top}/{name}"

    def names(self, prefix: str) -> list[str]:
        start = f"{self._top}/{prefix}"
        names = (each.name for each in self._store.listed(self._top, after=start))
        return [each.removeprefix(f"{self._top}/") for each in takewhile(lambda name: name.startswith(start), names)]

    def read(self, name: str) -> bytes | None:
        return self._store.read(f"{self._top}/{name}")

    def create(self, name: str, data: bytes) -> bool:
        return self._store.create(f"{self._top}/{name}", data)
