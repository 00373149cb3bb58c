"""`python -m tests.bench`: consuming, compared with other clients."""

from __future__ import annotations

import sys

from tests.bench.bench_consume import main

sys.exit(main())
