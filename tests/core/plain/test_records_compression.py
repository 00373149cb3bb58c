"""Decompression: bounded, and tolerant only where old clients need it."""

from __future__ import annotations

import gzip
import random
import struct
import time
import tracemalloc

import cramjam
import pyarrow as pa
import pytest

from kzconsumer.records import compression as L
from kzconsumer.records._native import allocated_bytes
from kzconsumer.records.compression import BadCompression, NoRoom, Scratch, decompress, lz4_header_checksum
from tests.support.odd_record_sets import snappy_bodies, zstd_bodies
from tests.support.record_sets import Codec, compress

CODECS_OF_BATCHES: list[tuple[int, Codec]] = [
    (L.GZIP, "gzip"),
    (L.SNAPPY, "snappy"),
    (L.SNAPPY, "snappy-raw"),
    (L.LZ4, "lz4"),
    (L.ZSTD, "zstd"),
]
DATA = b"some text, some text, and some more of it. " * 3000


def plain(codec: int, body: bytes, magic: int = 2) -> bytes:
    return decompress(codec, magic, memoryview(body), Scratch()).tobytes()


@pytest.mark.parametrize("size", [0, 1, 100, 65536, len(DATA)])
def test_every_codec_round_trips(size: int) -> None:
    data = DATA[:size]
    assert plain(L.GZIP, compress("gzip", data)) == data
    assert plain(L.SNAPPY, compress("snappy", data)) == data
    assert plain(L.SNAPPY, compress("snappy-raw", data)) == data
    assert plain(L.LZ4, compress("lz4", data)) == data
    assert plain(L.ZSTD, compress("zstd", data)) == data
    assert plain(L.LZ4, compress("lz4-KAFKA-3160", data), magic=0) == data
    assert plain(L.LZ4, compress("lz4-KAFKA-3160", data), magic=1) == data
    assert plain(L.LZ4, compress("lz4", data), magic=0) == data


def test_bodies_in_one_scratch_do_not_overlap() -> None:
    scratch = Scratch()
    parts = [DATA[n : n + 5000] for n in range(0, len(DATA), 5000)]
    bodies = [decompress(L.ZSTD, 2, memoryview(compress("zstd", part)), scratch) for part in parts]
    assert [body.tobytes() for body in bodies] == parts


def test_gzip_members_and_zstd_frames_may_follow_each_other() -> None:
    assert plain(L.GZIP, compress("gzip", DATA) + compress("gzip", b"more") + bytes(8)) == DATA + b"more"
    assert plain(L.ZSTD, compress("zstd", DATA) + compress("zstd", b"more")) == DATA + b"more"


