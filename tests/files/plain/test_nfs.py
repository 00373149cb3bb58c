"""Two machines publish into a directory on NFS, where a client may not see yet what the other one has done."""

from __future__ import annotations

from pathlib import Path

import pytest

from kzconsumer.errors import DestinationWentBackError
from kzconsumer_files.directory_target import Target
from tests.files.plain.test_target import OWNER, attempt_of, free, identity, staged
from tests.support.nfs import NfsClient


def test_a_client_remembers_that_an_entry_was_missing(tmp_path: Path) -> None:
    """It was late with its decision, which is a second one and void: its files must not be seen."""
    ours, theirs = Target(tmp_path / "out"), Target(tmp_path / "out")
    theirs.mark(OWNER)
    client = NfsClient(tmp_path)
    with client.mounted():
        assert ours.missing([identity(0)]) == [identity(0)]
        attempt = attempt_of(ours, "ours")
        late = staged(attempt, 0, "ours", "day=1", "day=2")
    other = attempt_of(theirs, "theirs")
    assert theirs.publish([staged(other, 0, "theirs", "day=1")], other, free) == 1
    seen = list(theirs.visible())
    with client.mounted():
        assert not ours.has(identity(0)), "the client has not remembered it"
        assert ours.publish([late], attempt, free) == 0
    assert client.answers > 0
    assert list(theirs.visible()) == seen
    assert theirs.decisions() == []


def test_a_range_that_the_client_has_missed_is_found_before_it_counts_as_lost(tmp_path: Path) -> None:
    ours, theirs = Target(tmp_path / "out"), Target(tmp_path / "out")
    theirs.mark(OWNER)
    client = NfsClient(tmp_path)
    with client.mounted():
        assert ours.missing([identity(0)]) == [identity(0)]
    other = attempt_of(theirs, "theirs")
    theirs.publish([staged(other, 0, "theirs", "")], other, free)
    with client.mounted():
        assert not ours.has(identity(0))
        attempt = attempt_of(ours, "ours")
        assert ours.publish([staged(attempt, 1, "ours", "")], attempt, free, [identity(0)]) == 1
        with pytest.raises(DestinationWentBackError):
            ours.publish([staged(attempt, 2, "ours", "")], attempt, free, [identity(5)])
