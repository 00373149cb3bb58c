"""Fixtures for every test, hypothesis' profiles, and the order in which several processes take the files.

The servers are real. Each is started when a test needs it, and ends with the file, or with the chain of files; one
ZooKeeper and one broker stay until the end. Without Java or the jars, tests that need servers fail.

What only servers need is imported by their fixtures: a plain test needs none of it, and does not wait for it.
"""

from __future__ import annotations

import atexit
import copy
import gc
import logging
import os
import re
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NoReturn, TextIO

import pytest
import structlog
from _pytest.logging import LogCaptureHandler
from hypothesis import HealthCheck, settings
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]
from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

from kzconsumer.logs.logger import _FACTS
from tests.support import files_in_turn
from tests.support.extent import NIGHTLY, extent
from tests.support.programs import missing, need

if TYPE_CHECKING:
    from kzconsumer_sandbox.servers.kafka_servers import Cluster, ZooKeeperServer
    from tests.support.object_store import AmazonStore
    from tests.support.postgres import Postgres
    from tests.support.secured import Secured
    from tests.support.servers import Servers

pytest_plugins = ["tests.support.ensemble_fixtures", "tests.support.spark_fixtures"]

QUIET = [HealthCheck.too_slow]
settings.register_profile("fast", max_examples=100, deadline=None, derandomize=True, suppress_health_check=QUIET)
settings.register_profile("quick", settings.get_profile("fast"), max_examples=10)
settings.register_profile("nightly", max_examples=1000, deadline=None, print_blob=True, suppress_health_check=QUIET)
settings.register_profile("thorough", max_examples=5000, deadline=None, suppress_health_check=QUIET)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", extent("fast", "nightly")))

SERVERS: pytest.StashKey[Servers] = pytest.StashKey()

# A shell without job control starts a background process with SIGINT ignored, which the programs that tests start and
# interrupt would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

# py4j reports an object whose Java has ended, from a collection of garbage, with a traceback. A traceback is formatted
# by parsing Python, and before CPython 3.13 a parse that such a collection interrupts fails (SystemError, gh-106905).
logging.getLogger("py4j.java_gateway").setLevel(logging.CRITICAL)

