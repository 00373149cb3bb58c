/* `Lot`: records that are handed out as messages, each made when it is taken. */

#define _POSIX_C_SOURCE 200809L /* for clock_gettime; as Python.h defines it */
#include <time.h>

#include "message_object.h"

/* Read for every message: the precise clock takes four times as long. */
#ifdef CLOCK_MONOTONIC_COARSE
#define CLOCK CLOCK_MONOTONIC_COARSE
#else
#define CLOCK CLOCK_MONOTONIC
#endif

typedef struct {
    PyObject_HEAD
    PyTypeObject *message;
    struct origin *origin; /* NULL while it is empty, as are the columns */
    struct columns *columns;
    Py_ssize_t first; /* rows `first <= row < until` of the columns */
    Py_ssize_t until;
    Py_ssize_t row; /* the next one */
    double deadline; /* when the next look is due, in seconds of CLOCK */
} Lot;

static double seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* Hand out the rows next, of which references are taken over. To let go of the present ones may run any code, last. */
static void replace(Lot *self, struct rows rows, struct origin *origin) {
    struct columns *columns = self->columns;
    struct origin *before = self->origin;
    self->columns = rows.columns;
    self->origin = origin;
    self->first = self->row = rows.first;
    self->until = rows.until;
    self->deadline = 0;
    if (columns != NULL)
        release_columns(columns);
    Py_XDECREF(before);
}

static void empty(Lot *self) { replace(self, (struct rows){NULL, 0, 0}, NULL); }

static PyObject *lot_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    const struct module_state *state = PyModule_GetState(PyType_GetModule(type));
    if (has_keywords(keywords) || !PyArg_ParseTuple(args, ":Lot"))
        return NULL;
    Lot *self = (Lot *)PyType_GenericAlloc(type, 0);
    if (self != NULL)
        self->message = (PyTypeObject *)Py_NewRef((PyObject *)state->message);
    return (PyObject *)self;
}

static int lot_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((Lot *)object)->message);
    Py_VISIT(((Lot *)object)->origin);
    return 0;
}

static int lot_clear(PyObject *object) {
    empty((Lot *)object);
    return 0;
}

static void lot_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    empty((Lot *)object);
    Py_XDECREF(((Lot *)object)->message);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

static PyObject *message_of(const Lot *self, Py_ssize_t row) {
    const struct columns *columns = self->columns;
    return message_object(self->message, columns->offsets[row], field_of(&columns->keys, row),
                          field_of(&columns->values, row), headers_of(columns, row), self->origin);
}

bool lot_has_rest(PyObject *object) { return ((Lot *)object)->row < ((Lot *)object)->until; }

bool lot_is_ready(PyObject *object) { return lot_has_rest(object) && seconds() < ((Lot *)object)->deadline; }

PyObject *lot_take(PyObject *object) {
    Lot *self = (Lot *)object;
    PyObject *message = message_of(self, self->row);
    self->row += message != NULL;
    return message;
}

static PyObject *lot_load(PyObject *object, PyObject *args) {
    Lot *self = (Lot *)object;
    const struct module_state *state = PyModule_GetState(PyType_GetModule(Py_TYPE(object)));
    PyObject *columns, *topic, *claim;
    int partition;
    long long begin;
    if (!PyArg_ParseTuple(args, "O!UiOL:load", state->columns, &columns, &topic, &partition, &claim, &begin))
        return NULL;
    struct rows rows = rows_of(columns);
    struct origin *origin = origin_of_rows(state->origin, &rows, topic, partition, claim, begin);
    if (origin == NULL)
        return NULL;
    share_columns(rows.columns);
    replace(self, rows, origin);
    return Py_NewRef(Py_None);
}

static PyObject *lot_allow(PyObject *object, PyObject *argument) {
    Lot *self = (Lot *)object;
    double most = PyFloat_AsDouble(argument);
    if (most == -1.0 && PyErr_Occurred())
        return NULL;
    self->deadline = seconds() + most;
    return Py_NewRef(Py_None);
}

static PyObject *lot_take_method(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    return lot_is_ready(object) ? lot_take(object) : Py_NewRef(Py_None);
}

static PyObject *lot_last(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    Lot *self = (Lot *)object;
    if (self->row == self->first)
        return Py_NewRef(Py_None);
    return range_of_offset(self->origin, self->columns->offsets[self->row - 1]);
}

static PyObject *lot_clear_method(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    empty((Lot *)object);
    return Py_NewRef(Py_None);
}

static Py_ssize_t lot_length(PyObject *object) { return ((Lot *)object)->until - ((Lot *)object)->row; }

static PyMethodDef methods[] = {
    {"load", lot_load, METH_VARARGS,
     "load(columns, topic, partition, claim, begin): hand out these records next, instead of the present ones."},
    {"allow", lot_allow, METH_O, "allow(seconds): let the rest be taken for so long."},
    {"take", lot_take_method, METH_NOARGS, "The next message; None if no more may be taken."},
    {"last", lot_last, METH_NOARGS, "The range that is acknowledged with the message taken last; None if there is none."},
    {"clear", lot_clear_method, METH_NOARGS, "Drop the rest, and what was taken last."},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Records that are handed out as messages, each made when it is taken. Its length: the rest."},
    {Py_tp_new, lot_new},
    {Py_tp_dealloc, lot_dealloc},
    {Py_tp_traverse, lot_traverse},
    {Py_tp_clear, lot_clear},
    {Py_sq_length, lot_length},
    {Py_tp_methods, methods},
    {0},
};

PyType_Spec lot_spec = {
    .name = "kzconsumer.records._native.Lot",
    .basicsize = sizeof(Lot),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
