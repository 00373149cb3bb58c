"""Runs an assignor in a new process, whose assignments are compared with those of the test process.

The process reads a pickled `Task` and writes the pickled list of assignments. It takes the contexts in reverse order,
to find assignors that depend on earlier calls.
"""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from kzconsumer.assignors import AssignmentContext, Assignor
from kzconsumer.model import ConsumerThreadId, TopicPartition

LIMIT = 60.0

Assignment = dict[TopicPartition, ConsumerThreadId]


class Task(NamedTuple):
    path: list[str]
    module: str
    name: str
    contexts: list[AssignmentContext]


def assign_elsewhere(assignor: Assignor, contexts: Sequence[AssignmentContext], hash_seed: int) -> list[Assignment]:
    """The assignments in a process whose `hash()` has another seed. Raises AssertionError if that fails."""
    task = Task([os.path.abspath(each) for each in sys.path], *_address(assignor), list(contexts))
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input=pickle.dumps(task),
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": os.pathsep.join(task.path)},
        capture_output=True,
        timeout=LIMIT,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"the assignor failed in a process of its own:\n{done.stderr.decode(errors='replace')}")
    answer: list[Assignment] = pickle.loads(done.stdout)
    return answer


def _address(assignor: Assignor) -> tuple[str, str]:
    module, name = getattr(assignor, "__module__", None), getattr(assignor, "__qualname__", None)
    if not module or not name or _attribute(module, name) is not assignor:
        raise AssertionError(f"{assignor!r} cannot be imported: it must be a function on the top level of a module")
    return module, name


def _attribute(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _answer(task: Task) -> list[Assignment]:
    assignor = _attribute(task.module, task.name)
    return [dict(assignor(context)) for context in reversed(task.contexts)][::-1]


if __name__ == "__main__":
    out = sys.stdout.buffer
    sys.stdout = sys.stderr  # what an assignor prints must not end up in the answer
    out.write(pickle.dumps(_answer(pickle.load(sys.stdin.buffer))))
