"""Valid connect strings, and how paths are placed under a chroot."""

from __future__ import annotations

import pytest

from kzconsumer.zookeeper.operations import ConnectString


@pytest.mark.parametrize(
    ("text", "hosts", "chroot"),
    [
        ("h1", (("h1", 2181),), ""),
        ("h1:2182,h2", (("h1", 2182), ("h2", 2181)), ""),
        (" h1:1 , h2:2 ", (("h1", 1), ("h2", 2)), ""),
        ("h1/", (("h1", 2181),), ""),
        ("h1:2181,h2:2181/kafka/eu", (("h1", 2181), ("h2", 2181)), "/kafka/eu"),
        ("[::1]:2182,[fe80::1]/k", (("::1", 2182), ("fe80::1", 2181)), "/k"),
        ("127.0.0.1:65535", (("127.0.0.1", 65535),), ""),
    ],
)
def test_parses(text: str, hosts: tuple[tuple[str, int], ...], chroot: str) -> None:
    assert ConnectString.parse(text) == ConnectString(hosts, chroot)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "/kafka", "h1,", ",h1", ":2181", "h 1:2181"),
        *("h1:", "h1:x", "h1:0", "h1:65536", "h1:-1", "h1:\u00b2"),
        *("::1", "fe80::1:2181", "[::1", "[::1]2181", "[]:1"),
        *("h1/a/", "h1//a", "h1/a//b", "h1/a/../b", "h1/./a", "h1/a\x00", "h1/\U0001f600"),
    ],
)
def test_refuses(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        ConnectString.parse(text)


@pytest.mark.parametrize("text", ["h1:2181", "h1:2181,h2:2182/kafka", "[::1]:2181/k"])
def test_formats_what_it_parsed(text: str) -> None:
    assert str(ConnectString.parse(text)) == text


def test_places_paths_under_the_chroot() -> None:
    rooted, plain = ConnectString.parse("h/kafka/eu"), ConnectString.parse("h")
    assert rooted.full("/a/b") == "/kafka/eu/a/b"
    assert rooted.full("/") == "/kafka/eu"
    assert plain.full("/a/b") == "/a/b"
    assert plain.full("/") == "/"


@pytest.mark.parametrize("path", ["", "a", "a/b", "/a/", "//", "/../b", "/a/./b", "/\ud800"])
def test_no_path_leaves_the_chroot(path: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        ConnectString.parse("h/kafka").full(path)


def test_a_chroot_behind_each_host_is_refused() -> None:
    """ZooKeeper's client would take all that follows the first slash for the chroot."""
    with pytest.raises(ValueError, match="write the chroot once, behind the last host"):
        ConnectString.parse("zk1:2181/k,zk2:2181/k")
