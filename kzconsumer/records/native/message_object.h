/* Messages: what a record is for the application. */

#ifndef KZCONSUMER_MESSAGE_OBJECT_H
#define KZCONSUMER_MESSAGE_OBJECT_H

#include "objects.h"

/* What messages made together share. */
struct origin {
    PyObject_HEAD
    PyObject *topic;
    PyObject *claim;   /* None for a message made by hand */
    int64_t begin;     /* where the range of these messages begins: a gap of the log may come before the first */
    int64_t first;     /* offset of the first row */
    int64_t *offsets;  /* of the rows; NULL if they have no gaps */
    int64_t *timestamps;
    int8_t *timestamp_types;
    Py_ssize_t rows;
    int partition;
};

/* What these rows share; NULL with an exception. */
struct origin *origin_of_rows(PyTypeObject *type, const struct rows *rows, PyObject *topic, int partition,
                                PyObject *claim, int64_t begin);

/* The same of a message made by hand. */
struct origin *origin_of_one(PyTypeObject *type, PyObject *topic, int partition, int64_t offset, int64_t timestamp,
                               int8_t timestamp_type);

/* The row with an offset that one of them has. */
Py_ssize_t row_of_offset(const struct origin *origin, int64_t offset);

/* The range that is acknowledged with the message of an offset: (claim, first offset, offset behind it), or None if it
   was made by hand. */
PyObject *range_of_offset(const struct origin *origin, int64_t offset);

/* A `Message`, which takes over key, value and headers; NULL with an exception, which there is if one of these is NULL. */
PyObject *message_object(PyTypeObject *type, int64_t offset, PyObject *key, PyObject *value, PyObject *headers,
                         struct origin *origin);

/* Whether a `Lot` has more messages, and whether one may be taken without a look. */
bool lot_has_rest(PyObject *lot);
bool lot_is_ready(PyObject *lot);

/* The next message of a lot that has one; NULL with an exception. */
PyObject *lot_take(PyObject *lot);

#endif
