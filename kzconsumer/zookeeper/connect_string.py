"""Kafka's `zookeeper.connect`: hosts and an optional chroot."""

from __future__ import annotations

import re

import msgspec

DEFAULT_PORT = 2181

# Java checks UTF-16 units: characters beyond the BMP are refused with the surrogates.
_REFUSED = re.compile("[\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")


class ConnectString(msgspec.Struct, frozen=True):
    """The hosts of an ensemble, and the node used as `/` ("" without one)."""

    hosts: tuple[tuple[str, int], ...]
    chroot: str

    def __str__(self) -> str:
        return ",".join(host_port(host, port) for host, port in self.hosts) + self.chroot

    @classmethod
    def parse(cls, text: str) -> ConnectString:
        """Read `h1:2181,h2,[::1]:2182/chroot`; a missing port is 2181, a chroot of `/` is none.

        Raises ValueError, with the reason, on anything else.
        """
        servers, slash, rest = text.strip().partition("/")
        if not servers:
            raise ValueError(f"{text!r} names no host")
        chroot = slash + rest
        if chroot in ("", "/"):
            chroot = ""
        elif "," in chroot:
            raise ValueError(f"chroot {chroot!r} holds a comma: write the chroot once, behind the last host")
        elif fault := path_fault(chroot):
            raise ValueError(f"chroot {chroot!r} {fault}")
        return cls(tuple(_host(server.strip()) for server in servers.split(",")), chroot)

    def full(self, path: str) -> str:
        """The path with the chroot. Raises ValueError for an invalid path, which could leave the chroot."""
        if fault := path_fault(path):
            raise ValueError(fault)
        if path == "/":
            return self.chroot or "/"
        return self.chroot + path


def host_port(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def path_fault(path: str) -> str:
    """Why ZooKeeper refuses this path (`org.apache.zookeeper.common.PathUtils`, 3.8), or ""."""
    if not path.startswith("/"):
        return "does not start with /"
    if path == "/":
        return ""
    if path.endswith("/"):
        return "ends with /"
    for name in path[1:].split("/"):
        if name in ("", ".", ".."):
            return f"has {name!r} between its slashes"
    if wrong := _REFUSED.search(path):
        return f"holds the character {wrong[0]!r}"
    return ""


def _host(text: str) -> tuple[str, int]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"{text!r} is not [address]:port")
        colon, port = rest[:1], rest[1:]
    else:
        host, colon, port = text.partition(":")
        if ":" in port:
            raise ValueError(f"{text!r}: write an IPv6 address in brackets")
    if not host or any(character.isspace() for character in host):
        raise ValueError(f"{text!r} names no host")
    if not colon:
        return host, DEFAULT_PORT
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f"{text!r}: {port!r} is not a port")
    return host, int(port)
