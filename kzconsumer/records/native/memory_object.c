/* `Memory`: bytes that are not zeroed before they are written, for what is received or decompressed. */

#include "blocks.h"
#include "objects.h"

typedef struct {
    PyObject_HEAD
    Py_ssize_t size;
    char *data;
} Memory;

static PyObject *memory_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    Py_ssize_t size;
    if (has_keywords(keywords) || !PyArg_ParseTuple(args, "n:Memory", &size))
        return NULL;
    if (size < 0) {
        PyErr_SetString(PyExc_ValueError, "a negative size");
        return NULL;
    }
    Memory *self = (Memory *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    self->size = size;
    self->data = new_block((size_t)size);
    if (self->data == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void memory_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    free_block(((Memory *)object)->data);
    PyObject_Free(object);
    Py_DECREF(type);
}

static int memory_buffer(PyObject *object, Py_buffer *view, int flags) {
    Memory *self = (Memory *)object;
    return PyBuffer_FillInfo(view, object, self->data, self->size, 0, flags);
}

static PyType_Slot slots[] = {
    {Py_tp_doc, "Memory(size): writable bytes, whose first content is undefined."},
    {Py_tp_new, memory_new},
    {Py_tp_dealloc, memory_dealloc},
    {Py_bf_getbuffer, memory_buffer},
    {0},
};

PyType_Spec memory_spec = {
    .name = "kzconsumer.records._native.Memory",
    .basicsize = sizeof(Memory),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
