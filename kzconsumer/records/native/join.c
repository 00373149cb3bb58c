/* `join`: small pieces of one partition as one, which takes less memory beside its records. */

#include "objects.h"

/* Append rows of other columns, whose offsets must be higher than those before them. */
static enum fault append_rows(struct columns *columns, const struct rows *rows) {
    const struct columns *from = rows->columns;
    for (Py_ssize_t row = rows->first; row < rows->until; row++) {
        struct record record = {
            .offset = from->offsets[row],
            .timestamp = from->timestamps[row],
            .key = field_at(&from->keys, row),
            .value = field_at(&from->values, row),
            .timestamp_type = from->timestamp_types[row],
        };
        if (record.offset < columns->low)
            return BAD_OFFSET;
        enum fault fault = copy_headers(columns, from, row);
        if (fault == OK)
            fault = append_record(columns, &record);
        if (fault != OK)
            return fault;
    }
    return OK;
}

static PyObject *raise_fault(enum fault fault) {
    if (fault == NO_MEMORY)
        return PyErr_NoMemory();
    PyErr_SetString(PyExc_ValueError, fault == BAD_OFFSET ? "offsets must increase" : "the records are too large to join");
    return NULL;
}

/* All rows of a tuple of `Columns`. */
static PyObject *join_all(const struct module_state *state, PyObject *pieces) {
    int64_t rows = 0, bytes = 0, values = 0;
    for (Py_ssize_t n = 0; n < PyTuple_Size(pieces); n++) {
        PyObject *piece = PyTuple_GetItem(pieces, n);
        if (Py_TYPE(piece) != state->columns) {
            PyErr_SetString(PyExc_TypeError, "only Columns can be joined");
            return NULL;
        }
        struct rows part = rows_of(piece);
        rows += part.until - part.first;
        bytes += row_bytes(part.columns, part.first, part.until);
        values += part.columns->values.ends[part.until] - part.columns->values.ends[part.first];
    }
    if (bytes > INT32_MAX) /* then each of the columns may be too large for its ends */
        return raise_fault(BAD_COUNT);
    struct columns *columns = new_columns(rows, values, INT64_MIN);
    if (columns == NULL)
        return PyErr_NoMemory();
    enum fault fault = OK;
    for (Py_ssize_t n = 0; n < PyTuple_Size(pieces) && fault == OK; n++) {
        struct rows part = rows_of(PyTuple_GetItem(pieces, n));
        fault = append_rows(columns, &part);
    }
    if (fault == OK)
        fault = finish_columns(columns);
    if (fault == OK)
        return columns_object(state->columns, columns);
    release_columns(columns);
    return raise_fault(fault);
}

PyObject *join(PyObject *module, PyObject *argument) {
    PyObject *pieces = PySequence_Tuple(argument);
    if (pieces == NULL)
        return NULL;
    PyObject *joined = join_all(PyModule_GetState(module), pieces);
    Py_DECREF(pieces);
    return joined;
}
