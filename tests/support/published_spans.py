"""What is published in a target of files, as `sink verify` reads it."""

from __future__ import annotations

from kzconsumer.model import RangeIdentity
from kzconsumer_files.directory_target import AnyTarget
from kzconsumer_files.fold_plan import Span
from kzconsumer_files.range_names import named, range_name


def published_spans(target: AnyTarget, part: RangeIdentity) -> list[Span]:
    """The offsets that are published under the topic, partition, incarnation and epoch of `part`, in order."""
    entries, folded = target.ledger()
    line = named(range_name(part)).line
    own = [named(range_name(each.identity)) for each in entries if not each.kept_aside]
    runs = [run for where, each in folded if where == line for run in each.runs]
    return sorted({*(each.span for each in own if each.line == line), *runs})
