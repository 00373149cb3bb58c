"""Files of stored offsets as Kafka's tools write them, and faults of hand-written ones."""

from __future__ import annotations

import pytest

from kzconsumer.model import TopicPartition
from kzconsumer_tools.offsets.offset_changes import read_undo
from kzconsumer_tools.offsets.offset_files import SavedOffset, read_offsets


def test_the_forms() -> None:
    orders = TopicPartition("orders", 1)
    assert read_offsets(b"/consumers/a:b/offsets/orders/1:24\r\n\n").offsets == (SavedOffset("a:b", orders, b"24"),)
    assert read_offsets(b'"orders",1,24\n').offsets == (SavedOffset(None, orders, b"24"),)
    assert read_offsets(b"g,orders,1,24\ng,orders,1,24\n").offsets == (SavedOffset("g", orders, b"24"),)
    nodes = b'{"path":"/consumers/g/offsets/orders/1","data":null}\n'
    assert read_offsets(nodes).offsets == (SavedOffset("g", orders, None),)
    assert read_offsets(b'{"orders":{"1":24}}\n').offsets == (SavedOffset(None, orders, b"24"),)
    of_spark = b'{"offset":{"0":13}}\n'
    assert read_undo(of_spark) is None
    assert read_offsets(of_spark).offsets == (SavedOffset(None, TopicPartition("offset", 0), b"13"),)


@pytest.mark.parametrize(
    ("content", "output"),
    [
        (b" \n", "the file is empty"),
        (b"/consumers/g/owners/t/0:3\n", "line 1: not /consumers/<group>/offsets"),
        (b"/consumers/g/offsets/t/0:3\n/consumers/g/offsets/t/x:3\n", "line 2: not /consumers/<group>/offsets"),
        (b"/consumers/g/offsets/t/0:three\n", "line 1: 'three' is not an offset"),
        (b"t,0,1\nt,1\n", "line 2: not topic,partition,offset"),
        (b"t,-1,5\n", "line 1: '-1' is not a partition's number"),
        (b"TOPIC PARTITION,0,1\n", "line 1: 'TOPIC PARTITION' is not a topic name"),
        (b"t,0,1\nt,0,2\n", "t-0 appears twice, with different offsets"),
        (b'{"path":"/consumers/g/claims/t/0","data":"x"}\n', "`kzconsumer groups restore` reads files of other nodes"),
        (b'{"path":"/consumers/g/offsets/t/0"}\n', "line 1: not a node of an undo file: it needs data or base64"),
        (b"{\n", "line 1: not a node"),
        (b'{"t":{"0":3,"1":-2}}', "t-1: -2 is not an offset"),
        (b'{"t":{"0":9223372036854775808}}', "t-0: 9223372036854775808 is not an offset"),
        (b'{"t":{"2147483648":1}}', "'2147483648' is not a partition's number"),
        (b'{"a/b":{"0":1}}', "'a/b' is not a topic name"),
        (b"t,2147483648,5\n", "line 1: '2147483648' is not a partition's number"),
        (b",t,0,5\n", "line 1: '' is not a name made of"),
        (b"a/b,t,0,5\n", "line 1: 'a/b' is not a name made of"),
        (b"/consumers/g/offsets/t/0:3:0x1:2147483648\n", "t-0: 2147483648 is not a leader epoch"),
        (
            b'{"path":"/consumers/g/offsets/t/0","data":"3","leader_epoch":2147483648}\n',
            "t-0: 2147483648 is not a leader epoch",
        ),
        (b"\xff", "not UTF-8 text (byte 0)"),
        (b"/consumers/g/offsets/t/0-1:3\n", "/consumers/g/offsets/t/0-1 is an offset of Kafka 0.7"),
        (b'{"path":"/consumers/g/offsets/t/0-1","data":"3"}\n', "/consumers/g/offsets/t/0-1 is an offset of Kafka 0.7"),
    ],
)
def test_faults(content: bytes, output: str) -> None:
    with pytest.raises(ValueError) as fault:  # noqa: PT011
        read_offsets(content)
    assert output in str(fault.value)
