"""Which alert rules fire on recorded series: promtool evaluates them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from prometheus_client.samples import Sample

from tests.support.programs import PROMTOOL, need

MONITORING = Path(__file__).parents[2] / "monitoring"


#: What Prometheus stores of a series that a scrape does not have any more. Without it the last value counts for another
#: five minutes.
MISSING = "stale"


class Recording:
    """Scrapes, one after the other, as the series of promtool: name with labels -> a value for each scrape."""

    def __init__(self) -> None:
        self.series: dict[str, list[str]] = {}
        self.scrapes = 0

    def add(self, samples: Iterable[Sample], instance: str) -> None:
        """One scrape."""
        for sample in samples:
            labels = ", ".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            known = self.series.setdefault(f'{sample.name}{{{labels}, instance="{instance}"}}', [])
            known += [MISSING] * (self.scrapes - len(known))
            known.append(f"{sample.value:.17g}")
        self.scrapes += 1
        for known in self.series.values():
            known += [MISSING] * (self.scrapes - len(known))


def firing(rules: str, series: Mapping[str, list[str]], interval: int, place: Path) -> set[tuple[str, str]]:
    """Alert and group of those that fire at the end of any minute; the group is empty for an alert without one.

    `interval`: seconds between two scrapes. promtool compares what fires with an empty list, and its complaint is
    read. It gets the series that the rules name.
    """
    named = set(re.findall(r"\w+", (MONITORING / rules).read_text()))
    minutes = max(map(len, series.values())) * interval // 60
    query = 'group by (alertname, group) (ALERTS{alertstate="firing"})'
    asked = [{"expr": query, "eval_time": f"{minute}m", "exp_samples": []} for minute in range(1, minutes)]
    test: dict[str, Any] = {
        "rule_files": [str(MONITORING / rules)],
        "evaluation_interval": "30s",
        "tests": [
            {
                "interval": f"{interval}s",
                "input_series": [
                    {"series": name, "values": " ".join(each)}
                    for name, each in series.items()
                    if name.partition("{")[0] in named
                ],
                "promql_expr_test": asked,
            }
        ],
    }
    (place / "run.yml").write_text(json.dumps(test))
    done = subprocess.run(
        [need(PROMTOOL), "test", "rules", str(place / "run.yml")], capture_output=True, text=True, check=False
    )
    output = done.stdout + done.stderr
    shown = r'\{alertname=\\?"(\w+)\\?"(?:, group=\\?"([^"\\]*)\\?")?\}'
    found = {(name, group) for name, group in re.findall(shown, output)}
    assert (done.returncode == 0) == (not found), output
    return found
