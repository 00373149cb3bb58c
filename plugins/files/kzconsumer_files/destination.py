"""A target of files as the member sees it: whose it is, which one it is, and which ranges it has. All calls block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from kzconsumer.model import RangeIdentity
from kzconsumer_files.names import Owner, fingerprint
from kzconsumer_files.publication import KeptAside
from kzconsumer_files.targets import target_at

_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class TargetDestination:
    """Files of one format in one layout.

    The fingerprint is valid once `claim` or `find` has returned. It contains the id of the directory instead of its
    path: members may mount one directory under different names, and two machines may have directories of one name.
    """

    remembers = True

    def __init__(
        self, path: str, kind: str, partition_by: tuple[str, ...] = (), store_options: Mapping[str, str] = _NONE
    ) -> None:
        self.target = target_at(path, store_options)
        self._kind = kind
        self._partition_by = partition_by
        self._id = ""

    @property
    def fingerprint(self) -> str:
        return fingerprint("files", self._id, self._kind, self._partition_by)

    def claim(self, owner: Owner) -> None:
        """Make the directory if need be, and mark it as `owner`'s. Raises NotOurs, OSError."""
        self._id = self.target.claim(owner)
        self.target.settle_layout(self._kind, self._partition_by)

    def find(self, owner: Owner) -> None:
        """As `claim`, but nothing is made or marked. Raises NotOurs, also if there is no target; OSError."""
        self._id = self.target.find(owner)
        self.target.require_layout(self._kind, self._partition_by)

    def has(self, ranges: Sequence[RangeIdentity]) -> list[RangeIdentity]:
        """Those that are published. Raises OSError."""
        missing = set(self.target.missing(ranges))
        return [each for each in ranges if each not in missing and self._is_published(each)]

    def set_aside(self, part: RangeIdentity, records: int) -> bool:
        """Keep the range from ever being published; False if it is published. Raises OSError."""
        return self.target.set_aside(part, records)

    def _is_published(self, part: RangeIdentity) -> bool:
        try:
            self.target.require_published(part)
        except KeptAside:
            return False
        return True
