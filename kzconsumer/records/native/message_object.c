/* `Message`: a record as the application sees it. What nearly every application reads is part of it; the rest is looked
   up in what the messages made together share. */

#include "message_object.h"

typedef struct {
    PyObject_HEAD
    long long offset;
    PyObject *key;
    PyObject *value;
    PyObject *headers;
    struct origin *origin;
} Message;

PyObject *message_object(PyTypeObject *type, int64_t offset, PyObject *key, PyObject *value, PyObject *headers,
                         struct origin *origin) {
    bool made = key != NULL && value != NULL && headers != NULL;
    Message *self = made ? PyObject_New(Message, type) : NULL;
    if (self == NULL) {
        Py_XDECREF(key);
        Py_XDECREF(value);
        Py_XDECREF(headers);
        return NULL;
    }
    self->offset = offset;
    self->key = key;
    self->value = value;
    self->headers = headers;
    self->origin = (struct origin *)Py_NewRef((PyObject *)origin);
    return (PyObject *)self;
}

static bool is_bytes_or_none(PyObject *object) { return object == Py_None || PyBytes_Check(object); }

/* One header as a pair; NULL with an exception. */
static PyObject *header_of(PyObject *object) {
    PyObject *pair = PySequence_Tuple(object);
    if (pair == NULL || (PyTuple_Size(pair) == 2 && PyUnicode_Check(PyTuple_GetItem(pair, 0)) &&
                         is_bytes_or_none(PyTuple_GetItem(pair, 1))))
        return pair;
    Py_DECREF(pair);
    PyErr_SetString(PyExc_TypeError, "headers must be pairs of str and bytes or None");
    return NULL;
}

static PyObject *headers_by_hand(PyObject *object) {
    PyObject *given = object == NULL ? PyTuple_New(0) : PySequence_Tuple(object);
    Py_ssize_t count = given == NULL ? 0 : PyTuple_Size(given);
    PyObject *headers = given == NULL ? NULL : PyTuple_New(count);
    for (Py_ssize_t n = 0; headers != NULL && n < count; n++) {
        PyObject *pair = header_of(PyTuple_GetItem(given, n));
        if (pair == NULL)
            Py_CLEAR(headers);
        else
            PyTuple_SetItem(headers, n, pair);
    }
    Py_XDECREF(given);
    return headers;
}

static PyObject *message_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"topic",     "partition", "offset",         "key", "value",
                            "timestamp", "headers",   "timestamp_type", NULL};
    PyObject *topic, *key, *value, *timestamp = Py_None, *headers = NULL;
    int partition, timestamp_type = NO_TIMESTAMP_TYPE;
    long long offset, milliseconds = NO_TIMESTAMP;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "UiLOO|OOi:Message", names, &topic, &partition, &offset, &key,
                                     &value, &timestamp, &headers, &timestamp_type))
        return NULL;
    if (timestamp != Py_None) {
        milliseconds = PyLong_AsLongLong(timestamp);
        if (milliseconds == -1 && PyErr_Occurred())
            return NULL;
    }
    if (!is_bytes_or_none(key) || !is_bytes_or_none(value)) {
        PyErr_SetString(PyExc_TypeError, "key and value must be bytes or None");
        return NULL;
    }
    if (timestamp_type < NO_TIMESTAMP_TYPE || timestamp_type > APPEND_TIME) {
        PyErr_SetString(PyExc_ValueError, "timestamp_type must be 0, 1 or -1");
        return NULL;
    }
    const struct module_state *state = PyModule_GetState(PyType_GetModule(type));
    struct origin *origin =
        origin_of_one(state->origin, topic, partition, offset, milliseconds, (int8_t)timestamp_type);
    if (origin == NULL)
        return NULL;
    PyObject *self = message_object(type, offset, Py_NewRef(key), Py_NewRef(value), headers_by_hand(headers), origin);
    Py_DECREF(origin);
    return self;
}

static void message_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    Message *self = (Message *)object;
    Py_DECREF(self->key);
    Py_DECREF(self->value);
    Py_DECREF(self->headers);
    Py_DECREF(self->origin);
    PyObject_Free(object);
    Py_DECREF(type);
}

static Py_ssize_t row_of(const Message *self) { return row_of_offset(self->origin, self->offset); }

static PyObject *message_topic(PyObject *object, void *Py_UNUSED(closure)) {
    return Py_NewRef(((Message *)object)->origin->topic);
}

static PyObject *message_partition(PyObject *object, void *Py_UNUSED(closure)) {
    return PyLong_FromLong(((Message *)object)->origin->partition);
}

static PyObject *message_timestamp(PyObject *object, void *Py_UNUSED(closure)) {
    const Message *self = (Message *)object;
    int64_t timestamp = self->origin->timestamps[row_of(self)];
    return timestamp == NO_TIMESTAMP ? Py_NewRef(Py_None) : PyLong_FromLongLong(timestamp);
}

