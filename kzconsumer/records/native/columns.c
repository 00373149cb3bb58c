/* The memory of decoded records. */

#include "columns.h"

#include <stdlib.h>

#include "blocks.h"

enum { FIRST_KEYS = 256, FIRST_HEADERS = 64 };

static size_t validity_size(int64_t rows) { return (size_t)(rows + 7) / 8; }

static bool make_binary(struct binary *binary, int64_t rows, int64_t size) {
    binary->ends = new_block((size_t)(rows + 1) * sizeof *binary->ends);
    binary->data = new_block((size_t)size);
    binary->validity = new_block(validity_size(rows));
    binary->room = size;
    if (binary->ends == NULL || binary->data == NULL || binary->validity == NULL)
        return false;
    binary->ends[0] = 0;
    return true;
}

static void free_binary(struct binary *binary) {
    free_block(binary->ends);
    free_block(binary->data);
    free_block(binary->validity);
}

struct columns *new_columns(int64_t rows, int64_t size, int64_t low) {
    struct columns *columns = calloc(1, sizeof *columns);
    if (columns == NULL)
        return NULL;
    atomic_init(&columns->owners, 1);
    columns->room = rows;
    columns->low = low;
    columns->offsets = new_block((size_t)rows * sizeof *columns->offsets);
    columns->timestamps = new_block((size_t)rows * sizeof *columns->timestamps);
    columns->timestamp_types = new_block((size_t)rows * sizeof *columns->timestamp_types);
    int64_t keys = size < FIRST_KEYS ? size : FIRST_KEYS;
    if (columns->offsets != NULL && columns->timestamps != NULL && columns->timestamp_types != NULL &&
        make_binary(&columns->keys, rows, keys) && make_binary(&columns->values, rows, size))
        return columns;
    release_columns(columns);
    return NULL;
}

void share_columns(struct columns *columns) { atomic_fetch_add_explicit(&columns->owners, 1, memory_order_relaxed); }

void release_columns(struct columns *columns) {
    if (atomic_fetch_sub_explicit(&columns->owners, 1, memory_order_acq_rel) > 1)
        return;
    free_block(columns->offsets);
    free_block(columns->timestamps);
    free_block(columns->timestamp_types);
    free_block(columns->timestamp_validity);
    free_binary(&columns->keys);
    free_binary(&columns->values);
    free_block(columns->header_ends);
    free_binary(&columns->header_keys);
    free_binary(&columns->header_values);
    free(columns);
}

enum fault grow_binary(struct binary *binary, int64_t size) {
    int64_t room = binary->room < INT32_MAX / 2 ? 2 * binary->room : INT32_MAX;
    if (size > INT32_MAX - binary->used)
        return BAD_COUNT;
    if (room < binary->used + size)
        room = binary->used + size;
    uint8_t *data = resize_block(binary->data, (size_t)room);
    if (data == NULL)
        return NO_MEMORY;
    binary->data = data;
    binary->room = room;
    return OK;
}

static bool make_room_for_rows(struct binary *binary, int64_t rows) {
    int32_t *ends = resize_block(binary->ends, (size_t)(rows + 1) * sizeof *ends);
    if (ends == NULL)
        return false;
    binary->ends = ends;
    uint8_t *validity = resize_block(binary->validity, validity_size(rows));
    if (validity == NULL)
        return false;
    binary->validity = validity;
    return true;
}

static enum fault make_room_for_headers(struct columns *columns, int64_t count) {
    if (columns->header_ends == NULL) {
        size_t size = (size_t)(columns->room + 1) * sizeof *columns->header_ends;
        columns->header_ends = new_block(size);
        if (columns->header_ends == NULL || !make_binary(&columns->header_keys, 0, FIRST_KEYS) ||
            !make_binary(&columns->header_values, 0, FIRST_KEYS))
            return NO_MEMORY;
        memset(columns->header_ends, 0, size);
    }
    if (count <= columns->header_room - columns->headers)
        return OK;
    if (count > INT32_MAX - 1 - columns->headers)
        return BAD_COUNT;
    int64_t room = 2 * columns->header_room;
    if (room < columns->headers + count + FIRST_HEADERS)
        room = columns->headers + count + FIRST_HEADERS;
    if (!make_room_for_rows(&columns->header_keys, room) || !make_room_for_rows(&columns->header_values, room))
        return NO_MEMORY;
    columns->header_room = room;
    return OK;
}

static enum fault append_header(struct columns *columns, struct field key, struct field value) {
    enum fault fault = append_field(&columns->header_keys, columns->headers, key);
    if (fault == OK)
        fault = append_field(&columns->header_values, columns->headers, value);
    columns->headers++;
    return fault;
}

enum fault append_headers(struct columns *columns, const uint8_t *at, const uint8_t *end, int64_t count) {
    enum fault fault = make_room_for_headers(columns, count);
    for (int64_t n = 0; n < count && fault == OK; n++) {
        struct field key, value;
        int cut_off;
        if ((at = read_field(at, end, &key, &cut_off)) == NULL || (at = read_field(at, end, &value, &cut_off)) == NULL)
            return BAD_HEADER;
        fault = append_header(columns, key, value);
    }
    return fault;
}

