/* Framing and checksums of a response under Python's rules. */

#include "response.h"

#include "records.h"

/* From this size on the GIL is released. Below, giving it up costs more than it gives: to get it back from a busy
   thread takes up to the interpreter's switch interval (5 ms). */
enum { RELEASE_GIL_FROM = 1 << 16, RELEASE_GIL_FOR_CHECKSUM_FROM = 1 << 20 };

static void frame_response(struct response *response) {
    if (response->bytes.len < RELEASE_GIL_FROM) {
        find_batches(&response->batches, response->tables);
        return;
    }
    Py_BEGIN_ALLOW_THREADS
    find_batches(&response->batches, response->tables);
    Py_END_ALLOW_THREADS
}

/* Whether the checksum of a magic 2 batch is right: 1 or 0, -1 with an exception. */
static int checksum_matches(struct response *response, const struct batch *batch, PyObject *crc32c) {
    int64_t end = batch->position + BATCH_HEADER + batch->size;
    PyObject *checked = PySequence_GetSlice(response->view, batch->position + CHECKED_FROM, end);
    if (checked == NULL)
        return -1;
    int release = end - batch->position >= RELEASE_GIL_FOR_CHECKSUM_FROM;
    PyObject *found = PyObject_CallFunction(crc32c, "Oii", checked, 0, release);
    Py_DECREF(checked);
    if (found == NULL)
        return -1;
    unsigned long crc = PyLong_AsUnsignedLong(found);
    Py_DECREF(found);
    if (crc == (unsigned long)-1 && PyErr_Occurred())
        return -1;
    return crc == load_u32(response->batches.data + batch->position + CRC_AT);
}

/* Check the batches of magic 2, whose framing is known, up to the first that cannot be used. */
static bool check_batches(struct response *response, PyObject *crc32c) {
    struct batches *batches = &response->batches;
    for (ptrdiff_t row = 0; row < batches->count; row++) {
        const struct batch *batch = &batches->at[row];
        if (batch->magic != 2)
            continue;
        int matches = crc32c == Py_None ? 1 : checksum_matches(response, batch, crc32c);
        if (matches < 0)
            return false;
        enum fault fault = matches ? batch_fault(batch) : BAD_CRC;
        if (fault != OK)
            end_before(batches, row, fault);
    }
    return true;
}

bool open_response(struct response *response, PyObject *module, PyObject *records, PyObject *crc32c) {
    const struct module_state *state = PyModule_GetState(module);
    *response = (struct response){0};
    response->view = PyMemoryView_FromObject(records);
    if (response->view == NULL || PyObject_GetBuffer(response->view, &response->bytes, PyBUF_SIMPLE) < 0)
        return false;
    if (response->bytes.itemsize != 1) {
        PyErr_SetString(PyExc_ValueError, "record bytes must be a sequence of single bytes");
        return false;
    }
    response->batches.data = response->bytes.buf;
    response->batches.size = response->bytes.len;
    response->tables = crc32c == Py_None ? NULL : &state->crc_tables;
    frame_response(response);
    if (response->batches.fault == NO_MEMORY) {
        PyErr_NoMemory();
        return false;
    }
    return check_batches(response, crc32c);
}

struct plan plan_reading(struct batches *batches, int64_t start, int64_t limit) {
    struct plan plan = {.rows = batches->count};
    for (ptrdiff_t row = 0; row < batches->count; row++) {
        struct batch *batch = &batches->at[row];
        bool legacy = batch->magic < 2;
        batch->skip = batch->last < start || (!legacy && batch->attributes & CONTROL);
        if (batch->skip)
            continue;
        if (plan.size > 0 && batch->size > limit - plan.size) {
            plan.rows = row;
            break;
        }
        int64_t smallest = legacy ? LOG_OVERHEAD + MESSAGE_SIZE_V0 : SMALLEST_RECORD;
        int64_t records = batch->count < batch->size / smallest ? batch->count : batch->size / smallest;
        if (records > 0) {
            plan.records += records;
            plan.fields += batch->size - records * smallest;
        }
        plan.size += batch->size;
        plan.compressed = plan.compressed || (batch->attributes & CODEC_MASK) != 0;
    }
    return plan;
}

