/* `Origin`: what the messages made together share. Copies: a message that is kept must not keep its whole chunk in
   memory. */

#include "blocks.h"
#include "message_object.h"

static struct origin *new_origin(PyTypeObject *type, Py_ssize_t rows, bool gapless) {
    struct origin *self = (struct origin *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    size_t numbers = gapless ? 1 : 2;
    self->timestamps = new_block((size_t)rows * (numbers * sizeof(int64_t) + 1));
    if (self->timestamps == NULL) {
        Py_DECREF(self);
        PyErr_NoMemory();
        return NULL;
    }
    self->rows = rows;
    self->offsets = gapless ? NULL : self->timestamps + rows;
    self->timestamp_types = (int8_t *)(self->timestamps + rows * (Py_ssize_t)numbers);
    return self;
}

struct origin *origin_of_rows(PyTypeObject *type, const struct rows *rows, PyObject *topic, int partition,
                                PyObject *claim, int64_t begin) {
    const struct columns *columns = rows->columns;
    Py_ssize_t first = rows->first, count = rows->until - rows->first;
    const int64_t *offsets = columns->offsets + first;
    bool gapless = count == 0 || offsets[count - 1] - offsets[0] == count - 1;
    struct origin *self = new_origin(type, count, gapless);
    if (self == NULL)
        return NULL;
    self->topic = Py_NewRef(topic);
    self->partition = partition;
    self->claim = Py_NewRef(claim);
    self->begin = begin;
    self->first = count == 0 ? 0 : offsets[0];
    if (!gapless)
        memcpy(self->offsets, offsets, (size_t)count * sizeof *offsets);
    memcpy(self->timestamps, columns->timestamps + first, (size_t)count * sizeof *self->timestamps);
    memcpy(self->timestamp_types, columns->timestamp_types + first, (size_t)count);
    return self;
}

struct origin *origin_of_one(PyTypeObject *type, PyObject *topic, int partition, int64_t offset, int64_t timestamp,
                             int8_t timestamp_type) {
    struct origin *self = new_origin(type, 1, true);
    if (self == NULL)
        return NULL;
    self->topic = Py_NewRef(topic);
    self->partition = partition;
    self->claim = Py_NewRef(Py_None);
    self->first = self->begin = offset;
    self->timestamps[0] = timestamp;
    self->timestamp_types[0] = timestamp_type;
    return self;
}

Py_ssize_t row_of_offset(const struct origin *self, int64_t offset) {
    if (self->offsets == NULL)
        return (Py_ssize_t)(offset - self->first);
    Py_ssize_t low = 0, high = self->rows - 1;
    while (low < high) {
        Py_ssize_t middle = low + (high - low) / 2;
        if (self->offsets[middle] < offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

PyObject *range_of_offset(const struct origin *self, int64_t offset) {
    if (self->claim == NULL || self->claim == Py_None)
        return Py_NewRef(Py_None);
    Py_ssize_t row = row_of_offset(self, offset);
    int64_t first = row == 0 ? self->begin : self->offsets == NULL ? offset : self->offsets[row - 1] + 1;
    return Py_BuildValue("OLL", self->claim, (long long)first, (long long)offset + 1);
}

static int origin_traverse(PyObject *object, visitproc visit, void *arg) {
    struct origin *self = (struct origin *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->claim);
    return 0;
}

static int origin_clear(PyObject *object) {
    Py_CLEAR(((struct origin *)object)->claim);
    return 0;
}

static void origin_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    struct origin *self = (struct origin *)object;
    PyObject_GC_UnTrack(object);
    Py_XDECREF(self->topic);
    Py_XDECREF(self->claim);
    free_block(self->timestamps);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

static PyType_Slot slots[] = {
    {Py_tp_doc, "What messages made together share."},
    {Py_tp_dealloc, origin_dealloc},
    {Py_tp_traverse, origin_traverse},
    {Py_tp_clear, origin_clear},
    {0},
};

PyType_Spec origin_spec = {
    .name = "kzconsumer.records._native.Origin",
    .basicsize = sizeof(struct origin),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