enum fault copy_headers(struct columns *columns, const struct columns *from, int64_t row) {
    if (from->header_ends == NULL || from->header_ends[row] == from->header_ends[row + 1])
        return OK;
    int64_t first = from->header_ends[row], until = from->header_ends[row + 1];
    enum fault fault = make_room_for_headers(columns, until - first);
    for (int64_t n = first; n < until && fault == OK; n++)
        fault = append_header(columns, field_at(&from->header_keys, n), field_at(&from->header_values, n));
    return fault;
}

static enum fault fill_timestamp_validity(struct columns *columns) {
    columns->timestamp_validity = new_block(validity_size(columns->rows));
    if (columns->timestamp_validity == NULL)
        return NO_MEMORY;
    memset(columns->timestamp_validity, 0, validity_size(columns->rows));
    for (int64_t row = 0; row < columns->rows; row++)
        if (columns->timestamps[row] != NO_TIMESTAMP)
            columns->timestamp_validity[row >> 3] |= (uint8_t)(1 << (row & 7));
    return OK;
}

static void shrink_binary(struct binary *binary, int64_t rows) {
    binary->ends = shrink_block(binary->ends, (size_t)(rows + 1) * sizeof *binary->ends);
    binary->data = shrink_block(binary->data, (size_t)binary->used);
    binary->validity = shrink_block(binary->validity, validity_size(rows));
}

enum fault finish_columns(struct columns *columns) {
    int64_t rows = columns->rows;
    if (columns->room > rows) {
        columns->offsets = shrink_block(columns->offsets, (size_t)rows * sizeof *columns->offsets);
        columns->timestamps = shrink_block(columns->timestamps, (size_t)rows * sizeof *columns->timestamps);
        columns->timestamp_types = shrink_block(columns->timestamp_types, (size_t)rows * sizeof *columns->timestamp_types);
    }
    shrink_binary(&columns->keys, rows);
    shrink_binary(&columns->values, rows);
    if (columns->header_ends != NULL) {
        columns->header_ends = shrink_block(columns->header_ends, (size_t)(rows + 1) * sizeof *columns->header_ends);
        shrink_binary(&columns->header_keys, columns->headers);
        shrink_binary(&columns->header_values, columns->headers);
    }
    return columns->timestamp_nulls == 0 ? OK : fill_timestamp_validity(columns);
}

static int64_t binary_bytes(const struct binary *binary, int64_t first, int64_t until) {
    int64_t bytes = 4 * (until - first + 1) + binary->ends[until] - binary->ends[first];
    return binary->nulls == 0 ? bytes : bytes + (until - first + 7) / 8;
}

int64_t row_bytes(const struct columns *columns, int64_t first, int64_t until) {
    int64_t rows = until - first;
    /* topic, partition, offset, timestamp and its type; the ends of the lists of headers */
    int64_t bytes = (1 + 4 + 8 + 8 + 1) * rows + 4 * (rows + 1);
    if (columns->timestamp_nulls > 0)
        bytes += (rows + 7) / 8;
    bytes += binary_bytes(&columns->keys, first, until) + binary_bytes(&columns->values, first, until);
    if (columns->header_ends != NULL) {
        int64_t from = columns->header_ends[first], to = columns->header_ends[until];
        bytes += binary_bytes(&columns->header_keys, from, to) + binary_bytes(&columns->header_values, from, to);
    }
    return bytes;
}

static size_t binary_blocks(const struct binary *binary) {
    return block_size(binary->ends) + block_size(binary->data) + block_size(binary->validity);
}

int64_t held_bytes(const struct columns *columns) {
    return (int64_t)(sizeof *columns + block_size(columns->offsets) + block_size(columns->timestamps) +
                     block_size(columns->timestamp_types) + block_size(columns->timestamp_validity) +
                     block_size(columns->header_ends) + binary_blocks(&columns->keys) +
                     binary_blocks(&columns->values) + binary_blocks(&columns->header_keys) +
                     binary_blocks(&columns->header_values));
}

static void each_binary(const struct columns *columns, const struct binary *all[4]) {
    all[0] = &columns->keys;
    all[1] = &columns->values;
    all[2] = &columns->header_keys;
    all[3] = &columns->header_values;
}

struct place place_of(const struct columns *columns) {
    struct place place = {columns->rows, columns->low, columns->timestamp_nulls, columns->headers, {0}, {0}};
    const struct binary *all[4];
    each_binary(columns, all);
    for (int n = 0; n < 4; n++) {
        place.used[n] = all[n]->used;
        place.nulls[n] = all[n]->nulls;
    }
    return place;
}

void go_back(struct columns *columns, const struct place *place) {
    columns->rows = place->rows;
    columns->low = place->low;
    columns->timestamp_nulls = place->timestamp_nulls;
    columns->headers = place->headers;
    struct binary *all[] = {&columns->keys, &columns->values, &columns->header_keys, &columns->header_values};
    for (int n = 0; n < 4; n++) {
        all[n]->used = place->used[n];
        all[n]->nulls = place->nulls[n];
    }
}
