/* `Columns`: decoded records as Python values or as Arrow arrays. */

#include "arrow.h"
#include "objects.h"

typedef struct {
    PyObject_HEAD
    struct columns *columns;
    Py_ssize_t first; /* rows `first <= row < until` */
    Py_ssize_t until;
} Columns;

struct rows rows_of(PyObject *object) {
    const Columns *self = (Columns *)object;
    return (struct rows){self->columns, self->first, self->until};
}

PyObject *columns_object(PyTypeObject *type, struct columns *columns) {
    Columns *self = (Columns *)PyType_GenericAlloc(type, 0);
    if (self == NULL) {
        release_columns(columns);
        return NULL;
    }
    self->columns = columns;
    self->until = (Py_ssize_t)columns->rows;
    return (PyObject *)self;
}

static void columns_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    release_columns(((Columns *)object)->columns);
    PyObject_Free(object);
    Py_DECREF(type);
}

static Py_ssize_t columns_length(PyObject *object) {
    Columns *self = (Columns *)object;
    return self->until - self->first;
}

static PyObject *columns_slice(PyObject *object, PyObject *args) {
    Columns *self = (Columns *)object;
    Py_ssize_t first, until = PTRDIFF_MAX, rows = columns_length(object);
    if (!PyArg_ParseTuple(args, "n|n:slice", &first, &until))
        return NULL;
    first = first < 0 ? 0 : first > rows ? rows : first;
    until = until < first ? first : until > rows ? rows : until;
    Columns *part = (Columns *)PyType_GenericAlloc(Py_TYPE(self), 0);
    if (part == NULL)
        return NULL;
    share_columns(self->columns);
    part->columns = self->columns;
    part->first = self->first + first;
    part->until = self->first + until;
    return (PyObject *)part;
}

static PyObject *columns_rows_below(PyObject *object, PyObject *argument) {
    Columns *self = (Columns *)object;
    int64_t offset = PyLong_AsLongLong(argument);
    if (offset == -1 && PyErr_Occurred())
        return NULL;
    Py_ssize_t low = self->first, high = self->until;
    while (low < high) {
        Py_ssize_t middle = low + (high - low) / 2;
        if (self->columns->offsets[middle] < offset)
            low = middle + 1;
        else
            high = middle;
    }
    return PyLong_FromSsize_t(low - self->first);
}

PyObject *field_of(const struct binary *binary, Py_ssize_t row) {
    struct field field = field_at(binary, row);
    if (field.data == NULL)
        return Py_NewRef(Py_None);
    return PyBytes_FromStringAndSize((const char *)field.data, field.size);
}

PyObject *headers_of(const struct columns *columns, Py_ssize_t row) {
    if (columns->header_ends == NULL)
        return PyTuple_New(0);
    Py_ssize_t first = columns->header_ends[row], until = columns->header_ends[row + 1];
    PyObject *pairs = PyTuple_New(until - first);
    for (Py_ssize_t n = first; pairs != NULL && n < until; n++) {
        int32_t at = columns->header_keys.ends[n];
        const char *key = (const char *)columns->header_keys.data + at;
        PyObject *name = PyUnicode_DecodeUTF8(key, columns->header_keys.ends[n + 1] - at, NULL);
        PyObject *value = field_of(&columns->header_values, n);
        PyObject *pair = name != NULL && value != NULL ? PyTuple_Pack(2, name, value) : NULL;
        Py_XDECREF(name);
        Py_XDECREF(value);
        if (pair == NULL)
            Py_CLEAR(pairs);
        else
            PyTuple_SetItem(pairs, n - first, pair);
    }
    return pairs;
}

static PyObject *columns_arrow_array(PyObject *object, PyObject *args) {
    Columns *self = (Columns *)object;
    const char *topic;
    Py_ssize_t topic_size;
    int partition;
    if (!PyArg_ParseTuple(args, "s#i:arrow_array", &topic, &topic_size, &partition))
        return NULL;
    return arrow_array(self->columns, self->first, self->until, topic, topic_size, partition);
}

static PyObject *columns_nbytes(PyObject *object, void *Py_UNUSED(closure)) {
    Columns *self = (Columns *)object;
    return PyLong_FromLongLong(row_bytes(self->columns, self->first, self->until));
}

static PyObject *columns_held(PyObject *object, void *Py_UNUSED(closure)) {
    return PyLong_FromLongLong(held_bytes(((Columns *)object)->columns));
}

static PyMethodDef methods[] = {
    {"slice", columns_slice, METH_VARARGS, "slice(first, until=...): the rows from index `first` on, below `until`."},
    {"rows_below", columns_rows_below, METH_O, "Number of rows whose offset is lower."},
    {"arrow_array", columns_arrow_array, METH_VARARGS,
     "arrow_array(topic, partition): the rows as a record batch, for Arrow's PyCapsule interface."},
    {0},
};

static PyGetSetDef properties[] = {
    {"nbytes", columns_nbytes, NULL, "Bytes of these rows and of what describes them as columns.", NULL},
    {"held", columns_held, NULL, "Bytes of memory that this object keeps.", NULL},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Decoded records of one partition; immutable."},
    {Py_tp_dealloc, columns_dealloc},
    {Py_sq_length, columns_length},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {0},
};

PyType_Spec columns_spec = {
    .name = "kzconsumer.records._native.Columns",
    .basicsize = sizeof(Columns),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
