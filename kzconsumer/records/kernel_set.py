"""The kernels as one value, so that compiled and plain-Python ones are interchangeable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.int64]
Cells = npt.NDArray[np.int64]
Transactions = npt.NDArray[np.int64]
Read = Callable[[Table, int, int, Cells, Cells], tuple[int, int, int]]


class KernelSet(NamedTuple):
    """Arguments and results are documented at the functions of the same names in `python_kernels`."""

    scan: Callable[[int, int, bool, Table, npt.NDArray[np.uint32]], tuple[int, int, int]]
    hide_aborted: Callable[[Table, int, Transactions], tuple[int, int]]
    plan: Callable[[Table, int, int, int], tuple[int, int, int, int]]
    count_messages: Callable[[int, int, int], tuple[int, int, int, int]]
    read_batches: Read
    read_messages: Read
    read_headers: Callable[[Table, int, int, int, int, int, int, int], Any]
    join_cells: Callable[[Table, int, int], Any]