def test_many_gzip_members_take_time_proportional_to_their_bytes() -> None:
    members = compress("gzip", b"") * (4_000_000 // len(compress("gzip", b"")))
    began = time.process_time()
    assert plain(L.GZIP, members + compress("gzip", b"the last")) == b"the last"
    assert time.process_time() - began < 3  # quadratic time was 10 s of processor time


@pytest.mark.parametrize("members", [1, 2, 3])
def test_gzip_members_are_cut_off_at_any_byte(members: int) -> None:
    """Whole members are read; the input of the later ones is handed to zlib piece by piece."""
    one = compress("gzip", random.Random(members).randbytes(700))
    whole = len(one) * (members - 1)
    for end in range(whole + 2, whole + len(one)):
        with pytest.raises(BadCompression, match="cut off"):
            plain(L.GZIP, one * (members - 1) + one[: end - whole])
    assert len(plain(L.GZIP, one * members)) == 700 * members


@pytest.mark.parametrize(("codec", "name"), CODECS_OF_BATCHES)
def test_the_limit_applies_to_all_bodies_together(codec: int, name: Codec) -> None:
    scratch = Scratch(room=2 * len(DATA) + 10)
    body = memoryview(compress(name, DATA))
    assert [decompress(codec, 2, body, scratch).tobytes() for _ in range(2)] == [DATA] * 2
    assert scratch.left == 10
    with pytest.raises(NoRoom):
        decompress(codec, 2, body, scratch)
    assert decompress(codec, 2, memoryview(compress(name, b"ten bytes!")), scratch).tobytes() == b"ten bytes!"
    with pytest.raises(NoRoom):
        decompress(codec, 2, body, scratch)


def test_lz4_ends_at_the_first_end_mark() -> None:
    assert plain(L.LZ4, compress("lz4", DATA) + b"anything") == DATA


@pytest.mark.parametrize("content_checksum", [False, True])
@pytest.mark.parametrize("block_linked", [False, True])
def test_lz4_frames_of_other_encoders(content_checksum: bool, block_linked: bool) -> None:
    compressor = cramjam.lz4.Compressor(content_checksum=content_checksum, block_linked=block_linked)
    compressor.compress(DATA)
    assert plain(L.LZ4, bytes(compressor.finish())) == DATA
    assert plain(L.LZ4, bytes(cramjam.lz4.compress(DATA))) == DATA
    assert plain(L.LZ4, pa.compress(DATA, "lz4", asbytes=True)) == DATA


@pytest.mark.parametrize("name", ["first", "last", "between", "cut off"])
def test_a_skippable_frame_of_zstd_has_no_content(name: str) -> None:
    body = dict(zstd_bodies(DATA))[f"skippable frame {name}"]
    assert plain(L.ZSTD, body) == DATA


@pytest.mark.parametrize("name", ["rubbish behind", "a byte behind", "zeros behind", "cut off"])
def test_what_is_no_frame_of_zstd_is_refused(name: str) -> None:
    with pytest.raises(BadCompression):
        plain(L.ZSTD, dict(zstd_bodies(DATA))[name])


@pytest.mark.parametrize("name", ["two streams", "a stream without blocks last", "a byte behind", "three bytes behind"])
def test_streams_of_snappy_may_follow_each_other(name: str) -> None:
    assert plain(L.SNAPPY, dict(snappy_bodies(DATA))[name]) == DATA


@pytest.mark.parametrize(
    "name", ["second of version 0", "second header cut off", "magic cut off", "block of a negative size", "cut off"]
)
def test_what_is_no_stream_of_snappy_is_refused(name: str) -> None:
    with pytest.raises(BadCompression):
        plain(L.SNAPPY, dict(snappy_bodies(DATA))[name])


def test_the_header_checksum_is_that_of_lz4() -> None:
    for frame in (compress("lz4", DATA), bytes(cramjam.lz4.compress(DATA)), bytes(cramjam.lz4.compress(b"x"))):
        end = 14 if frame[4] & 0x08 else 6
        assert lz4_header_checksum(frame[4:end]) == frame[end]


def test_the_checksum_is_that_of_xxhash() -> None:
    """The second lowest byte of the values with which `xxhsum` tests itself (0.8, `XSUM_XXH32_testdata`)."""
    prime = generated = 0x9E3779B1
    data = bytearray()
    for _ in range(14):
        data.append(generated >> 24)
        generated = generated * generated & 0xFFFFFFFF
    assert prime == 2654435761
    for size, whole in ((0, 0x02CC5D05), (1, 0xB85CBEE5), (14, 0xE5AA0AB4)):
        assert lz4_header_checksum(bytes(data[:size])) == whole >> 8 & 255


def test_a_frame_may_declare_how_much_it_has() -> None:
    frame = bytes(cramjam.lz4.compress(DATA))
    assert not frame[4] & 0x08
    described = bytes([frame[4] | 0x08, frame[5]]) + len(DATA).to_bytes(8, "little")
    declared = frame[:4] + described + bytes([lz4_header_checksum(described)]) + frame[7:]
    assert plain(L.LZ4, declared) == DATA
    for at in range(len(described)):
        wrong = bytearray(declared)
        wrong[4 + at] ^= 0x02 if at == 0 else 0x01
        with pytest.raises(BadCompression):
            plain(L.LZ4, bytes(wrong))


def test_an_arbitrary_header_checksum_is_not_accepted() -> None:
    frame = bytearray(compress("lz4-KAFKA-3160", DATA))
    frame[6] ^= 1
    for magic in (0, 1, 2):
        with pytest.raises(BadCompression):
            plain(L.LZ4, bytes(frame), magic)


def _bombs() -> dict[str, tuple[int, bytes]]:
    zeros = bytes(1 << 22)
    snappy = bytes(cramjam.snappy.compress_raw(zeros))
    return {
        "gzip": (L.GZIP, gzip.compress(zeros)),
        "snappy-raw": (L.SNAPPY, snappy),
        "snappy that claims 4 GiB": (L.SNAPPY, b"\xff\xff\xff\xff\x0f" + snappy[4:]),
        "snappy": (L.SNAPPY, compress("snappy", zeros)),
        "lz4": (L.LZ4, compress("lz4", zeros)),
        "zstd": (L.ZSTD, compress("zstd", zeros)),
        "zstd of runs": (L.ZSTD, b"\x28\xb5\x2f\xfd\x00\x58" + b"\x02\x00\x10\x00" * 999 + b"\x03\x00\x10\x00"),
        "zstd that claims a size": (
            L.ZSTD,
            b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 40) + b"\x02\x00\x10\x00" * 999 + b"\x03\x00\x10\x00",
        ),
    }


@pytest.mark.parametrize("name", _bombs())
def test_a_bomb_is_refused_within_bounded_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(L, "MAX_BODY", 1 << 21)
    codec, body = _bombs()[name]
    before = allocated_bytes()
    tracemalloc.start()
    try:
        with pytest.raises(BadCompression):
            plain(codec, body)
        assert tracemalloc.get_traced_memory()[1] < 3 * L.MAX_BODY  # zlib joins its blocks
    finally:
        tracemalloc.stop()
    assert allocated_bytes() - before < 2 * L.MAX_BODY


def test_a_body_of_just_the_limit_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(L, "MAX_BODY", len(DATA))
    for codec, name in ((L.GZIP, "gzip"), (L.SNAPPY, "snappy"), (L.LZ4, "lz4"), (L.ZSTD, "zstd")):
        assert plain(codec, compress(name, DATA)) == DATA  # type: ignore[arg-type]


@pytest.mark.parametrize("single", [0, 1])
@pytest.mark.parametrize("dictionary", range(4))
@pytest.mark.parametrize("size", range(4))
def test_a_frame_of_zstd_with_any_header(size: int, dictionary: int, single: int) -> None:
    """RFC 8878, 3.1.1.1: which fields it has, and how long they are. Two blocks follow, of bytes and of a run."""
    content = bytes(range(200)) * 2 + b"a" * 300
    size_bytes = (single, 2, 4, 8)[size]
    if size_bytes == 1:
        content = content[:200] + b"a" * 50
    plain_part, run = content.rstrip(b"a"), len(content) - len(content.rstrip(b"a"))
    header = bytes([size << 6 | single << 5 | dictionary]) + (b"" if single else b"\x58")
    header += bytes((0, 1, 2, 4)[dictionary])
    header += (len(content) - (256 if size_bytes == 2 else 0)).to_bytes(size_bytes, "little") if size_bytes else b""
    blocks = (len(plain_part) << 3).to_bytes(3, "little") + plain_part
    blocks += (run << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"a"
    frame = b"\x28\xb5\x2f\xfd" + header + blocks
    assert plain(L.ZSTD, frame) == content
    assert plain(L.ZSTD, frame + frame) == 2 * content
