/* `MessageIterator`: `async for` over the messages of a lot, without a frame of Python for each.

   It is its own awaitable. What is allowed is returned at once; otherwise it awaits the coroutine that allows more, to
   which it passes on what a coroutine's caller sends and throws (PEP 492, PEP 525). */

#include "message_object.h"

typedef struct {
    PyObject_HEAD
    PyObject *lot;
    PyObject *allow_more; /* the coroutine function */
    PyObject *waiting;    /* its coroutine, while that is not done */
} MessageIterator;

static PyObject *iterator_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(keywords)) {
    const struct module_state *state = PyModule_GetState(PyType_GetModule(type));
    PyObject *lot, *allow_more;
    if (!PyArg_ParseTuple(args, "O!O:MessageIterator", state->lot, &lot, &allow_more))
        return NULL;
    MessageIterator *self = (MessageIterator *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    self->lot = Py_NewRef(lot);
    self->allow_more = Py_NewRef(allow_more);
    return (PyObject *)self;
}

static int iterator_traverse(PyObject *object, visitproc visit, void *arg) {
    MessageIterator *self = (MessageIterator *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->lot);
    Py_VISIT(self->allow_more);
    Py_VISIT(self->waiting);
    return 0;
}

static int iterator_clear(PyObject *object) {
    MessageIterator *self = (MessageIterator *)object;
    Py_CLEAR(self->lot);
    Py_CLEAR(self->allow_more);
    Py_CLEAR(self->waiting);
    return 0;
}

static void iterator_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    iterator_clear(object);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

/* The message to return once nothing is waited for; without one the iteration ends. NULL with an exception. */
static PyObject *next_message(MessageIterator *self) {
    if (lot_is_ready(self->lot))
        return lot_take(self->lot);
    PyErr_SetNone(PyExc_StopAsyncIteration);
    return NULL;
}

static PySendResult returned(PyObject *message, PyObject **result) {
    *result = message;
    return message == NULL ? PYGEN_ERROR : PYGEN_RETURN;
}

static PySendResult iterator_send(PyObject *object, PyObject *sent, PyObject **result) {
    MessageIterator *self = (MessageIterator *)object;
    *result = NULL;
    if (self->waiting == NULL) {
        if (lot_is_ready(self->lot))
            return returned(lot_take(self->lot), result);
        self->waiting = PyObject_CallNoArgs(self->allow_more);
        if (self->waiting == NULL)
            return PYGEN_ERROR;
    }
    PyObject *waiting = Py_NewRef(self->waiting); /* it may clear this iterator */
    PySendResult how = PyIter_Send(waiting, sent, result);
    Py_DECREF(waiting);
    if (how == PYGEN_NEXT)
        return PYGEN_NEXT;
    Py_CLEAR(self->waiting);
    if (how == PYGEN_ERROR)
        return PYGEN_ERROR;
    Py_CLEAR(*result);
    return returned(next_message(self), result);
}

/* What a generator's method has for a result: what it yields, or StopIteration with what it returns. */
static PyObject *as_method(PySendResult how, PyObject *result) {
    if (how != PYGEN_RETURN)
        return result;
    PyObject *stop = PyObject_CallFunctionObjArgs(PyExc_StopIteration, result, NULL);
    Py_DECREF(result);
    if (stop != NULL) {
        PyErr_SetObject(PyExc_StopIteration, stop);
        Py_DECREF(stop);
    }
    return NULL;
}

static PyObject *iterator_send_method(PyObject *object, PyObject *sent) {
    PyObject *result;
    PySendResult how = iterator_send(object, sent, &result);
    return as_method(how, result);
}

static PyObject *iterator_next(PyObject *object) { return iterator_send_method(object, Py_None); }

static PyObject *iterator_throw(PyObject *object, PyObject *args) {
    MessageIterator *self = (MessageIterator *)object;
    if (self->waiting == NULL && (self->waiting = PyObject_CallNoArgs(self->allow_more)) == NULL)
        return NULL;
    PyObject *waiting = Py_NewRef(self->waiting);
    PyObject *throw = PyObject_GetAttrString(waiting, "throw");
    PyObject *result = throw == NULL ? NULL : PyObject_CallObject(throw, args);
    Py_XDECREF(throw);
    Py_DECREF(waiting);
    if (result != NULL)
        return result;
    Py_CLEAR(self->waiting);
    if (!PyErr_ExceptionMatches(PyExc_StopIteration))
        return NULL;
    PyErr_Clear(); /* it has handled the exception, and is done */
    PyObject *message = next_message(self);
    return message == NULL ? NULL : as_method(PYGEN_RETURN, message);
}

static PyObject *iterator_close(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    MessageIterator *self = (MessageIterator *)object;
    PyObject *waiting = self->waiting;
    if (waiting == NULL)
        return Py_NewRef(Py_None);
    self->waiting = NULL;
    PyObject *close = PyObject_GetAttrString(waiting, "close");
    PyObject *result = close == NULL ? NULL : PyObject_CallNoArgs(close);
    Py_XDECREF(close);
    Py_DECREF(waiting);
    return result;
}

static PyObject *iterator_anext(PyObject *object) {
    if (((MessageIterator *)object)->waiting != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "another task is waiting for the next message of this iterator");
        return NULL;
    }
    return Py_NewRef(object);
}

static PyMethodDef methods[] = {
    {"send", iterator_send_method, METH_O, "As a coroutine's."},
    {"throw", iterator_throw, METH_VARARGS, "As a coroutine's."},
    {"close", iterator_close, METH_NOARGS, "As a coroutine's."},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "MessageIterator(lot, allow_more): messages of a lot; `allow_more()` is awaited when none may be taken."},
    {Py_tp_new, iterator_new},
    {Py_tp_dealloc, iterator_dealloc},
    {Py_tp_traverse, iterator_traverse},
    {Py_tp_clear, iterator_clear},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, iterator_next},
    {Py_tp_methods, methods},
    {Py_am_aiter, PyObject_SelfIter},
    {Py_am_anext, iterator_anext},
    {Py_am_await, PyObject_SelfIter},
    {Py_am_send, iterator_send},
    {0},
};

PyType_Spec iterator_spec = {
    .name = "kzconsumer.records._native.MessageIterator",
    .basicsize = sizeof(MessageIterator),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
