"""The parts of a nightly run: programs of their own, and the tests that do more if `KZCONSUMER_NIGHTLY` is set."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PROCESSES = 2
ROOT = Path(__file__).parents[2]
VERSIONS = (
    "tests/core/original",
    "tests/sandbox/servers/test_sandbox_servers.py",
    "tests/sandbox/servers/test_sandbox_kraft.py",
    "tests/core/servers/test_broker_connection.py",
    "tests/core/servers/test_consume.py",
    "tests/core/servers/test_corrupt_batches.py",
    "tests/core/servers/test_group_state.py",
    "tests/core/servers/test_kraft.py",
    "tests/core/servers/test_log_formats.py",
    "tests/core/servers/test_quotas.py",
    "tests/core/servers/test_records_java.py",
    "tests/tools/original/test_exporter.py",
    "tests/tools/original/test_kraft_migration.py",
    "tests/core/servers/test_transactions.py",
    "tests/tools/servers/test_admin_controllers.py",
    "tests/tools/servers/test_groups_move.py",
    "tests/spark/spark/test_kraft_spark.py",
    "tests/spark/spark/test_source_versions.py",
    "tests/spark/spark/test_spark_versions.py",
)


@dataclass(frozen=True)
class Part:
    """One line of the table."""

    name: str
    command: tuple[str, ...]
    minutes: float
    """It has failed if it takes longer. All parts together stay below five and a half hours."""
    seed: int | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


def parts(seed: int) -> list[Part]:
    """In their order; the quickest to fail comes first."""
    return [
        Part("simulate", _program("simulate", "--minutes", "20", "--first", str(seed)), 23, seed),
        Part("fuzz", _program("fuzz", "--seed", str(seed), "--jobs", str(PROCESSES), "--guided", "60"), 23, seed),
        Part("broker versions", _tests(seed, VERSIONS), 20, seed, _nightly(seed)),
        Part("plain", _tests(seed, plain_at_night(), "-m", "only_nightly"), 30, seed, _nightly(seed)),
        Part("chaos", _tests(seed, servers_at_night()), 120, seed, _nightly(seed)),
        Part("soak", _program("soak", "--minutes", "20", "--every", "25", "--seed", str(seed)), 25, seed),
        Part("mutants", _program("mutants", "--jobs", str(PROCESSES)), 45),
        Part("audit-tests", _program("audit", "--seed", str(seed), "--sample", "40"), 28, seed),
    ]


def plain_at_night() -> list[str]:
    """Plain files of which some tests run at night alone: these. What the others do at night takes hours."""
    return [file for file, names in _files_at_night().items() if "/plain/" in file and "only_nightly" in names]


def servers_at_night() -> list[str]:
    """Files that need servers and do more at night, but for those of the part "broker versions"."""
    return [file for file in _files_at_night() if "/plain/" not in file and not file.startswith(VERSIONS)]


def _files_at_night() -> dict[str, str]:
    """Files of tests, and what each imports from `tests.support.extent`."""
    found = {}
    for file in sorted(ROOT.glob("tests/*/*/test_*.py")):
        if names := re.search("^from tests.support.extent import (.*)$", file.read_text(), re.MULTILINE):
            found[str(file.relative_to(ROOT))] = names[1]
    return found


def _program(name: str, *options: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"tests.{name}", *options)


def _tests(seed: int, files: Sequence[str], *options: str) -> tuple[str, ...]:
    spread = ("-n", str(PROCESSES), "--dist", "loadfile", "--no-loadscope-reorder")
    seeded = (f"--hypothesis-seed={seed}", "-o", "timeout=7200")
    return (sys.executable, "-m", "pytest", *spread, *seeded, *options, *files)


def _nightly(seed: int) -> dict[str, str]:
    return {**os.environ, "KZCONSUMER_NIGHTLY": str(seed)}
