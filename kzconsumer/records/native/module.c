/* `kzconsumer.records._native`: see `_native.pyi` for its interface. */

#include "blocks.h"
#include "objects.h"

bool has_keywords(PyObject *keywords) {
    if (keywords == NULL || PyDict_Size(keywords) == 0)
        return false;
    PyErr_SetString(PyExc_TypeError, "no keywords are taken");
    return true;
}

static PyObject *allocated(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    return PyLong_FromSize_t(allocated_bytes());
}

static PyMethodDef functions[] = {
    {"decode", decode, METH_VARARGS, "Decode the whole batches of record bytes."},
    {"join", join, METH_O, "The records of several `Columns` as one."},
    {"range_of", range_of, METH_O, "The range that is acknowledged with a message."},
    {"scan_next_offset", scan_next_offset, METH_VARARGS, "The offset behind the whole batches, from the framing alone."},
    {"allocated_bytes", allocated, METH_NOARGS, "Bytes that all objects of this module hold in memory."},
    {0},
};

/* The types of the module, in order of name. */
enum { TYPES = 7 };

static int execute(PyObject *module) {
    struct module_state *state = PyModule_GetState(module);
    make_crc_tables(&state->crc_tables);
    PyType_Spec *specs[] = {&columns_spec, &iterator_spec, &origin_spec, &lot_spec, &memory_spec, &message_spec,
                            &next_message_spec};
    PyTypeObject **types[TYPES] = {&state->columns, &state->iterator, &state->origin,
                                   &state->lot,     &state->memory,   &state->message,
                                   &state->next_message};
    for (int n = 0; n < TYPES; n++) {
        *types[n] = (PyTypeObject *)PyType_FromModuleAndSpec(module, specs[n], NULL);
        if (*types[n] == NULL || PyModule_AddType(module, *types[n]) < 0)
            return -1;
    }
    return 0;
}

static int traverse(PyObject *module, visitproc visit, void *arg) {
    struct module_state *state = PyModule_GetState(module);
    Py_VISIT(state->columns);
    Py_VISIT(state->iterator);
    Py_VISIT(state->origin);
    Py_VISIT(state->lot);
    Py_VISIT(state->memory);
    Py_VISIT(state->message);
    Py_VISIT(state->next_message);
    return 0;
}

static int clear(PyObject *module) {
    struct module_state *state = PyModule_GetState(module);
    Py_CLEAR(state->columns);
    Py_CLEAR(state->iterator);
    Py_CLEAR(state->origin);
    Py_CLEAR(state->lot);
    Py_CLEAR(state->memory);
    Py_CLEAR(state->message);
    Py_CLEAR(state->next_message);
    return 0;
}

enum { PY_3_12 = 0x030C0000 };

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
    {0}, /* see PyInit__native */
    {0},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "kzconsumer.records._native",
    .m_doc = "The compiled record decoder.",
    .m_size = sizeof(struct module_state),
    .m_methods = functions,
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
};

PyMODINIT_FUNC PyInit__native(void) {
    if (Py_Version >= PY_3_12) /* its objects belong to one interpreter, each of which may have a GIL of its own */
        slots[1] = (PyModuleDef_Slot){Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED};
    return PyModuleDef_Init(&definition);
}
