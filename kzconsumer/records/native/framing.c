/* Framing and checksums of record sets: magic 0, 1 and 2, also mixed. */

#include <stdlib.h>

#include "framing.h"
#include "varints.h"

void make_crc_tables(struct crc_tables *tables) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320 : 0);
        tables->at[0][byte] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = tables->at[k - 1][byte];
            tables->at[k][byte] = crc >> 8 ^ tables->at[0][crc & 255];
        }
}

static uint32_t crc32_of(const struct crc_tables *tables, const uint8_t *at, int64_t size) {
    const uint32_t(*table)[256] = tables->at;
    uint32_t crc = 0xFFFFFFFF;
    for (; size >= 8; at += 8, size -= 8)
        crc = table[7][(crc ^ at[0]) & 255] ^ table[6][(crc >> 8 ^ at[1]) & 255] ^
              table[5][(crc >> 16 ^ at[2]) & 255] ^ table[4][crc >> 24 ^ at[3]] ^ table[3][at[4]] ^
              table[2][at[5]] ^ table[1][at[6]] ^ table[0][at[7]];
    for (; size > 0; at++, size--)
        crc = crc >> 8 ^ table[0][(crc ^ *at) & 255];
    return ~crc;
}

bool message_is_intact(const struct crc_tables *tables, const uint8_t *at, int64_t size) {
    return load_u32(at + LOG_OVERHEAD) == crc32_of(tables, at + MAGIC_AT, size - MAGIC_AT);
}

static struct batch *add_batch(struct batches *batches) {
    if (batches->count == batches->room) {
        ptrdiff_t room = batches->room == 0 ? 16 + batches->size / 4096 : batches->room * 8;
        struct batch *at = realloc(batches->at, (size_t)room * sizeof *at);
        if (at == NULL)
            return NULL;
        batches->at = at;
        batches->room = room;
    }
    return &batches->at[batches->count++];
}

static enum fault add_batch_of_magic_2(struct batches *batches, int64_t position, int64_t end) {
    const uint8_t *at = batches->data + position;
    if (end - position < LOG_OVERHEAD + BATCH_SIZE)
        return BAD_SIZE;
    struct batch *batch = add_batch(batches);
    if (batch == NULL)
        return NO_MEMORY;
    int64_t base = load_i64(at);
    *batch = (struct batch){
        .position = position,
        .base = base,
        .last = base + load_i32(at + 23),
        .first_timestamp = load_i64(at + 27),
        .max_timestamp = load_i64(at + 35),
        .count = load_i32(at + 57),
        .body = at + BATCH_HEADER,
        .size = end - position - BATCH_HEADER,
        .attributes = load_i16(at + CHECKED_FROM),
        .magic = 2,
    };
    return OK;
}

/* The value of the message between `at` and `end`, its fields checked: not only when they are read, so that a fault
   ends a run at the right message. */
static enum fault find_value(const uint8_t *at, const uint8_t *end, int magic, struct field *value) {
    at += LOG_OVERHEAD + 6 + 8 * magic; /* the size was checked: both lengths are there */
    int64_t key_size = load_i32(at);
    at += 4;
    if (key_size < -1 || key_size > end - at - 4)
        return BAD_FIELD;
    at += key_size < 0 ? 0 : key_size;
    int64_t size = load_i32(at);
    at += 4;
    if (size < -1 || (size < 0 ? 0 : size) != end - at)
        return BAD_FIELD;
    *value = (struct field){size < 0 ? NULL : at, end - at};
    return OK;
}

/* `in_run`: the last batch is a run of messages, which this one continues if it is alike. */
static enum fault add_message(struct batches *batches, const struct crc_tables *tables, int64_t position, int64_t end,
                              bool *in_run) {
    const uint8_t *at = batches->data + position;
    int8_t magic = (int8_t)at[MAGIC_AT];
    if (end - position < LOG_OVERHEAD + MESSAGE_SIZE_V0 + 8 * magic)
        return BAD_SIZE;
    if (tables != NULL && !message_is_intact(tables, at, end - position))
        return BAD_CRC;
    int16_t attributes = at[MAGIC_END];
    bool wrapper = (attributes & CODEC_MASK) != 0;
    struct field value;
    enum fault fault = find_value(at, batches->data + end, magic, &value);
    if (fault != OK)
        return fault;
    if (wrapper && value.data == NULL)
        return BAD_FIELD;
    int64_t offset = load_i64(at);
    if (!wrapper && *in_run) {
        struct batch *run = &batches->at[batches->count - 1];
        if (run->magic == magic && run->attributes == attributes && offset > run->last) {
            run->last = offset;
            run->count++;
            run->size = end - run->position;
            return OK;
        }
    }
    struct batch *batch = add_batch(batches);
    if (batch == NULL)
        return NO_MEMORY;
    int64_t timestamp = magic == 1 ? load_i64(at + 18) : NO_TIMESTAMP;
    *batch = (struct batch){
        .position = position,
        .last = offset,
        .first_timestamp = timestamp,
        .max_timestamp = timestamp,
        .count = wrapper ? -1 : 1,
        .body = wrapper ? value.data : at,
        .size = wrapper ? value.size : end - position,
        .attributes = attributes,
        .magic = magic,
    };
    *in_run = !wrapper;
    return OK;
}

void find_batches(struct batches *batches, const struct crc_tables *tables) {
    int64_t position = 0;
    bool in_run = false;
    enum fault fault = OK;
    while (batches->size - position >= MAGIC_END) {
        const uint8_t *at = batches->data + position;
        int64_t size = load_i32(at + 8);
        if (size < MESSAGE_SIZE_V0) {
            fault = BAD_SIZE;
            break;
        }
        if (size > batches->size - position - LOG_OVERHEAD)
            break;
        int64_t end = position + LOG_OVERHEAD + size;
        int64_t offset = load_i64(at);
        if (at[MAGIC_AT] > 2)
            fault = BAD_MAGIC;
        else if (offset < 0 || offset > MAX_OFFSET)
            fault = BAD_OFFSET;
        else if (at[MAGIC_AT] == 2) {
            fault = add_batch_of_magic_2(batches, position, end);
            in_run = false;
        } else
            fault = add_message(batches, tables, position, end, &in_run);
        if (fault != OK)
            break;
        position = end;
    }
    batches->fault = fault;
    batches->fault_at = position;
    batches->partial = fault == OK && position < batches->size;
}

void end_before(struct batches *batches, ptrdiff_t row, enum fault fault) {
    batches->fault = fault;
    batches->fault_at = batches->at[row].position;
    batches->count = row;
    batches->partial = false;
}

int64_t leader_epoch(const struct batches *batches, const struct batch *batch) {
    return batch->magic == 2 ? load_i32(batches->data + batch->position + LOG_OVERHEAD) : -1;
}

int64_t next_offset(const struct batches *batches, int64_t start) {
    int64_t next = start;
    for (ptrdiff_t row = 0; row < batches->count; row++)
        if (batches->at[row].last >= next)
            next = batches->at[row].last + 1;
    return next;
}

void free_batches(struct batches *batches) {
    free(batches->at);
    batches->at = NULL;
}
