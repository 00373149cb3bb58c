"""How more of kzconsumer is installed, from where this was: an index, a clone, or a directory of wheels."""

from __future__ import annotations

import shlex
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

# The directories below plugins/ of a clone, by the extra that brings the distributions in them.
_FOLDERS = {
    "files": ("files",),
    "sandbox": ("sandbox",),
    "spark": ("files", "spark"),
    "sticky": ("sticky",),
    "tools": ("tools",),
}


class _DirectUrl(msgspec.Struct):
    """What pip leaves of an installation that was no name in an index (PEP 610)."""

    url: str


def pip_install(extra: str, distribution: str = "kzconsumer") -> str:
    """The command that installs an extra of an installed distribution, for an error.

    A clone is not an index: there, the extras that are other distributions of ours are directories.
    """
    source = _source(distribution)
    if source is None:
        return f'pip install "{distribution}[{extra}]"'
    if source.suffix in (".whl", ".gz"):
        return f'pip install --find-links {shlex.quote(str(source.parent))} "{distribution}[{extra}]"'
    if distribution == "kzconsumer" and extra in _FOLDERS:
        folders = (shlex.quote(str(source / "plugins" / each)) for each in _FOLDERS[extra])
        return f"pip install {' '.join(folders)}"
    return f'pip install "{source}[{extra}]"'


def _source(distribution: str) -> Path | None:
    """The clone's directory or the file that it was installed from; None for an index."""
    try:
        text = metadata.distribution(distribution).read_text("direct_url.json")
        address = urlsplit(msgspec.json.decode(text, type=_DirectUrl).url) if text else None
    except (metadata.PackageNotFoundError, msgspec.DecodeError, ValueError):
        return None
    return Path(unquote(address.path)) if address is not None and address.scheme == "file" else None
