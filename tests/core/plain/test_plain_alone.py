"""A plain test runs by itself: what only servers, Spark and browsers need is not even imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
REFUSED = "confluent_kafka cryptography kzconsumer_spark moto playwright psycopg py4j pyarrow pyspark trustme"

PROGRAM = """
import importlib.abc, sys, pytest

class Refused(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in sys.argv[1].split():
            raise ImportError(f"{name} is refused")

sys.meta_path.insert(0, Refused())
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", *sys.argv[2:]]))
"""


def test_a_plain_file_needs_no_package_of_servers() -> None:
    """The second file makes certificates: its error shows that the packages are refused."""
    files = "tests/core/plain/test_topic_filter.py", "tests/core/plain/test_host_names.py"
    command = [sys.executable, "-c", PROGRAM, REFUSED, *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert "ImportError: trustme is refused" in done.stdout, done.stderr
    assert " passed, 1 error" in done.stdout
