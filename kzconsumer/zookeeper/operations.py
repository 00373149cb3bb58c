"""Nodes of ZooKeeper, and the operations of a transaction."""

from __future__ import annotations

import msgspec


class Stat(msgspec.Struct, frozen=True):
    """ZooKeeper's record of a node. zxids are transaction ids, times ms since the epoch."""

    czxid: int
    mzxid: int
    version: int
    cversion: int
    ephemeral_owner: int
    """Session id of the owner (signed, compare with `ZooKeeperSession.id`); 0: persistent."""
    num_children: int
    ctime: int
    mtime: int


class Node(msgspec.Struct, frozen=True):
    """A node's content (b"" also for null) and its stat."""

    data: bytes
    stat: Stat


class Create(msgspec.Struct, frozen=True):
    """Create a node; refused with NodeExistsError, or NoNodeError without a parent.

    `sequential`: the server adds a number.
    """

    path: str
    data: bytes
    ephemeral: bool = False
    sequential: bool = False


class SetData(msgspec.Struct, frozen=True):
    """Replace a node's content; refused with NoNodeError, or BadVersionError for another `version` (-1: any)."""

    path: str
    data: bytes
    version: int


class Delete(msgspec.Struct, frozen=True):
    """Remove a node without children; refused with NoNodeError, or BadVersionError for another `version` (-1: any)."""

    path: str
    version: int


class Check(msgspec.Struct, frozen=True):
    """Change nothing; refused with NoNodeError, or BadVersionError unless `version` is the node's."""

    path: str
    version: int


Operation = Create | SetData | Delete | Check
