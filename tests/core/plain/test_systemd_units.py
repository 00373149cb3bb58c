"""The unit files, checked by systemd itself. Needs systemd-analyze: Debian's package systemd."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kzconsumer.cli.main import EXIT_CONFIG
from kzconsumer.status import web_server
from kzconsumer.status.status_server import MOST
from tests.support.pages import files_shown
from tests.support.programs import SYSTEMD_ANALYZE, need

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "systemd" / "kzconsumer@.service"
DROP_INS = sorted((ROOT / "systemd" / "drop-ins").glob("*.conf"))
USAGE = 2
"""The exit status of argparse."""


def analyze(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([need(SYSTEMD_ANALYZE), *words], capture_output=True, text=True, check=False, timeout=60)


def version() -> int:
    found = re.match(r"systemd (\d+)", analyze("--version").stdout)
    assert found is not None
    return int(found[1])


def installed(folder: Path, *drop_ins: Path) -> Path:
    """The units as an administrator installs them, with an existing command and one instance."""
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
    """An older systemd reports the keys it does not know; nothing else may be reported."""
    known = (
        r"Unknown key '(RestartSteps|RestartMaxDelaySec)' in section \[Service\], ignoring|Failed to parse service type"
    )
    return [line for line in output.splitlines() if not (version() < 254 and re.search(known, line))]


def test_the_units_pass_verification(tmp_path: Path) -> None:
    """Also on the oldest systemd that we support: without one line about an unknown key."""
    unit = installed(tmp_path)
    done = analyze("verify", "--man=no", unit, tmp_path / "kzconsumer.target")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("drop_in", DROP_INS, ids=lambda path: path.stem)
def test_each_drop_in_passes_verification(tmp_path: Path, drop_in: Path) -> None:
    done = analyze("verify", "--man=no", installed(tmp_path, drop_in))
    assert without_newer_keys(done.stdout + done.stderr) == []


def test_the_drop_in_for_credentials_passes_verification(tmp_path: Path) -> None:
    (shown,) = re.findall(r"(?m)^      (\[Service\]\n(?:      .*\n)+)", (ROOT / "systemd" / "README.md").read_text())
    (tmp_path / "secrets.conf").write_text(re.sub(r"(?m)^ +", "", shown))
    done = analyze("verify", "--man=no", installed(tmp_path, tmp_path / "secrets.conf"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_units_of_scheduled_jobs_pass_verification(tmp_path: Path) -> None:
    """As docs/scheduled-jobs.md prints them: two files in one block."""
    shown = files_shown("docs/scheduled-jobs.md", "ini")
    for name, text in shown.items():
        (tmp_path / name).write_text(text)
    done = analyze("verify", "--man=no", tmp_path / "nightly.service", tmp_path / "nightly.timer")
    assert list(shown) == ["nightly.service", "nightly.timer"]
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_there_are_drop_ins() -> None:
    assert {path.stem for path in DROP_INS} == {"spark", "systemd-254"}


@pytest.mark.parametrize("drop_in", [None, *DROP_INS], ids=lambda path: path.stem if path else "none")
def test_the_security_exposure_is_low(tmp_path: Path, drop_in: Path | None) -> None:
    """systemd's own measure, from 0 to 10; below 2.0 is promised."""
    unit = installed(tmp_path, *([drop_in] if drop_in else []))
    text = unit.with_name(UNIT.name).read_text() + (drop_in.read_text().partition("[Service]")[2] if drop_in else "")
    unit.with_name(UNIT.name).write_text(text.replace("[Install]\nWantedBy=kzconsumer.target\n", ""))
    done = analyze("security", "--offline=yes", "--threshold=19", unit.with_name(UNIT.name))
    (score,) = re.findall(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert float(score) < 2.0
    assert done.returncode == 0


def test_exit_statuses_that_prevent_a_restart() -> None:
    (prevented,) = re.findall(r"^RestartPreventExitStatus=(.*)$", UNIT.read_text(), re.MULTILINE)
    assert {int(number) for number in prevented.split()} == {USAGE, EXIT_CONFIG}


_DENIED = """
import ctypes, mmap
PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 1
if ctypes.CDLL(None).prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) != 0:
    print("no such request")
    raise SystemExit
try:
    mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
except PermissionError:
    print("denied")
import kzconsumer.service.daemon, kzconsumer.sinks.builtin
from kzconsumer.records.decode import decode
from tests.support.record_sets import CODECS, Record, record_batch
for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
    data = record_batch([Record(b"k", b"v" * 100)], base_offset=0, codec=codec)
    records = decode(memoryview(data), topic="t", partition=0, start=0).records
    assert records.columns()["value"].to_pylist() == [b"v" * 100]
print("decoded")
"""


def test_a_member_needs_no_memory_that_is_writable_and_executable() -> None:
    """The kernel's own bit, which newer systemd sets, too. Java needs such memory."""
    assert "\nMemoryDenyWriteExecute=yes\n" in UNIT.read_text()
    assert "\nMemoryDenyWriteExecute=no\n" in (ROOT / "systemd" / "drop-ins" / "spark.conf").read_text()
    done = subprocess.run([sys.executable, "-c", _DENIED], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.stdout == "no such request\n":
        pytest.skip("needs Linux 6.3")
    assert (done.returncode, done.stdout) == (0, "denied\ndecoded\n"), done.stderr


@pytest.mark.parametrize("file", [UNIT, ROOT / "docs" / "scheduled-jobs.md"], ids=lambda path: path.name)
def test_the_descriptor_limit_leaves_room_beside_status_clients(file: Path) -> None:
    (limit,) = re.findall(r"^LimitNOFILE=(\d+)$", file.read_text(), re.MULTILINE)
    assert int(limit) >= 100 * (web_server.MOST + MOST)
