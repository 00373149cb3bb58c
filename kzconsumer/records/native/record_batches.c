/* Record batches (magic 2): `org.apache.kafka.common.record.DefaultRecord` of Kafka 3.9. */

#include "records.h"

/* The fields of one record, of `[at, end)`; the headers begin at `headers`. */
struct fields {
    int64_t timestamp_delta;
    int64_t offset_delta;
    struct field key;
    struct field value;
    int64_t header_count;
    const uint8_t *headers;
};

static enum fault check_headers(const uint8_t *at, const uint8_t *end, int64_t count) {
    if (count < 0 || count > (end - at) / 2)
        return BAD_HEADER;
    for (int64_t n = 0; n < count; n++) {
        struct field key, value;
        int cut_off;
        if ((at = read_field(at, end, &key, &cut_off)) == NULL || key.data == NULL)
            return BAD_HEADER;
        if ((at = read_field(at, end, &value, &cut_off)) == NULL)
            return BAD_HEADER;
    }
    return at == end ? OK : BAD_RECORD;
}

static inline enum fault read_fields(const uint8_t *at, const uint8_t *end, int64_t last_delta, struct fields *fields) {
    int cut_off;
    /* After the attributes, which no record uses. */
    if ((at = read_varint(at + 1, end, INT64_SHIFT, &fields->timestamp_delta)) == NULL)
        return BAD_VARINT;
    if ((at = read_varint(at, end, INT32_SHIFT, &fields->offset_delta)) == NULL)
        return BAD_VARINT;
    if (fields->offset_delta < 0 || fields->offset_delta > last_delta)
        return BAD_OFFSET;
    if ((at = read_field(at, end, &fields->key, &cut_off)) == NULL)
        return cut_off ? BAD_VARINT : BAD_FIELD;
    if ((at = read_field(at, end, &fields->value, &cut_off)) == NULL)
        return cut_off ? BAD_VARINT : BAD_FIELD;
    if ((at = read_varint(at, end, INT32_SHIFT, &fields->header_count)) == NULL)
        return BAD_VARINT;
    fields->headers = at;
    if (fields->header_count != 0)
        return check_headers(at, end, fields->header_count);
    return at == end ? OK : BAD_RECORD;
}

enum fault read_batch(const struct batch *batch, struct columns *columns) {
    const uint8_t *at = batch->body, *end = batch->body + batch->size;
    int64_t last_delta = batch->last - batch->base;
    bool append_time = (batch->attributes & LOG_APPEND_TIME) != 0;
    if (batch->count < 0 || batch->count > batch->size / SMALLEST_RECORD)
        return BAD_COUNT;
    for (int64_t n = 0; n < batch->count; n++) {
        int64_t size;
        if ((at = read_varint(at, end, INT32_SHIFT, &size)) == NULL)
            return BAD_VARINT;
        if (size < SMALLEST_RECORD - 1 || size > end - at)
            return BAD_RECORD;
        const uint8_t *next = at + size;
        struct fields fields;
        enum fault fault = read_fields(at, next, last_delta, &fields);
        at = next; /* depends on the length only: the processor need not wait for the fields */
        if (fault != OK)
            return fault;
        struct record record = {
            .offset = batch->base + fields.offset_delta,
            .timestamp = append_time ? batch->max_timestamp
                                     : wrapping_sum(batch->first_timestamp, fields.timestamp_delta),
            .timestamp_type = append_time ? APPEND_TIME : CREATE_TIME,
            .key = fields.key,
            .value = fields.value,
        };
        if (record.offset < columns->low)
            continue;
        if (fields.header_count > 0)
            fault = append_headers(columns, fields.headers, next, fields.header_count);
        if (fault == OK)
            fault = append_record(columns, &record);
        if (fault != OK)
            return fault;
    }
    return at == end ? OK : BAD_TAIL;
}

enum fault read_marker(const struct batch *batch, bool *aborts) {
    enum { ABORT = 0, TYPE_AT = 2, TYPE_END = 4 };
    const uint8_t *at = batch->body, *end = batch->body + batch->size;
    int64_t size, ignored;
    int cut_off;
    struct field key;
    if ((batch->attributes & CODEC_MASK) != 0)
        return BAD_MARKER;
    if ((at = read_varint(at, end, INT32_SHIFT, &size)) == NULL || size < 1 || size > end - at)
        return BAD_MARKER;
    end = at + size;
    if ((at = read_varint(at + 1, end, INT64_SHIFT, &ignored)) == NULL ||
        (at = read_varint(at, end, INT32_SHIFT, &ignored)) == NULL || read_field(at, end, &key, &cut_off) == NULL ||
        key.size < TYPE_END)
        return BAD_MARKER;
    *aborts = load_i16(key.data + TYPE_AT) == ABORT;
    return OK;
}