static void stop_before(struct batches *batches, ptrdiff_t row) {
    if (row < batches->count) {
        batches->count = row;
        batches->partial = false;
        batches->fault = OK;
    }
}

/* Count what a wrapper holds, and make the offsets inside relative to its own (KIP-31: from magic 1 on they are). One
   that is beyond the wrapper's is refused, as by `org.apache.kafka.common.record.AbstractLegacyRecordBatch`. */
static enum fault open_wrapper(struct batch *batch, const struct crc_tables *tables) {
    int64_t last = 0;
    enum fault fault = count_messages(batch->body, batch->size, batch->magic, tables, &batch->count, &last);
    if (fault != OK || batch->magic == 0)
        return fault;
    if (last > batch->last || __builtin_sub_overflow(batch->last, last, &batch->base) || batch->base > MAX_OFFSET)
        return BAD_OFFSET;
    return OK;
}

/* Decompress one batch; `decompress` returns its body, or a text that says what is wrong. False with an exception. */
static bool open_body(struct response *response, ptrdiff_t row, PyObject *decompress) {
    struct batch *batch = &response->batches.at[row];
    int64_t first = batch->body - response->batches.data;
    PyObject *body = PySequence_GetSlice(response->view, first, first + batch->size);
    if (body == NULL)
        return false;
    PyObject *opened = PyObject_CallFunction(decompress, "iiN", batch->attributes & CODEC_MASK, batch->magic, body);
    if (opened == NULL)
        return false;
    if (PyUnicode_Check(opened)) {
        end_before(&response->batches, row, BAD_BODY);
        response->reason = opened;
        return true;
    }
    Py_buffer *buffer = &response->bodies[response->body_count];
    int got = PyObject_GetBuffer(opened, buffer, PyBUF_SIMPLE);
    Py_DECREF(opened);
    if (got < 0)
        return false;
    response->body_count++;
    response->decompressed += buffer->len;
    batch->body = buffer->buf;
    batch->size = buffer->len;
    enum fault fault = batch->magic == 2 ? OK : open_wrapper(batch, response->tables);
    if (fault != OK)
        end_before(&response->batches, row, fault);
    return true;
}

bool open_bodies(struct response *response, int64_t start, int64_t limit, PyObject *decompress, struct plan *plan) {
    struct batches *batches = &response->batches;
    *plan = plan_reading(batches, start, limit);
    stop_before(batches, plan->rows);
    if (!plan->compressed)
        return true;
    response->bodies = calloc((size_t)batches->count, sizeof *response->bodies);
    if (response->bodies == NULL) {
        PyErr_NoMemory();
        return false;
    }
    int64_t size = 0; /* of the bodies so far */
    for (ptrdiff_t row = 0; row < batches->count; row++) {
        struct batch *batch = &batches->at[row];
        bool emptied = batch->magic == 2 && batch->size == 0; /* by compaction */
        if (batch->skip)
            continue;
        if ((batch->attributes & CODEC_MASK) != 0 && !emptied && !open_body(response, row, decompress))
            return false;
        if (size > 0 && batch->size > limit - size)
            stop_before(batches, row);
        size += batch->size;
    }
    *plan = plan_reading(batches, start, INT32_MAX); /* more does not fit into a column */
    stop_before(batches, plan->rows);
    return true;
}

PyObject *fault_of(const struct response *response) {
    const struct batches *batches = &response->batches;
    if (batches->fault == BAD_BODY)
        return PyUnicode_FromFormat("batch at byte %lld: %U", (long long)batches->fault_at, response->reason);
    if (batches->fault == OK)
        return Py_NewRef(Py_None);
    return PyUnicode_FromFormat("batch at byte %lld: %s", (long long)batches->fault_at, fault_text(batches->fault));
}

void close_response(struct response *response) {
    for (ptrdiff_t n = 0; n < response->body_count; n++)
        PyBuffer_Release(&response->bodies[n]);
    free(response->bodies);
    free_batches(&response->batches);
    Py_XDECREF(response->reason);
    Py_XDECREF(response->view);
    if (response->bytes.obj != NULL)
        PyBuffer_Release(&response->bytes);
}
