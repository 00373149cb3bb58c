"""What is proven of a destination as text, in 80 columns.

Pure. Used by `kzconsumer sink verify`.
"""

from __future__ import annotations

from kzconsumer.cli.text_table import WIDTH, clip, columns, count, dash, sentence
from kzconsumer.sinks.proof import Finding, PartitionProof, Proof


def proof_table(proof: Proof) -> str:
    """The verdict, a row for each partition and epoch, what is wrong, and what is worth knowing."""
    ranges = sum(each.ranges for each in proof.partitions)
    verdict = "no gap, no overlap, counts equal" if proof.healthy else count(len(proof.findings), "finding")
    lines = [clip(f"group {proof.group}: {proof.destination}", WIDTH), f"{count(ranges, 'range')}: {verdict}"]
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
    counts = (each.partition, each.epoch, each.stored, each.ranges, each.records_in, each.rows, aside)
    return (*map(dash, counts), each.topic)


def _where(finding: Finding) -> str:
    if finding.topic is None:
        return ""
    epoch = f" epoch {finding.epoch}" if finding.epoch else ""
    return f"{finding.topic}-{finding.partition}{epoch} [{finding.first}..{finding.until}): "
