/* Decoded records of one partition as columns, in the memory layout of Arrow; immutable once they are filled.

   They are shared by Python objects and by Arrow arrays, which may be released by any thread without the GIL. */

#ifndef KZCONSUMER_COLUMNS_H
#define KZCONSUMER_COLUMNS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "faults.h"
#include "framing.h"
#include "varints.h"

/* A column of byte strings, as Arrow's `binary`. */
struct binary {
    int32_t *ends;     /* one more than rows; the first is 0 */
    uint8_t *data;
    uint8_t *validity; /* a bit for each row */
    int64_t room;      /* bytes of `data` */
    int64_t used;
    int64_t nulls;
};

struct columns {
    atomic_size_t owners;
    int64_t room; /* rows that fit */
    int64_t rows;
    int64_t low; /* lowest offset still wanted: offsets strictly increase */
    int64_t *offsets;
    int64_t *timestamps;
    int8_t *timestamp_types;
    uint8_t *timestamp_validity; /* NULL if every record has one */
    int64_t timestamp_nulls;
    struct binary keys;
    struct binary values;
    /* Headers of all records, one after the other. NULL while no record has any. */
    int32_t *header_ends; /* one more than rows */
    int64_t header_room;
    int64_t headers;
    struct binary header_keys;
    struct binary header_values;
};

/* Room for `rows` records whose values have at most `size` bytes; keys and headers grow. NULL without memory. */
struct columns *new_columns(int64_t rows, int64_t size, int64_t low);

void share_columns(struct columns *columns);
void release_columns(struct columns *columns);

/* Give back what is not used, after the last record. */
enum fault finish_columns(struct columns *columns);

/* Bytes of memory held. */
int64_t held_bytes(const struct columns *columns);

/* Bytes of the rows `first <= row < until`, without the topic. */
int64_t row_bytes(const struct columns *columns, int64_t first, int64_t until);

/* Append the headers in `[at, end)`, which were checked, to those of the row about to be added. */
enum fault append_headers(struct columns *columns, const uint8_t *at, const uint8_t *end, int64_t count);

/* Append the headers of a row of other columns to those of the row about to be added. */
enum fault copy_headers(struct columns *columns, const struct columns *from, int64_t row);

enum fault grow_binary(struct binary *binary, int64_t size);

static inline enum fault append_field(struct binary *binary, int64_t row, struct field field) {
    uint8_t bit = (uint8_t)(1 << (row & 7));
    if ((row & 7) == 0)
        binary->validity[row >> 3] = 0;
    if (field.data == NULL) {
        binary->validity[row >> 3] &= (uint8_t)~bit;
        binary->nulls++;
    } else {
        binary->validity[row >> 3] |= bit;
        if (field.size > 0) {
            if (field.size > binary->room - binary->used) {
                enum fault fault = grow_binary(binary, field.size);
                if (fault != OK)
                    return fault;
            }
            memcpy(binary->data + binary->used, field.data, (size_t)field.size);
            binary->used += field.size;
        }
    }
    binary->ends[row + 1] = (int32_t)binary->used;
    return OK;
}

static inline struct field field_at(const struct binary *binary, int64_t row) {
    if ((binary->validity[row >> 3] >> (row & 7) & 1) == 0)
        return (struct field){NULL, 0};
    return (struct field){binary->data + binary->ends[row], binary->ends[row + 1] - binary->ends[row]};
}

struct record {
    int64_t offset;
    int64_t timestamp;
    struct field key;
    struct field value;
    int8_t timestamp_type;
};

/* Append a record whose offset is not below `low`; its headers, if any, are there already. */
static inline enum fault append_record(struct columns *columns, const struct record *record) {
    int64_t row = columns->rows;
    if (row >= columns->room)
        return BAD_COUNT;
    enum fault fault = append_field(&columns->keys, row, record->key);
    if (fault == OK)
        fault = append_field(&columns->values, row, record->value);
    if (fault != OK)
        return fault;
    columns->offsets[row] = record->offset;
    columns->timestamps[row] = record->timestamp;
    columns->timestamp_types[row] = record->timestamp_type;
    columns->timestamp_nulls += record->timestamp == NO_TIMESTAMP;
    if (columns->header_ends != NULL)
        columns->header_ends[row + 1] = (int32_t)columns->headers;
    columns->low = record->offset + 1;
    columns->rows = row + 1;
    return OK;
}

/* Where columns end, to go back there when a batch turns out to be bad. */
struct place {
    int64_t rows, low, timestamp_nulls, headers;
    int64_t used[4], nulls[4];
};

struct place place_of(const struct columns *columns);
void go_back(struct columns *columns, const struct place *place);

#endif
