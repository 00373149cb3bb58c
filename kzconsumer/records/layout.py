"""The record formats as constants: wire layouts, the batch table, kernel results, limits.

Sources: `org.apache.kafka.common.record` of Kafka 3.9 (DefaultRecordBatch, DefaultRecord, LegacyRecord); KIP-31,
KIP-32, KIP-98.
"""

from __future__ import annotations

# Attributes of a batch (magic 2) or message (magic 0 and 1).
CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)

# offset int64, size int32; then, for every magic, the magic byte at 16.
LOG_OVERHEAD = 12
MAGIC_AT = 16
MAGIC_END = 17
# After the size: crc, magic, attributes, [timestamp int64 from magic 1 on], key length, value length.
MESSAGE_SIZE_V0 = 14
MESSAGE_SIZE_V1 = 22
# After the size of a magic 2 batch: 49 bytes of header; the records begin at byte 61 of the batch.
BATCH_SIZE = 49
BATCH_HEADER = 61
CHECKED_FROM = 21  # what the checksum of a magic 2 batch covers: all after itself, hence not the base offset
PRODUCER_AT = 43  # producer id int64 of a magic 2 batch
# length, attributes, timestamp delta, offset delta, key length, value length, header count: one byte each.
SMALLEST_RECORD = 7

# Type of a control record (KIP-98): the second int16 of its key.
ABORT = 0
NO_CONTROL_TYPE = -(1 << 16)  # it cannot be read

# Columns of the batch table, int64 each. One row is one magic 2 batch, one wrapper message, or one run of
# uncompressed messages of equal magic and attributes.
POSITION = 0  # first byte, relative to the response's records
END = 1  # first byte after it
CRC = 2  # the checksum still to be compared, -1 for none
MAGIC = 3
ATTRIBUTES = 4
BASE = 5  # base offset; what is added to the inner offsets of a wrapper
LAST = 6  # last offset it stands for, also when the record itself was compacted away
FIRST_TIMESTAMP = 7
MAX_TIMESTAMP = 8
COUNT = 9  # number of records as the batch claims, -1 while unknown (wrappers)
ADDRESS = 10  # of the records, decompressed where needed
LENGTH = 11  # of the records in bytes
SKIP = 12  # 1: none of its records is wanted
LOW = 13  # lowest offset still wanted when its records were read
ROWS = 14  # records given out
TABLE_COLUMNS = 15

# Cells of one aborted transaction, int64 each.
T_PRODUCER = 0
T_FIRST = 1  # its first offset
T_NEXT = 2  # working memory: index of the producer's first transaction that no marker has ended yet
TRANSACTION_CELLS = 3

# Cells of the state that the record kernels carry from one run to the next, int64 each.
S_ROWS = 0
S_KEY_BYTES = 1
S_VALUE_BYTES = 2
S_KEY_NULLS = 3
S_VALUE_NULLS = 4
S_TIMESTAMP_NULLS = 5
S_HEADERS = 6
S_HEADER_KEY_BYTES = 7
S_HEADER_VALUE_BYTES = 8
S_LOW = 9  # lowest offset still wanted: offsets given out strictly increase
S_ROW_CAPACITY = 10
S_BYTE_CAPACITY = 11  # of the key bytes and of the value bytes, each
STATE_CELLS = 12

# Cells of the list of output addresses.
O_OFFSETS = 0
O_TIMESTAMPS = 1
O_KEY_OFFSETS = 2
O_KEYS = 3
O_KEY_VALIDITY = 4
O_VALUE_OFFSETS = 5
O_VALUES = 6
O_VALUE_VALIDITY = 7
O_TIMESTAMP_TYPES = 8
OUTPUT_CELLS = 9

# First result of every kernel.
OK = 0
PARTIAL = 1  # the bytes end inside a batch: normal at the tail
TABLE_FULL = 2
BAD_SIZE = 3
BAD_CRC = 4
BAD_MAGIC = 5
BAD_VARINT = 6
BAD_RECORD = 7
BAD_FIELD = 8
BAD_COUNT = 9
BAD_HEADER = 10
BAD_OFFSET = 11
BAD_TAIL = 12
BAD_NESTING = 13
BAD_MARKER = 14

REASONS = {
    BAD_SIZE: "its size field is smaller than its header",
    BAD_CRC: "its checksum does not match",
    BAD_MAGIC: "its magic byte is unknown or does not fit",
    BAD_VARINT: "a variable-length number is overlong or cut off",
    BAD_RECORD: "a record does not fit its length",
    BAD_FIELD: "a key or value does not fit its record",
    BAD_COUNT: "its record count does not fit its size",
    BAD_HEADER: "a record header does not fit its record",
    BAD_OFFSET: "an offset is negative or outside the batch",
    BAD_TAIL: "bytes are left after its last record",
    BAD_NESTING: "a compressed message holds a compressed message",
    BAD_MARKER: "its transaction marker cannot be read",
}

# Above this size the checksum of a magic 2 batch is left to the crc32c extension (about 20 GB/s, but a Python call).
SMALL_BATCH = 1024
# One decode stops before the batch that would take all bodies beyond it; and no batch may decompress to more, unless
# the caller says otherwise.
MAX_BODY = 256 << 20
# Highest base offset whose batch cannot overflow an int64.
MAX_OFFSET = (1 << 63) - 1 - (1 << 31)
NO_TIMESTAMP = -1
CREATE_TIME, APPEND_TIME, NO_TIMESTAMP_TYPE = 0, 1, -1