static PyObject *message_timestamp_type(PyObject *object, void *Py_UNUSED(closure)) {
    const Message *self = (Message *)object;
    return PyLong_FromLong(self->origin->timestamp_types[row_of(self)]);
}

/* The arguments of an equal message made by hand. */
static PyObject *all_fields(PyObject *object) {
    const Message *self = (Message *)object;
    return Py_BuildValue("OiLOONON", self->origin->topic, self->origin->partition, self->offset, self->key, self->value,
                         message_timestamp(object, NULL), self->headers, message_timestamp_type(object, NULL));
}

static PyObject *message_compare(PyObject *object, PyObject *other, int operation) {
    if (Py_TYPE(object) != Py_TYPE(other) || (operation != Py_EQ && operation != Py_NE))
        return Py_NewRef(Py_NotImplemented);
    PyObject *left = all_fields(object), *right = all_fields(other), *result = NULL;
    if (left != NULL && right != NULL)
        result = PyObject_RichCompare(left, right, operation);
    Py_XDECREF(left);
    Py_XDECREF(right);
    return result;
}

static Py_hash_t message_hash(PyObject *object) {
    PyObject *fields = all_fields(object);
    Py_hash_t hash = fields == NULL ? -1 : PyObject_Hash(fields);
    Py_XDECREF(fields);
    return hash;
}

static PyObject *message_repr(PyObject *object) {
    const Message *self = (Message *)object;
    PyObject *timestamp = message_timestamp(object, NULL), *text = NULL;
    if (timestamp != NULL)
        text = PyUnicode_FromFormat(
            "Message(topic=%R, partition=%d, offset=%lld, key=%R, value=%R, timestamp=%R, headers=%R, "
            "timestamp_type=%d)",
            self->origin->topic, self->origin->partition, self->offset, self->key, self->value, timestamp,
            self->headers,
            (int)self->origin->timestamp_types[row_of(self)]);
    Py_XDECREF(timestamp);
    return text;
}

/* Pickled alone, without what it shares. */
static PyObject *message_reduce(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    PyObject *fields = all_fields(object);
    return fields == NULL ? NULL : Py_BuildValue("ON", Py_TYPE(object), fields);
}

PyObject *range_of(PyObject *module, PyObject *object) {
    const struct module_state *state = PyModule_GetState(module);
    if (Py_TYPE(object) != state->message) {
        PyErr_SetString(PyExc_TypeError, "not a message");
        return NULL;
    }
    return range_of_offset(((Message *)object)->origin, ((Message *)object)->offset);
}

static PyMemberDef members[] = {
    {"offset", Py_T_LONGLONG, offsetof(Message, offset), Py_READONLY, "Its place in the partition."},
    {"key", Py_T_OBJECT_EX, offsetof(Message, key), Py_READONLY, "Bytes, or None."},
    {"value", Py_T_OBJECT_EX, offsetof(Message, value), Py_READONLY, "Bytes, or None."},
    {"headers", Py_T_OBJECT_EX, offsetof(Message, headers), Py_READONLY,
     "(key, value) pairs in the order they were produced."},
    {0},
};

static PyGetSetDef properties[] = {
    {"topic", message_topic, NULL, "The topic's name.", NULL},
    {"partition", message_partition, NULL, "The partition's number.", NULL},
    {"timestamp", message_timestamp, NULL, "Milliseconds since 1970; None when the record has none.", NULL},
    {"timestamp_type", message_timestamp_type, NULL,
     "0 for the producer's clock, 1 for the broker's, -1 for none.", NULL},
    {0},
};

/* It does not change, and a copy could not be acknowledged. */
static PyObject *message_copy(PyObject *object, PyObject *Py_UNUSED(ignored)) { return Py_NewRef(object); }

static PyMethodDef methods[] = {
    {"__copy__", message_copy, METH_NOARGS, NULL},
    {"__deepcopy__", message_copy, METH_O, NULL},
    {"__reduce__", message_reduce, METH_NOARGS, NULL},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_doc,
     "Message(topic, partition, offset, key, value, timestamp=None, headers=(), timestamp_type=-1)\n--\n\n"
     "A Kafka record (`kafka.message.MessageAndMetadata`, with headers)."},
    {Py_tp_new, message_new},
    {Py_tp_dealloc, message_dealloc},
    {Py_tp_richcompare, message_compare},
    {Py_tp_hash, message_hash},
    {Py_tp_repr, message_repr},
    {Py_tp_members, members},
    {Py_tp_getset, properties},
    {Py_tp_methods, methods},
    {0},
};

/* Left out of garbage collection, which would walk through every message that an application keeps: a cycle from the
   claim of a message to that message is never freed. */
PyType_Spec message_spec = {
    .name = "kzconsumer.Message",
    .basicsize = sizeof(Message),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
