"""Before anything is imported: compiles the record decoder again if a source of it has changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

subprocess.run([sys.executable, Path(__file__).with_name("hatch_build.py")], check=True)
