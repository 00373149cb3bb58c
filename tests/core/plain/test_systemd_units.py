"""The unit files, as systemd itself reads and judges them. Needs systemd-analyze: Debian's package systemd."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kzconsumer.cli.main import EXIT_CONFIG
from kzconsumer.status import connections, events
from tests.support.programs import SYSTEMD_ANALYZE, need

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "systemd" / "kzconsumer@.service"
DROP_INS = sorted((ROOT / "systemd" / "drop-ins").glob("*.conf"))
USAGE = 2
"""What argparse exits with."""


def analyze(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([need(SYSTEMD_ANALYZE), *words], capture_output=True, text=True, check=False, timeout=60)


def version() -> int:
    found = re.match(r"systemd (\d+)", analyze("--version").stdout)
    assert found is not None
    return int(found[1])


def installed(folder: Path, *drop_ins: Path) -> Path:
    """The units as an administrator installs them, with a command that is there, and one instance."""
    command = folder / "kzconsumer"
    command.symlink_to(sys.executable)
    text = UNIT.read_text()
    assert text.count("=/usr/bin/kzconsumer ") == 1
    (folder / UNIT.name).write_text(text.replace("=/usr/bin/kzconsumer ", f"={command} "))
    shutil.copy(ROOT / "systemd" / "kzconsumer.target", folder)
    for drop_in in drop_ins:
        above = folder / "kzconsumer@.service.d"
        above.mkdir(exist_ok=True)
        shutil.copy(drop_in, above)
    return folder / "kzconsumer@orders.service"


def without_newer_keys(output: str) -> list[str]:
    """An older systemd says which keys it does not know; nothing else may be said."""
    known = (
        r"Unknown key '(RestartSteps|RestartMaxDelaySec)' in section \[Service\], ignoring|Failed to parse service type"
    )
    return [line for line in output.splitlines() if not (version() < 254 and re.search(known, line))]


def test_the_units_are_without_fault(tmp_path: Path) -> None:
    """On the oldest systemd we promise to support, too: not one line about an unknown key."""
    unit = installed(tmp_path)
    done = analyze("verify", "--man=no", unit, tmp_path / "kzconsumer.target")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("drop_in", DROP_INS, ids=lambda path: path.stem)
def test_so_is_each_drop_in(tmp_path: Path, drop_in: Path) -> None:
    done = analyze("verify", "--man=no", installed(tmp_path, drop_in))
    assert without_newer_keys(done.stdout + done.stderr) == []


def test_so_is_the_one_that_hands_over_secrets(tmp_path: Path) -> None:
    (shown,) = re.findall(r"(?m)^      (\[Service\]\n(?:      .*\n)+)", (ROOT / "systemd" / "README.md").read_text())
    (tmp_path / "secrets.conf").write_text(re.sub(r"(?m)^ +", "", shown))
    done = analyze("verify", "--man=no", installed(tmp_path, tmp_path / "secrets.conf"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_so_are_those_of_scheduled_jobs(tmp_path: Path) -> None:
    """As docs/scheduled-jobs.md prints them: two files in one block."""
    (shown,) = re.findall(
        r"^```ini\n(.*?)^```$", (ROOT / "docs/scheduled-jobs.md").read_text(), re.DOTALL | re.MULTILINE
    )
    parts = re.split(r"^# /etc/systemd/system/(\S+)\n", shown, flags=re.MULTILINE)[1:]
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        (tmp_path / name).write_text(text)
    done = analyze("verify", "--man=no", tmp_path / "nightly.service", tmp_path / "nightly.timer")
    assert parts[::2] == ["nightly.service", "nightly.timer"]
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_there_are_drop_ins() -> None:
    assert {path.stem for path in DROP_INS} == {"spark", "systemd-254"}


@pytest.mark.parametrize("drop_in", [None, *DROP_INS], ids=lambda path: path.stem if path else "none")
def test_the_exposure_is_low(tmp_path: Path, drop_in: Path | None) -> None:
    """systemd's own measure, from 0 to 10; below 2.0 is promised."""
    unit = installed(tmp_path, *([drop_in] if drop_in else []))
    text = unit.with_name(UNIT.name).read_text() + (drop_in.read_text().partition("[Service]")[2] if drop_in else "")
    unit.with_name(UNIT.name).write_text(text.replace("[Install]\nWantedBy=kzconsumer.target\n", ""))
    done = analyze("security", "--offline=yes", "--threshold=19", unit.with_name(UNIT.name))
    (score,) = re.findall(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert float(score) < 2.0
    assert done.returncode == 0


def test_what_is_not_worth_a_restart() -> None:
    (prevented,) = re.findall(r"^RestartPreventExitStatus=(.*)$", UNIT.read_text(), re.MULTILINE)
    assert {int(number) for number in prevented.split()} == {USAGE, EXIT_CONFIG}


def test_records_can_be_decoded_quickly() -> None:
    """numba writes machine code into memory, and keeps it in a folder: neither may be forbidden."""
    text = UNIT.read_text()
    assert not re.search(r"^MemoryDenyWriteExecute=", text, re.MULTILINE)
    assert "\nCacheDirectory=kzconsumer/%i\n" in text
    assert "\nEnvironment=NUMBA_CACHE_DIR=%C/kzconsumer/%i\n" in text


@pytest.mark.parametrize("file", [UNIT, ROOT / "docs" / "scheduled-jobs.md"], ids=lambda path: path.name)
def test_there_are_descriptors_for_more_than_status_clients(file: Path) -> None:
    (limit,) = re.findall(r"^LimitNOFILE=(\d+)$", file.read_text(), re.MULTILINE)
    assert int(limit) >= 100 * (connections.MOST + events.MOST)
