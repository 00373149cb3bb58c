/* Message sets (magic 0 and 1): `org.apache.kafka.common.record.LegacyRecord` of Kafka 3.9. */

#include "records.h"

/* The next message of the set `[at, end)`: NULL in `next` at its end, which may be inside a message. */
static enum fault next_message(const uint8_t *at, const uint8_t *end, int magic, const uint8_t **next) {
    *next = NULL;
    if (end - at < LOG_OVERHEAD)
        return OK;
    int64_t size = load_i32(at + 8);
    if (size < MESSAGE_SIZE_V0)
        return BAD_SIZE;
    if (size > end - at - LOG_OVERHEAD)
        return OK;
    if (size < MESSAGE_SIZE_V0 + 8 * magic)
        return BAD_SIZE;
    if (at[MAGIC_AT] != magic)
        return BAD_MAGIC;
    if (at[MAGIC_END] & CODEC_MASK)
        return BAD_NESTING;
    *next = at + LOG_OVERHEAD + size;
    return OK;
}

enum fault count_messages(const uint8_t *body, int64_t size, int magic, const struct crc_tables *tables,
                          int64_t *count, int64_t *last) {
    const uint8_t *at = body, *next;
    *count = 0;
    for (;;) {
        enum fault fault = next_message(at, body + size, magic, &next);
        if (fault != OK)
            return fault;
        if (next == NULL)
            return *count > 0 ? OK : NO_MESSAGE;
        if (tables != NULL && !message_is_intact(tables, at, next - at))
            return BAD_INNER_CRC;
        *last = load_i64(at);
        ++*count;
        at = next;
    }
}

/* Key and value of a message, from its key length at `at` on. That both lengths are there was checked. */
static enum fault read_key_and_value(const uint8_t *at, const uint8_t *end, struct record *record) {
    int64_t size = load_i32(at);
    at += 4;
    if (size < -1 || size > end - at - 4)
        return BAD_FIELD;
    record->key = size < 0 ? (struct field){NULL, 0} : (struct field){at, size};
    at += record->key.size;
    size = load_i32(at);
    at += 4;
    if (size < -1 || (size < 0 ? 0 : size) != end - at)
        return BAD_FIELD;
    record->value = size < 0 ? (struct field){NULL, 0} : (struct field){at, size};
    return OK;
}

enum fault read_messages(const struct batch *batch, struct columns *columns) {
    const uint8_t *at = batch->body, *next, *end = batch->body + batch->size;
    bool wrapper = (batch->attributes & CODEC_MASK) != 0;
    bool append_time = (batch->attributes & LOG_APPEND_TIME) != 0;
    int8_t timestamp_type = batch->magic == 0 ? NO_TIMESTAMP_TYPE : append_time ? APPEND_TIME : CREATE_TIME;
    for (;; at = next) {
        enum fault fault = next_message(at, end, batch->magic, &next);
        if (fault != OK || next == NULL)
            return fault;
        struct record record = {.offset = wrapping_sum(load_i64(at), batch->base), .timestamp_type = timestamp_type};
        if (record.offset < 0 || record.offset > batch->last)
            return BAD_OFFSET;
        if (batch->magic == 0)
            record.timestamp = NO_TIMESTAMP;
        else
            record.timestamp = wrapper && append_time ? batch->max_timestamp : load_i64(at + 18);
        if ((fault = read_key_and_value(at + 18 + 8 * batch->magic, next, &record)) != OK)
            return fault;
        if (record.offset >= columns->low && (fault = append_record(columns, &record)) != OK)
            return fault;
    }
}
