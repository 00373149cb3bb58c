/* The types of this module, and what makes objects of them. */

#ifndef KZCONSUMER_OBJECTS_H
#define KZCONSUMER_OBJECTS_H

#include "columns.h"
#include "framing.h"
#include "python_api.h"

struct module_state {
    PyTypeObject *columns;
    PyTypeObject *iterator;
    PyTypeObject *origin;
    PyTypeObject *lot;
    PyTypeObject *memory;
    PyTypeObject *message;
    PyTypeObject *next_message;
    struct crc_tables crc_tables;
};

extern PyType_Spec columns_spec;
extern PyType_Spec iterator_spec;
extern PyType_Spec origin_spec;
extern PyType_Spec lot_spec;
extern PyType_Spec memory_spec;
extern PyType_Spec message_spec;
extern PyType_Spec next_message_spec;

/* A Python object of all rows, which takes over one reference to `columns`; NULL with an exception. */
PyObject *columns_object(PyTypeObject *type, struct columns *columns);

/* The rows of a `Columns`: `first <= row < until`. */
struct rows {
    struct columns *columns;
    Py_ssize_t first;
    Py_ssize_t until;
};

struct rows rows_of(PyObject *columns);

/* Bytes, or None; NULL with an exception. */
PyObject *field_of(const struct binary *binary, Py_ssize_t row);

/* The headers of a row, a tuple of pairs; NULL with an exception. */
PyObject *headers_of(const struct columns *columns, Py_ssize_t row);

/* Whether a constructor that takes none was given keywords, with an exception. */
bool has_keywords(PyObject *keywords);

/* Functions of the module. */
PyObject *decode(PyObject *module, PyObject *args);
PyObject *join(PyObject *module, PyObject *pieces);
PyObject *range_of(PyObject *module, PyObject *message);
PyObject *scan_next_offset(PyObject *module, PyObject *args);

#endif
