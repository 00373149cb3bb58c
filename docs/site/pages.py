"""mkdocs hook: pages of the site that are not files of docs/, generated at every build.

READMEs stay where they are in the tree. Links between pages are rewritten to the pages of the site, links to any other
file to a copy of it.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import reference

ROOT = Path(__file__).parents[2]
READMES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "config/group.reference.toml": "settings.md",
    "kzconsumer/README.md": "design.md",
    "plugins/files/README.md": "files-sinks.md",
    "plugins/spark/README.md": "spark-sink.md",
    "plugins/sticky/README.md": "sticky-assignor.md",
    "systemd/README.md": "systemd.md",
}
MADE = {
    "settings.md": reference.settings,
    "command-line.md": reference.command_line,
    "json.md": reference.json_results,
    "python-api.md": reference.python_api,
    "plugin-api.md": reference.plugin_api,
    "log-events.md": reference.log_events,
}
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)((?:#[^)\s]*)?)(?=\))")
_FENCE = re.compile(r"^(```.*?^```)$", re.DOTALL | re.MULTILINE)


def on_config(config: MkDocsConfig) -> None:
    """Adds pages of docs/ that are missing in the navigation to its section "How to"."""
    named = str(config.nav)
    more = [each.name for each in sorted((ROOT / "docs").glob("*.md")) if f"'{each.name}'" not in named]
    for section in config.nav or []:
        if "How to" in section:
            section["How to"] += more


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, name in READMES.items():
        if name not in MADE:
            files.append(File.generated(config, name, content=(ROOT / source).read_text()))
    for name, make in MADE.items():
        files.append(File.generated(config, name, content=make()))
    for path in sorted(_linked_elsewhere()):
        if (ROOT / path).is_dir():
            inside = sorted(each.name for each in (ROOT / path).iterdir() if each.is_file())
            files.append(File.generated(config, _copy(path), content=_listing(path, inside)))
            copied = [f"{path}/{name}" for name in inside]
        else:
            copied = [path]
        for each in copied:
            if files.get_file_from_path(_copy(each)) is None:
                files.append(File.generated(config, _copy(each), abs_src_path=str(ROOT / each)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    name = page.file.src_uri
    if name.startswith("source/"):
        return markdown
    source = next((path for path, to in READMES.items() if to == name and name not in MADE), f"docs/{name}")

    def target(match: re.Match[str]) -> str:
        path = os.path.normpath(Path(source).parent / match[1])
        found = READMES.get(path) or _within_docs(path) or _copy(path)
        return os.path.relpath(found, Path(name).parent) + match[2]

    parts = _FENCE.split(markdown)
    parts[::2] = [_LINK.sub(target, part) for part in parts[::2]]
    return "".join(parts)


def _linked_elsewhere() -> set[str]:
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "internals").glob("*.md")]
    pages += [ROOT / path for path in READMES if path.endswith(".md")]
    found = set()
    for page in pages:
        for target, _ in _LINK.findall("".join(_FENCE.split(page.read_text())[::2])):
            path = os.path.relpath(page.parent / target, ROOT)
            if path not in READMES and not _within_docs(path) and (ROOT / path).exists():
                found.add(path)
    return found


def _within_docs(path: str) -> str | None:
    """The page or picture; programs are shown as text, as are other files of the tree."""
    return path.removeprefix("docs/") if path.startswith("docs/") and not path.startswith("docs/examples/") else None


def _copy(path: str) -> str:
    """The copy of a file, as text that browsers display, or the page that lists a directory."""
    return f"source/{path}.md" if (ROOT / path).is_dir() else f"source/{path}.txt"


def _listing(path: str, names: list[str]) -> str:
    folder = path.rpartition("/")[2]
    return f"# {path}\n\n" + "\n".join(f"- [{name}]({folder}/{name}.txt)" for name in names) + "\n"
