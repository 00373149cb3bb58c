"""An object store in memory: `obstore` with its own store in memory in place of S3, Google or Azure.

That store decides about conditional puts. What can happen to a request is here: it waits until a test lets it pass, its
answer is lost, it arrives when nobody waits for it any more. `files/servers/test_store_in_memory.py` compares it with
real stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import obstore
import pytest
from obstore.exceptions import GenericError
from obstore.store import MemoryStore

from tests.support.object_store import Scheme

Fault: TypeAlias = Literal["repeated", "unanswered", "refused", "late"]
"""`repeated`: carried out, its answer was lost, and the client asks again. `unanswered`: carried out, and the client
has given up. `refused`: not carried out. `late`: carried out after the client has given up."""
T = TypeVar("T")
CALLS: Final = ("put", "copy", "get", "head", "list", "list_with_delimiter", "open_reader", "delete")
PAGE: Final = 3
"""Objects in an answer to a listing: others may change them between two answers."""


class _Client(NamedTuple):
    """What the product has of a store: names are below `prefix`, which is empty or ends with a slash."""

    prefix: str


class StoreInMemory:
    """One bucket, which clients of any number of members share. Has what contracts need of `ObjectStore`."""

    def __init__(self, scheme: Scheme = "s3") -> None:
        self.scheme: Scheme = scheme
        self.options: dict[str, str] = {}
        self.calls = 0
        self.before: Callable[[str], None] = lambda call: None
        """Called with the name of each call, before it reaches the store."""
        self.fault: Callable[[str], Fault | None] = lambda call: None
        """What becomes of a call."""
        self.delay: Callable[[], int] = lambda: 0
        """After how many other calls a late one arrives, or a copy of Azure's ends; 0 is at once."""
        self.folders: set[str] = set()
        """Where a client that shows directories has put an empty object."""
        self._memory = MemoryStore()
        self._due: list[tuple[int, Callable[[], object]]] = []

    def uri(self, path: str = "") -> str:
        return f"{self.scheme}://bucket/{path}".rstrip("/")

    def objects(self) -> list[str]:
        return sorted(each["path"] for chunk in _obstore.list(self._memory) for each in chunk)

    def content(self, name: str) -> bytes:
        return bytes(_obstore.get(self._memory, name).bytes())

    def size(self, names: Iterable[str]) -> int:
        return sum(len(self.content(name)) for name in names)

    def put(self, name: str, content: bytes) -> None:
        _obstore.put(self._memory, name, content)

    def remove(self, name: str) -> None:
        _obstore.delete(self._memory, name)

    def copied(self) -> Callable[[], None]:
        """What restores the bucket."""
        copy = {name: self.content(name) for name in self.objects()}

        def restore() -> None:
            for name in {*self.objects()} - {*copy}:
                self.remove(name)
            for name, content in copy.items():
                self.put(name, content)

        return restore

    def kill(self) -> None:
        """No call is answered any more."""
        self.fault = lambda call: "refused"

    def settle(self) -> None:
        """Let all that is late arrive."""
        while self._due:
            self._carry_out(self._due.pop(0)[1])

    @contextmanager
    def reached(self) -> Iterator[StoreInMemory]:
        """The product's clients are clients of this store."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(obstore.store, "from_url", self._client)
            for name in CALLS:
                patch.setattr(obstore, name, getattr(self, f"_{name}"))
            yield self

    def _client(self, uri: str, **settings: object) -> _Client:
        prefix = uri.removeprefix(self.uri()).strip("/")
        return _Client(f"{prefix}/" if prefix else "")

    def _put(self, client: _Client, name: str, data: Any, **how: Any) -> None:
        self._call("put", lambda: _obstore.put(self._memory, client.prefix + name, data, **how))

    def _copy(self, client: _Client, source: str, name: str, *, overwrite: bool = True) -> None:
        source, name = client.prefix + source, client.prefix + name
        self._call("copy", lambda: self._copy_now(source, name, overwrite=overwrite))

    def _copy_now(self, source: str, name: str, *, overwrite: bool) -> None:
        if self.scheme == "abfss" and (wait := self.delay()):
            _obstore.head(self._memory, source)
            _obstore.put(self._memory, name, b"", mode="overwrite" if overwrite else "create")
            self._later(wait, lambda: _obstore.copy(self._memory, source, name))
        else:
            _obstore.copy(self._memory, source, name, overwrite=overwrite)

    def _get(self, client: _Client, name: str) -> Any:
        return self._call("get", lambda: _obstore.get(self._memory, client.prefix + name))

    def _head(self, client: _Client, name: str) -> Any:
        return self._call("head", lambda: _obstore.head(self._memory, client.prefix + name))

    def _delete(self, client: _Client, name: str) -> None:
        self._call("delete", lambda: _obstore.delete(self._memory, client.prefix + name))

    def _open_reader(self, client: _Client, name: str) -> Any:
        return self._call("open_reader", lambda: _obstore.open_reader(self._memory, client.prefix + name))

    def _list(self, client: _Client, prefix: str | None, *, offset: str | None = None) -> Iterator[Sequence[Any]]:
        below = f"{client.prefix}{prefix or ''}"
        after = None if offset is None else client.prefix + offset
        while page := self._call("list", lambda: self._page(below, after)):  # noqa: B023
            yield [{**each, "path": each["path"].removeprefix(client.prefix)} for each in page]
            after = page[-1]["path"]

    def _page(self, below: str, after: str | None) -> Sequence[Any]:
        found = [each for chunk in _obstore.list(self._memory, below or None, offset=after) for each in chunk]
        if below in self.folders and after is None:
            found.insert(0, {"path": below, "size": 0})
        return found[:PAGE]

    def _list_with_delimiter(self, client: _Client, prefix: str | None = None) -> Any:
        def listed() -> Any:
            found = _obstore.list_with_delimiter(self._memory, f"{client.prefix}{prefix or ''}" or None)
            tops = [each.removeprefix(client.prefix) for each in found["common_prefixes"]]
            objects = [{**each, "path": each["path"].removeprefix(client.prefix)} for each in found["objects"]]
            return {"common_prefixes": tops, "objects": objects}

        return self._call("list_with_delimiter", listed)

    def _call(self, name: str, carry_out: Callable[[], T]) -> T:
        self.before(name)
        self.calls += 1
        for each in [each for each in self._due if each[0] <= self.calls]:
            self._due.remove(each)
            self._carry_out(each[1])
        fault = self.fault(name)
        if fault is None:
            return carry_out()
        if fault == "late":
            self._later(self.delay(), carry_out)
        elif fault != "refused":
            self._carry_out(carry_out)
        if fault == "repeated":
            return carry_out()
        raise GenericError(f"Generic error: {name}: the store does not answer")

    def _later(self, wait: int, carry_out: Callable[[], object]) -> None:
        self._due.append((self.calls + wait, carry_out))

    def _carry_out(self, call: Callable[[], object]) -> None:
        """Nobody learns what became of it."""
        with suppress(FileNotFoundError, obstore.exceptions.BaseError):
            call()


_obstore: Final = SimpleNamespace(**{name: getattr(obstore, name) for name in CALLS})
"""What `reached` replaces."""
