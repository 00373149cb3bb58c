/* Bounds-checked reading of bytes that came over the network.

   The rules: a record is bounded by its length first, each field by the end of its record; every byte of a varint is
   checked; lengths are compared by subtraction, because a sum could overflow. */

#ifndef KZCONSUMER_VARINTS_H
#define KZCONSUMER_VARINTS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Big-endian numbers. The caller has checked that the bytes are there. */

static inline uint32_t load_u32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline int16_t load_i16(const uint8_t *at) { return (int16_t)(at[0] << 8 | at[1]); }

static inline int32_t load_i32(const uint8_t *at) { return (int32_t)load_u32(at); }

static inline int64_t load_i64(const uint8_t *at) {
    return (int64_t)((uint64_t)load_u32(at) << 32 | load_u32(at + 4));
}

/* The sum as Java and the processor compute it. */
static inline int64_t wrapping_sum(int64_t one, int64_t other) { return (int64_t)((uint64_t)one + (uint64_t)other); }

/* Highest shifts of the last byte of a varint: five bytes for an int32, ten for an int64. */
enum { INT32_SHIFT = 28, INT64_SHIFT = 63 };

/* Read a zigzag varint; returns where the next field begins, or NULL if it is cut off or overlong. */
static inline const uint8_t *read_varint(const uint8_t *at, const uint8_t *end, int last_shift, int64_t *value) {
    if (at >= end)
        return NULL;
    uint64_t bits = *at++;
    if (bits >= 128) {
        bits &= 127;
        for (int shift = 7;; shift += 7) {
            if (at >= end || shift > last_shift)
                return NULL;
            uint64_t byte = *at++;
            bits |= (byte & 127) << shift;
            if (byte < 128)
                break;
        }
    }
    *value = (int64_t)(bits >> 1 ^ (0 - (bits & 1)));
    return at;
}

/* A key or value: `data` is NULL for null. */
struct field {
    const uint8_t *data;
    int64_t size;
};

/* Read a field whose length is a varint, -1 for null. Returns where the next one begins, or NULL; `cut_off` tells
   whether its length could not be read, or was read and does not fit. */
static inline const uint8_t *read_field(const uint8_t *at, const uint8_t *end, struct field *field, int *cut_off) {
    int64_t size;
    *cut_off = 0;
    at = read_varint(at, end, INT32_SHIFT, &size);
    if (at == NULL) {
        *cut_off = 1;
        return NULL;
    }
    if (size < -1 || size > end - at)
        return NULL;
    field->data = size < 0 ? NULL : at;
    field->size = size < 0 ? 0 : size;
    return at + field->size;
}

#endif
