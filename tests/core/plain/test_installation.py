"""Errors name a command that installs what is missing from where kzconsumer was installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kzconsumer.installation import pip_install

CLONE, WHEEL = "file:///home/me/my%20clone", "file:///srv/wheels/kzconsumer-0.1.0-cp311-abi3-manylinux_2_17_x86_64.whl"


@pytest.mark.parametrize(
    ("source", "extra", "command"),
    [
        (None, "spark", 'pip install "kzconsumer[spark]"'),
        ("not JSON", "spark", 'pip install "kzconsumer[spark]"'),
        ({"url": "https://git.example.org/kz", "vcs_info": {}}, "spark", 'pip install "kzconsumer[spark]"'),
        ({"url": CLONE}, "status", 'pip install "/home/me/my clone[status]"'),
        ({"url": CLONE}, "tools", "pip install '/home/me/my clone/plugins/tools'"),
        ({"url": "file:///src"}, "spark", "pip install /src/plugins/files /src/plugins/spark"),
        ({"url": WHEEL}, "spark", 'pip install --find-links /srv/wheels "kzconsumer[spark]"'),
    ],
)
def test_the_command_fits_the_source(
    source: object, extra: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "kzconsumer-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kzconsumer\nVersion: 0.1.0\n")
    if source is not None:
        (info / "direct_url.json").write_text(source if isinstance(source, str) else json.dumps(source))
    monkeypatch.syspath_prepend(tmp_path)
    assert pip_install(extra) == command


def test_of_another_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "kzconsumer_spark-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kzconsumer-spark\nVersion: 0.1.0\n")
    (info / "direct_url.json").write_text('{"url": "file:///src/plugins/spark", "dir_info": {}}')
    monkeypatch.syspath_prepend(tmp_path)
    assert pip_install("delta", "kzconsumer-spark") == 'pip install "/src/plugins/spark[delta]"'
    assert pip_install("delta", "not-installed-at-all") == 'pip install "not-installed-at-all[delta]"'
