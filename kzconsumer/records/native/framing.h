/* The batches of a fetch response, found by their framing.

   Sources: `org.apache.kafka.common.record` of Kafka 3.9 (DefaultRecordBatch, LegacyRecord); KIP-31, KIP-32, KIP-98. */

#ifndef KZCONSUMER_FRAMING_H
#define KZCONSUMER_FRAMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "faults.h"

/* Attributes of a batch (magic 2) or message (magic 0 and 1). */
enum { CODEC_MASK = 0x07, LOG_APPEND_TIME = 0x08, TRANSACTIONAL = 0x10, CONTROL = 0x20 };

enum { CREATE_TIME = 0, APPEND_TIME = 1, NO_TIMESTAMP_TYPE = -1 };
enum { NO_TIMESTAMP = -1 };

enum {
    LOG_OVERHEAD = 12, /* offset int64, size int32 */
    MAGIC_AT = 16,     /* for every magic */
    MAGIC_END = 17,
    /* After the size: crc, magic, attributes, [timestamp int64 from magic 1 on], key length, value length. */
    MESSAGE_SIZE_V0 = 14,
    /* After the size of a magic 2 batch: 49 bytes of header; the records begin at byte 61 of the batch. */
    BATCH_SIZE = 49,
    BATCH_HEADER = 61,
    CRC_AT = 17,
    CHECKED_FROM = 21, /* what the checksum of a magic 2 batch covers: all after itself, hence not the base offset */
    PRODUCER_AT = 43,
    /* length, attributes, timestamp delta, offset delta, key length, value length, header count: one byte each */
    SMALLEST_RECORD = 7,
};

/* Highest base offset whose batch cannot overflow an int64. */
#define MAX_OFFSET (INT64_MAX - ((int64_t)1 << 31))

/* One batch of magic 2, one wrapper message, or one run of uncompressed messages of equal magic and attributes. */
struct batch {
    int64_t position; /* first byte, relative to the response's records */
    int64_t base;     /* base offset; what is added to the inner offsets of a wrapper */
    int64_t last;     /* last offset it stands for, also when the record itself was compacted away */
    int64_t first_timestamp;
    int64_t max_timestamp;
    int64_t count;       /* number of records as the batch claims, -1 while unknown (wrappers) */
    const uint8_t *body; /* the records, decompressed where needed */
    int64_t size;        /* bytes of the records */
    int16_t attributes;
    int8_t magic;
    bool skip; /* none of its records is wanted */
};

/* The whole batches at the beginning of a response, up to the first fault. */
struct batches {
    const uint8_t *data;
    int64_t size;
    struct batch *at;
    ptrdiff_t count;
    ptrdiff_t room;
    bool partial;     /* the bytes end inside a batch: normal at the tail */
    enum fault fault; /* why what follows is no batch */
    int64_t fault_at; /* first byte of that */
};

/* The lookup tables of CRC-32 ("slicing by 8"): `[k][byte]` is the CRC of the byte followed by k zero bytes. */
struct crc_tables {
    uint32_t at[8][256];
};

void make_crc_tables(struct crc_tables *tables);

/* Whether the checksum of a message of magic 0 or 1 is right. Its bytes `at` begin with the offset. */
bool message_is_intact(const struct crc_tables *tables, const uint8_t *at, int64_t size);

/* Fill `batches` from the framing of its data. With `tables` the checksums of magic 0 and 1 are compared; those of
   magic 2 are the caller's, and so is `batch_fault`. */
void find_batches(struct batches *batches, const struct crc_tables *tables);

/* What is wrong with the header of a magic 2 batch whose checksum is right. */
static inline enum fault batch_fault(const struct batch *batch) { return batch->last < batch->base ? BAD_OFFSET : OK; }

/* End the batches before number `row`, which cannot be used. */
void end_before(struct batches *batches, ptrdiff_t row, enum fault fault);

/* In which leader epoch a batch was appended; -1 for magic 0 and 1. */
int64_t leader_epoch(const struct batches *batches, const struct batch *batch);

/* The offset behind the last one of all batches, but at least `start`. */
int64_t next_offset(const struct batches *batches, int64_t start);

void free_batches(struct batches *batches);

#endif
