"""The results of `sink verify` and `sink try` as text."""

from __future__ import annotations

import json
from collections.abc import Sequence

from kzconsumer.figures import count, plural
from kzconsumer.sinks.reports import Preview
from kzconsumer_tools.sinks.findings import Finding, PartitionProof, Proof
from kzconsumer_tools.tables.text import clip, columns, dash, sentence


def proof_table(proof: Proof) -> str:
    """The verdict, a row for each partition and epoch, the findings and the notes."""
    ranges = sum(each.ranges for each in proof.partitions)
    verdict = "no gap, no overlap, counts equal" if proof.healthy else plural(len(proof.findings), "finding")
    lines = [f"group {proof.group}: {proof.destination}", f"{plural(ranges, 'range')}: {verdict}"]
    if proof.partitions:
        rows = [("PARTITION", "EPOCH", "STORED", "RANGES", "RECORDS", "ROWS", "ASIDE", "TOPIC")]
        lines += ["", *columns([*rows, *map(_row, proof.partitions)], right={0, 1, 2, 3, 4, 5, 6, 7})]
    for finding in proof.findings:
        lines += ["", *sentence(f"{finding.kind}: {_where(finding)}{finding.text}")]
    if proof.notes:
        lines += ["", *(line for note in proof.notes for line in sentence(note))]
    return "\n".join(lines)


def _row(each: PartitionProof) -> tuple[str, ...]:
    aside = each.records_quarantined + each.aside_records
    counts = each.ranges, each.records_in, each.rows, aside
    return (*map(dash, (each.partition, each.epoch, each.stored)), *map(count, counts), each.topic)


def _where(finding: Finding) -> str:
    if finding.topic is None:
        return ""
    epoch = f" epoch {finding.epoch}" if finding.epoch else ""
    return f"{finding.topic}-{finding.partition}{epoch} [{finding.first}..{finding.until}): "


_LEAST = 4
_BETWEEN = "  "


def preview_table(preview: Preview, width: int) -> str:
    """Names, types and cells in lines of `width` characters if all columns fit; then the bad records."""
    head = [[name for name, _ in preview.columns], [kind for _, kind in preview.columns]]
    cells = head + [[_text(cell) for cell in row] for row in preview.rows]
    wanted = [max(map(len, column)) for column in zip(*cells, strict=True)]
    widths = fitted(wanted, width - len(_BETWEEN) * (len(wanted) - 1))
    lines = [
        _BETWEEN.join(clip(cell, w).ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in cells
    ]
    lines += ["", f"{plural(len(preview.rows), 'row')}, {plural(len(preview.bad), 'bad record')}"]
    lines += [f"{bad.topic}-{bad.partition} offset {bad.offset}: {bad.reason}" for bad in preview.bad]
    return "\n".join(lines)


def fitted(wanted: Sequence[int], width: int) -> list[int]:
    """Column widths with the sum `width`: the widest columns are cut to the same width, of at least four characters."""
    limit = max(wanted, default=0)
    while limit > _LEAST and sum(min(each, limit) for each in wanted) > width:
        limit -= 1
    return [min(each, limit) for each in wanted]


def _text(cell: object) -> str:
    text = cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(text)
