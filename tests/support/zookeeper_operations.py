"""The names of ZooKeeper's operations, by the code that a request begins with."""

from __future__ import annotations

OPERATIONS = {
    1: "create",
    2: "delete",
    3: "exists",
    4: "get",
    5: "set",
    9: "sync",
    12: "children",
    14: "multi",
    101: "watches",
    -11: "close",
}
