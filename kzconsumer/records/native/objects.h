/* The types of this module, and what makes objects of them. */

#ifndef KZCONSUMER_OBJECTS_H
#define KZCONSUMER_OBJECTS_H

#include "columns.h"
#include "framing.h"
#include "python_api.h"

struct module_state {
    PyTypeObject *columns;
    PyTypeObject *memory;
    struct crc_tables crc_tables;
};

extern PyType_Spec columns_spec;
extern PyType_Spec memory_spec;

/* A Python object of all rows, which takes over one reference to `columns`; NULL with an exception. */
PyObject *columns_object(PyTypeObject *type, struct columns *columns);

/* Functions of the module. */
PyObject *decode(PyObject *module, PyObject *args);
PyObject *frame(PyObject *module, PyObject *args);
PyObject *scan_next_offset(PyObject *module, PyObject *args);

#endif
