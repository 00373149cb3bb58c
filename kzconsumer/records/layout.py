"""The record formats as constants: wire layouts, limits.

Sources: `org.apache.kafka.common.record` of Kafka 3.9 (DefaultRecordBatch, DefaultRecord, LegacyRecord); KIP-31,
KIP-32, KIP-98. The compiled decoder has its own (`native/framing.h`).
"""

from __future__ import annotations

# Attributes of a batch (magic 2) or message (magic 0 and 1).
CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)

# offset int64, size int32.
LOG_OVERHEAD = 12
# After the size: crc, magic, attributes, [timestamp int64 from magic 1 on], key length, value length.
MESSAGE_SIZE_V0 = 14
# After the size of a magic 2 batch: 49 bytes of header; the records begin at byte 61 of the batch.
BATCH_SIZE = 49
BATCH_HEADER = 61

# One decode stops before the batch that would take all bodies beyond it; and no batch may decompress to more, unless
# the caller says otherwise.
MAX_BODY = 256 << 20
# Highest base offset whose batch cannot overflow an int64.
MAX_OFFSET = (1 << 63) - 1 - (1 << 31)
NO_TIMESTAMP = -1
