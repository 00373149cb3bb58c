"""Two processes race to publish files: each name has exactly one winner and keeps the winner's content."""

from __future__ import annotations

import multiprocessing
from multiprocessing.synchronize import Barrier
from pathlib import Path

from kzconsumer.durable_files import put_in_place

RACES = 3000


def _race(target: Path, me: str, barrier: Barrier, wins: Path) -> None:
    won = []
    barrier.wait()
    for n in range(RACES):
        staged = target / f"{me}-{n}.staged"
        staged.write_text(me)
        if n % 100 == 0:
            barrier.wait()  # wait for each other: without that one of them would run ahead
        won.append(put_in_place(staged, target / f"{n}.final"))
    wins.write_text("".join("1" if each else "0" for each in won))


def test_every_race_has_one_winner(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2, timeout=60)
    target = tmp_path / "target"
    target.mkdir()
    racers = [
        context.Process(target=_race, args=(target, me, barrier, tmp_path / me), daemon=True) for me in ("a", "b")
    ]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(120)
        assert racer.exitcode == 0
    a, b = ((tmp_path / me).read_text() for me in ("a", "b"))
    assert len(a) == len(b) == RACES
    assert all(one != other for one, other in zip(a, b, strict=True))
    assert "1" in a
    assert "1" in b
    for n in range(RACES):
        assert (target / f"{n}.final").read_text() == ("a" if a[n] == "1" else "b")
    assert not list(target.glob("*.staged"))
