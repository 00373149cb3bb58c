/* The functions of the module: they take record bytes, and keep nothing of them. */

#include "blocks.h"
#include "records.h"
#include "response.h"
#include "transactions.h"

/* From this size of bodies on the GIL is released, see `response.c`. */
enum { RELEASE_GIL_FROM = 1 << 16 };

/* Read the records of all batches; these end before the first that is bad, of which nothing is kept. */
static enum fault read_records(struct batches *batches, struct columns *columns) {
    for (ptrdiff_t row = 0; row < batches->count; row++) {
        const struct batch *batch = &batches->at[row];
        if (batch->skip)
            continue;
        struct place before = place_of(columns);
        enum fault fault = batch->magic == 2 ? read_batch(batch, columns) : read_messages(batch, columns);
        if (fault == NO_MEMORY)
            return NO_MEMORY;
        if (fault != OK) {
            go_back(columns, &before);
            end_before(batches, row, fault);
        }
    }
    return finish_columns(columns);
}

/* Replace what is no UTF-8 in the keys of headers, as Java does (`Utils.utf8`). False with an exception. */
static bool make_header_keys_text(struct columns *columns) {
    struct binary *keys = &columns->header_keys;
    bool ascii = true;
    for (int64_t at = 0; at < keys->used && ascii; at++)
        ascii = keys->data[at] < 128;
    if (ascii)
        return true;
    struct binary text = {.ends = keys->ends};
    int32_t first = 0;
    for (int64_t n = 0; n < columns->headers; n++) {
        PyObject *key = PyUnicode_DecodeUTF8((const char *)keys->data + first, keys->ends[n + 1] - first, "replace");
        Py_ssize_t size = 0;
        const char *data = key == NULL ? NULL : PyUnicode_AsUTF8AndSize(key, &size);
        if (data != NULL && size > text.room - text.used && grow_binary(&text, size) != OK) {
            PyErr_NoMemory();
            data = NULL;
        }
        if (data == NULL) {
            Py_XDECREF(key);
            free_block(text.data);
            return false;
        }
        if (size > 0)
            memcpy(text.data + text.used, data, (size_t)size);
        Py_DECREF(key);
        text.used += size;
        first = keys->ends[n + 1];
        keys->ends[n + 1] = (int32_t)text.used;
    }
    free_block(keys->data);
    keys->data = text.data;
    keys->used = text.used;
    return true;
}

/* The columns of what was planned; None if there is no record. NULL with an exception. */
static PyObject *read_columns(PyObject *module, struct batches *batches, const struct plan *plan, int64_t start) {
    const struct module_state *state = PyModule_GetState(module);
    if (batches->count == 0)
        return Py_NewRef(Py_None);
    if (plan->size > INT32_MAX)
        return PyErr_NoMemory();
    struct columns *columns = new_columns(plan->records, plan->fields, start);
    if (columns == NULL)
        return PyErr_NoMemory();
    enum fault fault;
    if (plan->size < RELEASE_GIL_FROM)
        fault = read_records(batches, columns);
    else {
        Py_BEGIN_ALLOW_THREADS
        fault = read_records(batches, columns);
        Py_END_ALLOW_THREADS
    }
    if (fault == NO_MEMORY)
        PyErr_NoMemory();
    if (fault == NO_MEMORY || !make_header_keys_text(columns)) {
        release_columns(columns);
        return NULL;
    }
    if (columns->rows > 0)
        return columns_object(state->columns, columns);
    release_columns(columns);
    return Py_NewRef(Py_None);
}

static int by_producer(const void *one, const void *other) {
    const struct transaction *left = one, *right = other;
    if (left->producer != right->producer)
        return left->producer < right->producer ? -1 : 1;
    return left->first < right->first ? -1 : left->first > right->first;
}

static bool hide(struct batches *batches, PyObject *aborted) {
    PyObject *pairs = PySequence_Tuple(aborted);
    if (pairs == NULL)
        return false;
    Py_ssize_t count = PyTuple_Size(pairs);
    struct transaction *transactions = calloc((size_t)count + 1, sizeof *transactions);
    bool good = transactions != NULL;
    if (!good)
        PyErr_NoMemory();
    for (Py_ssize_t n = 0; n < count && good; n++) {
        long long producer, first;
        good = PyArg_ParseTuple(PyTuple_GetItem(pairs, n), "LL;(producer id, first offset)", &producer, &first);
        if (good)
            transactions[n] = (struct transaction){producer, first, 0};
    }
    if (good && count > 0) {
        qsort(transactions, (size_t)count, sizeof *transactions, by_producer);
        hide_aborted(batches, transactions, count);
    }
    free(transactions);
    Py_DECREF(pairs);
    return good;
}

/* (first offset, epoch) of each run of batches of one leader epoch, in order; the first begins at `start`, and each
   ends where the next one begins. A gap in the offsets belongs to the run behind it. NULL with an exception. */
static PyObject *epochs_of(const struct batches *batches, int64_t start) {
    PyObject *runs = PyList_New(0);
    int64_t from = start, present = 0;
    bool first = true;
    for (ptrdiff_t row = 0; runs != NULL && row < batches->count; row++) {
        const struct batch *batch = &batches->at[row];
        if (batch->last < from)
            continue;
        int64_t epoch = leader_epoch(batches, batch);
        if (first || epoch != present) {
            PyObject *run = Py_BuildValue("LL", (long long)from, (long long)epoch);
            if (run == NULL || PyList_Append(runs, run) < 0)
                Py_CLEAR(runs);
            Py_XDECREF(run);
        }
        first = false;
        present = epoch;
        from = batch->last + 1;
    }
    PyObject *found = runs == NULL ? NULL : PyList_AsTuple(runs);
    Py_XDECREF(runs);
    return found;
}

PyObject *decode(PyObject *module, PyObject *args) {
    PyObject *records, *aborted, *crc32c, *decompress, *result = NULL;
    long long start, limit;
    if (!PyArg_ParseTuple(args, "OLOLOO:decode", &records, &start, &aborted, &limit, &crc32c, &decompress))
        return NULL;
    struct response response;
    struct batches *batches = &response.batches;
    struct plan plan;
    if (open_response(&response, module, records, crc32c) && hide(batches, aborted)) {
        bool incomplete = batches->partial && batches->count == 0;
        PyObject *columns = NULL;
        if (open_bodies(&response, start, limit, decompress, &plan))
            columns = read_columns(module, batches, &plan, start);
        if (columns != NULL)
            result = Py_BuildValue("NLNNLLN", columns, (long long)next_offset(batches, start),
                                   PyBool_FromLong(incomplete), fault_of(&response), (long long)batches->fault_at,
                                   (long long)response.decompressed, epochs_of(batches, start));
    }
    close_response(&response);
    return result;
}

PyObject *scan_next_offset(PyObject *module, PyObject *args) {
    PyObject *records, *result = NULL;
    long long start;
    if (!PyArg_ParseTuple(args, "OL:scan_next_offset", &records, &start))
        return NULL;
    struct response response;
    if (open_response(&response, module, records, Py_None))
        result = PyLong_FromLongLong(next_offset(&response.batches, start));
    close_response(&response);
    return result;
}