# Files that a process runs one after the other, in the order in which the chains begin: the longest first. A Spark that
# starts takes every processor for ten seconds, so not all processes start one at once: there are chains of files whose
# sinks start a Spark, of files whose daemons do, and of files that share the fixtures `spark` and `standalone`.
CHAINS = {
    "shared Sparks": (
        "tests/spark/spark/test_spark_columns.py",
        "tests/spark/spark/test_spark_destinations.py",
        "tests/spark/spark/test_jdbc_destination.py",
        "tests/spark/spark/test_tasks_write.py",
        "tests/spark/spark/test_spark_query.py",
        "tests/spark/spark/test_spark_cluster.py",
        "tests/spark/spark/test_executors_fetch.py",
        "tests/spark/spark/test_group_source.py",
        "tests/spark/spark/test_kraft_spark.py",
        "tests/spark/spark/test_source_tokens.py",
        "tests/spark/spark/test_source_versions.py",
        "tests/spark/spark/test_batch_source.py",
        "tests/spark/spark/test_notebook.py",
        "tests/spark/spark/test_json_values.py",
        "tests/spark/spark/test_poisoned_records.py",
        "tests/spark/spark/test_poisoned_rows.py",
        "tests/spark/spark/test_value_matrix.py",
    ),
    "sinks with Spark": (
        "tests/spark/spark/test_spark_sink.py",
        "tests/spark/spark/test_spark_contract.py",
        "tests/spark/spark/test_spark_function_steps.py",
        "tests/spark/spark/test_spark_proof.py",
    ),
    # Three ZooKeeper servers and their broker, in one process.
    "ensemble": (
        "tests/core/ensemble/test_networks.py",
        "tests/core/ensemble/test_lease.py",
    ),
    # One Chromium.
    "browser": (
        "tests/core/browser/test_degraded_page.py",
        "tests/core/browser/test_status_page.py",
        "tests/core/browser/test_page_texts.py",
        "tests/core/browser/test_many_partitions.py",
        "tests/core/browser/test_page_tables.py",
    ),
    # A ZooKeeper and a broker that tests may stop, which `mortal` starts.
    "mortal": ("tests/core/servers/test_zookeeper_faults.py", "tests/core/servers/test_stop.py"),
    # One cluster without ZooKeeper.
    "KRaft": (
        "tests/tools/servers/test_kraft_groups.py",
        "tests/tools/servers/test_kraft_commands.py",
        "tests/core/servers/test_kraft.py",
        "tests/spark/servers/test_kafka_registry.py",
        "tests/spark/servers/test_source_changes.py",
    ),
    # One cluster with TLS and passwords.
    "secured": (
        "tests/tools/servers/test_mistakes.py",
        "tests/tools/servers/test_groups_move.py",
        "tests/core/servers/test_broker_security.py",
        "tests/core/servers/test_oauth_bearer.py",
        "tests/core/servers/test_docs_keys.py",
        "tests/spark/servers/test_executor_errors.py",
        "tests/spark/servers/test_task_rejections.py",
    ),
    # Brokers of every version, which are started once.
    "old brokers": (
        "tests/tools/servers/test_offset_commands.py",
        "tests/tools/servers/test_lag_command.py",
        "tests/tools/servers/test_groups.py",
        "tests/tools/servers/test_console.py",
        "tests/tools/servers/test_cluster_commands.py",
        "tests/tools/servers/test_original_keys.py",
        "tests/core/servers/test_consume.py",
        "tests/core/servers/test_transactions.py",
        "tests/core/servers/test_log_formats.py",
        "tests/core/servers/test_log_offsets.py",
        "tests/core/servers/test_looking.py",
        "tests/core/servers/test_offset_storage.py",
        "tests/core/servers/test_broker_connection.py",
        "tests/core/servers/test_corrupt_batches.py",
        "tests/core/servers/test_simulated_broker.py",
        "tests/sandbox/servers/test_sandbox_servers.py",
    ),
    # They wait most of their time, and would begin last.
    "tools": (
        "tests/core/spark/test_tutorial.py",
        "tests/tools/servers/test_alerts_of_servers.py",
        "tests/tools/spark/test_sink_verify.py",
    ),
    "daemons with Spark": (
        "tests/sandbox/spark/test_demo.py",
        "tests/spark/spark/test_replay_after_kill.py",
        "tests/tools/spark/test_sink_try.py",
        "tests/spark/spark/test_spark_versions.py",
        "tests/spark/spark/test_pyspark_versions.py",
        "tests/spark/spark/test_spark_kubernetes.py",
        "tests/spark/spark/test_spark_yarn.py",
    ),
}
WAITING_BEGUN = 0.8
"""Part of the plain files that have begun when the last one has that needs servers."""
CHAIN_OF = {file: chain for chain, files in CHAINS.items() for file in files}
ORDER = {file: number for number, file in enumerate(CHAIN_OF)}


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def chain_of(nodeid: str) -> str:
    """The chain of the test's file; a file of no chain is one by itself."""
    return CHAIN_OF.get(file_of(nodeid), file_of(nodeid))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(files_in_turn)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Modules and tests stay to the end: no search for garbage looks at them, neither now nor later."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()


