"""What the wheel has beside the package: the manual page and the shells' completion, made from the parsers.

Hatchling calls it for a wheel. Everything lands below the environment's `share/`, where man and the shells look.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLACES = {
    "bash": "share/bash-completion/completions/kzconsumer",
    "fish": "share/fish/vendor_completions.d/kzconsumer.fish",
    "zsh": "share/zsh/site-functions/_kzconsumer",
}
MANUAL = "share/man/man1/kzconsumer.1"


class SharedData(BuildHookInterface[Any]):
    """Writes the files into a folder that lives as long as the build."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        from kzconsumer.cli import completion, manual

        self._made = TemporaryDirectory()
        texts = {MANUAL: manual.page(), **{place: completion.script(shell) for shell, place in PLACES.items()}}
        for place, text in texts.items():
            made = Path(self._made.name, place)
            made.parent.mkdir(parents=True)
            made.write_text(f"{text}\n")
            build_data["shared_data"][str(made)] = place

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._made.cleanup()
