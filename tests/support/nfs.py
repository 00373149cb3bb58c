"""A client of NFS that remembers for a while that a name did not exist.

Linux keeps a negative look-up until the attributes of the directory are asked for again, after up to a minute. An
operation of the client's own that makes or removes a name there shows that the directory has changed meanwhile, and
ends that (`nfs_force_lookup_revalidate`). Here the minute never ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


class NfsClient:
    """Mounts `root`; what happens outside of `mounted` is done by another client."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.answers = 0
        """How often it has said that a name does not exist that does."""
        self._missing: set[Path] = set()

    @contextmanager
    def mounted(self) -> Iterator[None]:
        def look_up(call: Callable[..., Any]) -> Callable[..., Any]:
            def looked(path: Any, *arguments: Any, **options: Any) -> Any:
                if isinstance(path, int) or not (name := Path(path)).is_relative_to(self.root):
                    return call(path, *arguments, **options)
                if name in self._missing:
                    self.answers += os.path.lexists(name)
                    raise FileNotFoundError(2, "No such file or directory", str(name))
                try:
                    return call(path, *arguments, **options)
                except FileNotFoundError:
                    self._missing.add(name)
                    raise

            return looked

        def change(call: Callable[..., Any], place: int) -> Callable[..., Any]:
            def changed(*arguments: Any, **options: Any) -> Any:
                directory = Path(arguments[place]).parent
                self._missing = {each for each in self._missing if each.parent != directory}
                return call(*arguments, **options)

            return changed

        def opened(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
            if flags & os.O_CREAT:
                return int(change(plain_open, 0)(path, flags, *arguments, **options))
            return int(look_up(plain_open)(path, flags, *arguments, **options))

        plain_open = os.open
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "stat", look_up(os.stat))
            patch.setattr(os, "open", opened)
            for name, place in (("link", 1), ("rename", 1), ("unlink", 0), ("mkdir", 0)):
                patch.setattr(os, name, change(getattr(os, name), place))
            yield
