"""Distributions with plugins, as an installer would leave them in a directory."""

from __future__ import annotations

from pathlib import Path


def install(folder: Path, distribution: str, group: str, entry_points: str) -> None:
    """Put a distribution's metadata where an installer would put it."""
    metadata = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{entry_points}\n")
