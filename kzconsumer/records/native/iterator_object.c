/* `async for` over the messages of a lot, without a frame of Python for each.

   `MessageIterator.__anext__` returns a `NextMessage`. Awaited, it returns what is allowed at once; otherwise it awaits a
   coroutine that allows more, to which it passes on what a coroutine's caller sends and throws (PEP 492). */

#include "message_object.h"

typedef struct {
    PyObject_HEAD
    PyObject *lot;
    PyObject *allow_more; /* the coroutine function */
    PyObject *waiting;    /* its coroutine, while that is not done */
} NextMessage;

typedef struct {
    PyObject_HEAD
    PyObject *lot;
    PyObject *allow_more;
    PyTypeObject *next_type;
    PyObject *spare; /* the last NextMessage, used again if nobody else has it */
} MessageIterator;

/* The message to return once nothing is waited for; without one the iteration ends. NULL with an exception. */
static PyObject *next_message(NextMessage *self) {
    if (lot_has_rest(self->lot))
        return lot_take(self->lot);
    PyErr_SetNone(PyExc_StopAsyncIteration);
    return NULL;
}

/* Begin to wait, if that was not begun. False with an exception. */
static bool begin(NextMessage *self) {
    if (self->waiting == NULL) {
        PyObject *waiting = PyObject_CallNoArgs(self->allow_more);
        Py_XDECREF(self->waiting);
        self->waiting = waiting;
    }
    return self->waiting != NULL;
}

static PySendResult next_send(PyObject *object, PyObject *sent, PyObject **result) {
    NextMessage *self = (NextMessage *)object;
    *result = NULL;
    if (self->waiting == NULL && lot_is_ready(self->lot)) {
        *result = lot_take(self->lot);
        return *result == NULL ? PYGEN_ERROR : PYGEN_RETURN;
    }
    if (!begin(self))
        return PYGEN_ERROR;
    PyObject *waiting = Py_NewRef(self->waiting); /* it may let go of this */
    PySendResult how = PyIter_Send(waiting, sent, result);
    Py_DECREF(waiting);
    if (how == PYGEN_NEXT)
        return PYGEN_NEXT;
    Py_CLEAR(self->waiting);
    if (how == PYGEN_ERROR)
        return PYGEN_ERROR;
    Py_CLEAR(*result);
    *result = next_message(self);
    return *result == NULL ? PYGEN_ERROR : PYGEN_RETURN;
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

static PyObject *next_send_method(PyObject *object, PyObject *sent) {
    PyObject *result;
    PySendResult how = next_send(object, sent, &result);
    return as_method(how, result);
}

static PyObject *next_iternext(PyObject *object) { return next_send_method(object, Py_None); }

static PyObject *next_throw(PyObject *object, PyObject *args) {
    NextMessage *self = (NextMessage *)object;
    if (!begin(self))
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

static PyObject *next_close(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    NextMessage *self = (NextMessage *)object;
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

static int next_traverse(PyObject *object, visitproc visit, void *arg) {
    NextMessage *self = (NextMessage *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->lot);
    Py_VISIT(self->allow_more);
    Py_VISIT(self->waiting);
    return 0;
}

static int next_clear(PyObject *object) {
    Py_CLEAR(((NextMessage *)object)->waiting);
    return 0;
}

static void next_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    NextMessage *self = (NextMessage *)object;
    PyObject_GC_UnTrack(object);
    Py_XDECREF(self->waiting);
    Py_DECREF(self->lot);
    Py_DECREF(self->allow_more);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

static PyMethodDef next_methods[] = {
    {"send", next_send_method, METH_O, "As a coroutine's."},
    {"throw", next_throw, METH_VARARGS, "As a coroutine's."},
    {"close", next_close, METH_NOARGS, "As a coroutine's."},
    {0},
};

static PyType_Slot next_slots[] = {
    {Py_tp_doc, "The next message of an iterator, to be awaited once."},
    {Py_tp_dealloc, next_dealloc},
    {Py_tp_traverse, next_traverse},
    {Py_tp_clear, next_clear},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, next_iternext},
    {Py_tp_methods, next_methods},
    {Py_am_await, PyObject_SelfIter},
    {Py_am_send, next_send},
    {0},
};

PyType_Spec next_message_spec = {
    .name = "kzconsumer.records._native.NextMessage",
    .basicsize = sizeof(NextMessage),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = next_slots,
};

static PyObject *iterator_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    const struct module_state *state = PyModule_GetState(PyType_GetModule(type));
    PyObject *lot, *allow_more;
    if (has_keywords(keywords) || !PyArg_ParseTuple(args, "O!O:MessageIterator", state->lot, &lot, &allow_more))
        return NULL;
    MessageIterator *self = (MessageIterator *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    self->lot = Py_NewRef(lot);
    self->allow_more = Py_NewRef(allow_more);
    self->next_type = (PyTypeObject *)Py_NewRef((PyObject *)state->next_message);
    return (PyObject *)self;
}

static PyObject *iterator_anext(PyObject *object) {
    MessageIterator *self = (MessageIterator *)object;
    if (self->spare != NULL && Py_REFCNT(self->spare) == 1 && ((NextMessage *)self->spare)->waiting == NULL)
        return Py_NewRef(self->spare);
    NextMessage *next = (NextMessage *)PyType_GenericAlloc(self->next_type, 0);
    if (next == NULL)
        return NULL;
    next->lot = Py_NewRef(self->lot);
    next->allow_more = Py_NewRef(self->allow_more);
    PyObject *before = self->spare;
    self->spare = Py_NewRef((PyObject *)next);
    Py_XDECREF(before);
    return (PyObject *)next;
}

static int iterator_traverse(PyObject *object, visitproc visit, void *arg) {
    MessageIterator *self = (MessageIterator *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->lot);
    Py_VISIT(self->allow_more);
    Py_VISIT(self->next_type);
    Py_VISIT(self->spare);
    return 0;
}

static int iterator_clear(PyObject *object) {
    Py_CLEAR(((MessageIterator *)object)->spare);
    return 0;
}

static void iterator_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    MessageIterator *self = (MessageIterator *)object;
    PyObject_GC_UnTrack(object);
    Py_XDECREF(self->spare);
    Py_XDECREF(self->lot);
    Py_XDECREF(self->allow_more);
    Py_XDECREF(self->next_type);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

static PyType_Slot iterator_slots[] = {
    {Py_tp_doc, "MessageIterator(lot, allow_more): messages of a lot; `allow_more()` is awaited when none may be taken."},
    {Py_tp_new, iterator_new},
    {Py_tp_dealloc, iterator_dealloc},
    {Py_tp_traverse, iterator_traverse},
    {Py_tp_clear, iterator_clear},
    {Py_am_aiter, PyObject_SelfIter},
    {Py_am_anext, iterator_anext},
    {0},
};

PyType_Spec iterator_spec = {
    .name = "kzconsumer.records._native.MessageIterator",
    .basicsize = sizeof(MessageIterator),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = iterator_slots,
};
