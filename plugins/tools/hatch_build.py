"""Adds the manual page and the shells' completion, made from the parsers, to the wheel.

They land below the environment's `share/`, where man and the shells look. The parsers need the core's modules: a source
distribution is made in a checkout of the repository and carries the files, a wheel takes them from there.
"""

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

GROUP = "kzconsumer.commands"
MADE = "share"
COMPLETION = {
    "bash": "bash-completion/completions/kzconsumer",
    "fish": "fish/vendor_completions.d/kzconsumer.fish",
    "zsh": "zsh/site-functions/_kzconsumer",
}
MANUAL = "man/man1/kzconsumer.1"


class SharedData(BuildHookInterface[Any]):
    """Writes the files into a folder that lives as long as the build."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._folder = TemporaryDirectory()
        if version == "editable":
            return
        for place, file in self._files():
            if self.target_name == "sdist":
                build_data["force_include"][str(file)] = f"{MADE}/{place}"
            else:
                build_data["shared_data"][str(file)] = f"share/{place}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self._folder.cleanup()

    def _files(self) -> list[tuple[str, Path]]:
        made = Path(self.root, MADE)
        if not made.is_dir():
            made = Path(self._folder.name)
            for place, text in self._texts().items():
                path = made / place
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"{text}\n")
        return [(place, made / place) for place in (MANUAL, *COMPLETION.values())]

    def _texts(self) -> dict[str, str]:
        """The files' contents: the commands of all distributions of the repository, installed or not."""
        repository = Path(self.root).parents[1]
        projects = sorted(repository.glob("plugins/*/pyproject.toml"))
        sys.path[:0] = [str(repository), *(str(project.parent) for project in projects)]
        from kzconsumer_tools.commands import completion, manual

        entries = {
            name: value
            for project in projects
            for name, value in tomllib.loads(project.read_text())["project"]["entry-points"].get(GROUP, {}).items()
        }
        commands = [EntryPoint(name, value, GROUP).load() for name, value in sorted(entries.items())]
        scripts = {place: completion.script(shell, commands) for shell, place in COMPLETION.items()}
        return {MANUAL: manual.page(commands), **scripts}
