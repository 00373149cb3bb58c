"""The planted bugs: each file `<area>.toml` of this folder lists those of one area."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One planted bug: `before` occurs exactly once in `file` and is replaced by `after`."""

    id: str
    file: str
    what: str
    before: str
    after: str
    tests: list[str]
    """Node ids; the fewest that must catch it."""
    equivalent: str | None = None
    """Why no test can distinguish it from the original code. Such a mutant must survive."""

    def plant(self, source: str) -> str:
        if (found := source.count(self.before)) != 1:
            raise ValueError(f"{self.id}: `before` occurs {found} times in {self.file}, expected once")
        return source.replace(self.before, self.after)


class _Area(msgspec.Struct, forbid_unknown_fields=True):
    mutant: list[Mutant]


def areas(folder: Path = FOLDER) -> dict[str, list[Mutant]]:
    """All mutants by area."""
    return {file.stem: _read(file).mutant for file in sorted(folder.glob("*.toml"))}


def every(by_area: dict[str, list[Mutant]]) -> Iterator[Mutant]:
    for mutants in by_area.values():
        yield from mutants


def _read(file: Path) -> _Area:
    try:
        return msgspec.toml.decode(file.read_bytes(), type=_Area)
    except msgspec.DecodeError as error:
        raise ValueError(f"{file.name}: {error}") from error
