"""The parts of a nightly run: programs of their own, and the tests that do more if `KZCONSUMER_NIGHTLY` is set."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

PROCESSES = 2
CHAOS = (
    "tests/core/servers/test_stop.py",
    "tests/files/servers/test_parquet_sink.py",
    "tests/core/ensemble/test_networks.py",
    "tests/spark/spark/test_chaos_spark.py",
    "tests/spark/spark/test_chaos_source.py",
    "tests/spark/spark/test_chaos_cluster.py",
    "tests/spark/spark/test_replay_after_kill.py",
    "tests/spark/spark/test_spark_cluster.py",
    "tests/spark/spark/test_spark_contract.py",
    "tests/spark/spark/test_spark_sink.py",
    "tests/spark/spark/test_group_source.py",
    "tests/spark/spark/test_executors_fetch.py",
    "tests/spark/spark/test_executors_outage.py",
    "tests/spark/spark/test_iceberg_catalogs.py",
    "tests/spark/spark/test_spark_reads_tables.py",
    "tests/spark/spark/test_mixed_group.py",
    "tests/spark/spark/test_value_matrix.py",
    "tests/spark/spark/test_one_in_a_million.py",
    "tests/spark/servers/test_source_changes.py",
    "tests/spark/spark/test_source_secrets.py",
    "tests/spark/spark/test_docs_functions.py",
    "tests/spark/spark/test_source_tokens.py",
    "tests/spark/spark/test_spark_function_steps.py",
    "tests/spark/spark/test_spark_proof.py",
    "tests/core/spark/test_tutorial.py",
    "tests/sandbox/spark/test_demo.py",
    "tests/tools/spark/test_sink_verify.py",
)
FUZZ_FINDS = (
    "tests/core/plain/test_record_fuzz.py::test_control_libfuzzer_finds_what_is_planted_within_a_minute",
    "tests/core/plain/test_record_fuzz.py::test_control_sanitizers_find_what_is_planted",
)
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
    """It has failed if it takes longer. All parts together stay below three and a half hours."""
    seed: int | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


def parts(seed: int) -> list[Part]:
    """In their order; the quickest to fail comes first."""
    return [
        Part("simulate", _program("simulate", "--minutes", "20", "--first", str(seed)), 23, seed),
        Part("fuzz", _program("fuzz", "--seed", str(seed), "--jobs", str(PROCESSES), "--guided", "60"), 23, seed),
        Part("fuzz finds", _tests(seed, FUZZ_FINDS), 6, seed, _nightly(seed)),
        Part("broker versions", _tests(seed, VERSIONS), 20, seed, _nightly(seed)),
        Part("chaos", _tests(seed, CHAOS), 40, seed, _nightly(seed)),
        Part("soak", _program("soak", "--minutes", "20", "--every", "25", "--seed", str(seed)), 25, seed),
        Part("mutants", _program("mutants", "--jobs", str(PROCESSES)), 45),
        Part("audit-tests", _program("audit", "--seed", str(seed), "--sample", "40"), 28, seed),
    ]


def _program(name: str, *options: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"tests.{name}", *options)


def _tests(seed: int, files: tuple[str, ...]) -> tuple[str, ...]:
    spread = ("-n", str(PROCESSES), "--dist", "loadscope", "--no-loadscope-reorder")
    return (sys.executable, "-m", "pytest", *spread, f"--hypothesis-seed={seed}", "-o", "timeout=7200", *files)


def _nightly(seed: int) -> dict[str, str]:
    return {**os.environ, "KZCONSUMER_NIGHTLY": str(seed)}
