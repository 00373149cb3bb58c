"""One assignor in a fresh process: what the assignor contract compares with the test process.

Run as `python -m kzconsumer.testing.assignment_worker` with a pickled `Task` on standard input; answers
with the pickled list of assignments on standard output. It goes through the contexts from the last to the first, so
that an assignor that remembers its calls remembers others.
"""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from kzconsumer.assignors.interface import AssignmentContext, Assignor
from kzconsumer.model import ConsumerThreadId, TopicPartition

LIMIT = 60.0

Assignment = dict[TopicPartition, ConsumerThreadId]


class Task(NamedTuple):
    """Where the assignor is to be imported from, and what it is to compute from."""

    path: list[str]
    module: str
    name: str
    contexts: list[AssignmentContext]


def assign_elsewhere(assignor: Assignor, contexts: Sequence[AssignmentContext], hash_seed: int) -> list[Assignment]:
    """What the assignor computes from each context in a process whose `hash()` has another seed.

    Raises AssertionError when it cannot be imported there, and when the process fails or takes longer than a minute.
    """
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
    """Module and name of a module-level function, which is what an entry point can name."""
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