# What is frozen would outlive the interpreter: CPython 3.14 aborts when DuckDB's module is freed so late. Not before
# pytest's last search for garbage, which would look at all of it.
atexit.register(gc.unfreeze)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Chains begin first, in their order: they take longest. Of the other files those that need servers, and wait most
    of the time, alternate with plain ones, which have the processors meanwhile; at the end there are plain ones only.
    """
    for item in items:
        if NIGHTLY is None and item.get_closest_marker("only_nightly"):
            item.add_marker(pytest.mark.skip(reason="make thorough: another test proves the same in make test"))
    others = [file for file in dict.fromkeys(file_of(item.nodeid) for item in items) if file not in ORDER]
    plain = [file for file in others if "/plain/" in file]
    waiting = [file for file in others if "/plain/" not in file]
    begins = {file: number / len(plain) for number, file in enumerate(plain)}
    begins |= {file: WAITING_BEGUN * number / len(waiting) for number, file in enumerate(waiting)}
    items.sort(key=lambda item: (ORDER.get(file := file_of(item.nodeid), len(ORDER)), begins.get(file, 0.0)))


class FilesTogether(LoadScopeScheduling):  # type: ignore[misc]
    """With several processes: the tests of a file run in one of them, and so do those of a chain.

    A process is given the next file when it begins the one before: it has to know what follows a test.
    """

    ended = 0

    def _split_scope(self, nodeid: str) -> str:
        return chain_of(nodeid)

    def _reschedule(self, node: WorkerController) -> None:
        while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)
        if not self.workqueue:
            super()._reschedule(node)

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        super().mark_test_complete(node, item_index, duration)
        self.ended += 1
        if files_in_turn.in_turn(self.config):
            files_in_turn.show_progress(self.config, self.ended / len(self.collection))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FilesTogether | None:
    return FilesTogether(config, log) if config.getoption("dist") in ("loadfile", "loadscope") else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture: no server is started for a test that is skipped."""
    for mark in item.iter_markers("needs"):
        for program in mark.args:
            need(program)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """After all fixtures of the last test of a chain."""
    yield
    if (
        (running := item.config.stash.get(SERVERS, None))
        and nextitem
        and chain_of(item.nodeid) != chain_of(nextitem.nodeid)
    ):
        running.end_of_files()


def pytest_report_header() -> list[str]:
    """What repeats a run: the seed of the night, and the order of sets of strings."""
    nightly = [] if NIGHTLY is None else [f"seed: {NIGHTLY}; KZCONSUMER_NIGHTLY={NIGHTLY} repeats this run"]
    return [*nightly, f"PYTHONHASHSEED={os.environ.get('PYTHONHASHSEED', 'random')}"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if lacking := missing(terminalreporter.stats.get("skipped", [])):
        terminalreporter.section("programs that are missing here")
        for program, tests in lacking.items():
            terminalreporter.line(f"tests skipped without {program}: {tests}")
    for report in (each for outcome in ("passed", "failed") for each in terminalreporter.stats.get(outcome, [])):
        for name, value in report.user_properties:
            if name == "seed":
                terminalreporter.line(f"seed of {report.nodeid}: {value}")


@pytest.fixture(scope="session", autouse=True)
def no_exit_of_the_test_process() -> Iterator[None]:
    """The command ends its process where a thread goes on. Here that fails: other tests would end silently."""
    exit_at_once, tests = os._exit, os.getpid()

    def fail(status: int) -> NoReturn:
        if os.getpid() != tests:  # a fork
            exit_at_once(status)
        raise AssertionError(f"a test ended its own process with status {status}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "_exit", fail)
        yield


@pytest.fixture(scope="session")
def quick_sparks(pytestconfig: pytest.Config) -> Iterator[Callable[[], None]]:
    """From a call on a starting Spark takes less of the processors; a third once an archive of classes is there."""
    from tests.support.quick_spark import quick_spark

    with pytest.MonkeyPatch.context() as patch:

        def set_environment() -> None:
            for name, value in quick_spark(pytestconfig.cache.mkdir("spark")).items():
                patch.setenv(name, value)

        set_environment()
        yield set_environment


@pytest.fixture(scope="module", autouse=True)
def quick_sparks_where_they_start(request: pytest.FixtureRequest) -> None:
    if request.path.parent.name == "spark":
        request.getfixturevalue("quick_sparks")()


@pytest.fixture(autouse=True)
def log_as_it_was() -> Iterator[None]:
    """A test that runs the command line sets up the log of the whole process: later tests must not inherit it."""
    before = structlog.get_config() if structlog.is_configured() else None
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    token = _FACTS.set(None)
    yield
    _FACTS.reset(token)
    root.setLevel(level)
    for handler in root.handlers[:]:
        if handler not in handlers and not isinstance(handler, LogCaptureHandler):
            root.removeHandler(handler)
    if before is None:
        structlog.reset_defaults()
    else:
        structlog.configure(**before)


class StandardError(logging.StreamHandler[TextIO]):
    """Writes to the current standard error, which pytest captures."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


@pytest.fixture(scope="session", autouse=True)
def events_in_the_captured_output() -> None:
    """An application without a structlog configuration gets events in the standard logger: here, in the captured
    output.
    """
    logger = logging.getLogger("kzconsumer")
    logger.addHandler(StandardError(sys.stderr))
    logger.setLevel(logging.INFO)


@pytest.fixture(scope="session")
def servers(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """What runs for this file, or for all, and the means to run more: `servers.cluster(...)`."""
    from kzconsumer_sandbox.servers.jars import cache_folder
    from tests.support.servers import Servers

    archives = cache_folder() / "class-archives"
    archives.mkdir(parents=True, exist_ok=True)
    running = pytestconfig.stash[SERVERS] = Servers(tmp_path_factory.mktemp("servers"), archives)
    yield running
    running.kill()


@pytest.fixture(scope="session")
def zookeeper(servers: Servers) -> ZooKeeperServer:
    """The ZooKeeper all tests share (`.connect`, `.host`, `.port`, `.pid`): make a chroot, never stop it."""
    return servers.zookeeper


@pytest.fixture(scope="session")
def cluster_of(servers: Servers) -> Callable[[str], Cluster]:
    """`cluster_of("1.1.1")`: that version's shared cluster, one broker (`.connect` with its chroot, `.bootstrap`)."""
    return servers.cluster_of


@pytest.fixture(scope="session")
def cluster(cluster_of: Callable[[str], Cluster]) -> Cluster:
    """The shared cluster of the newest version."""
    return cluster_of("3.9.1")


@pytest.fixture
async def kraft(request: pytest.FixtureRequest, servers: Servers, unique: str) -> Cluster:
    """The shared cluster that keeps nothing in ZooKeeper (4.2.0, or the parameter); `.connect` is this test's alone.

    Its broker has the rack r1, and members of the newer protocols get their partitions within a tenth of a second.
    """
    from tests.support.kafka_consumer import QUICK_HEARTBEATS
    from tests.support.zookeeper_sessions import make_chroot

    config = {"broker.rack": "r1", **QUICK_HEARTBEATS}
    version = getattr(request, "param", "4.2.0")
    shared = servers.shared(f"kraft-{version}", lambda name: servers.cluster(name, version, kraft=True, config=config))
    mine = copy.copy(shared)
    mine.connect = f"{servers.zookeeper.connect}/{unique}"
    await make_chroot(mine.connect)
    return mine


@pytest.fixture(scope="session")
def secured(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Secured:
    """Certificates, passwords, and `cluster_of(version)`: that version's shared cluster with TLS and SASL listeners."""
    from tests.support.secured import Secured

    return Secured(servers, tmp_path_factory.mktemp("secured"))


@pytest.fixture(scope="session")
def database() -> Iterator[Postgres]:
    """The PostgreSQL all tests share: make a table of your own."""
    from tests.support.postgres import postgres

    with postgres() as running:
        yield running


@pytest.fixture(scope="session")
def running_amazon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AmazonStore]:
    from tests.support.object_store import AmazonStore

    with AmazonStore.running(tmp_path_factory.mktemp("s3")) as store:
        assert isinstance(store, AmazonStore)
        yield store


@pytest.fixture
def amazon(running_amazon: AmazonStore) -> AmazonStore:
    """The S3 store all tests share: empty, and may be killed."""
    running_amazon.renew()
    return running_amazon


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> str:
    """A name of this test's own, good for a topic, a group or a chroot.

    The same in each run: assignors go by the hash of a topic's name, and brokers by that of a group's.
    """
    words = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name)[:40].strip("-")
    return f"{words}-{zlib.crc32(request.node.nodeid.encode()):08x}"
