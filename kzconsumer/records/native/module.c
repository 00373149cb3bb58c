/* `kzconsumer.records._native`: see `_native.pyi` for its interface. */

#include "blocks.h"
#include "objects.h"

static PyObject *allocated(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    return PyLong_FromSize_t(allocated_bytes());
}

static PyMethodDef functions[] = {
    {"decode", decode, METH_VARARGS, "Decode the whole batches of record bytes."},
    {"frame", frame, METH_VARARGS, "Where the whole batches of record bytes begin and end."},
    {"scan_next_offset", scan_next_offset, METH_VARARGS, "The offset behind the whole batches, from the framing alone."},
    {"allocated_bytes", allocated, METH_NOARGS, "Bytes that all objects of this module hold in memory."},
    {0},
};

static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type) {
    *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *type == NULL ? -1 : PyModule_AddType(module, *type);
}

static int execute(PyObject *module) {
    struct module_state *state = PyModule_GetState(module);
    make_crc_tables(&state->crc_tables);
    if (add_type(module, &columns_spec, &state->columns) < 0)
        return -1;
    return add_type(module, &memory_spec, &state->memory);
}

static int traverse(PyObject *module, visitproc visit, void *arg) {
    struct module_state *state = PyModule_GetState(module);
    Py_VISIT(state->columns);
    Py_VISIT(state->memory);
    return 0;
}

static int clear(PyObject *module) {
    struct module_state *state = PyModule_GetState(module);
    Py_CLEAR(state->columns);
    Py_CLEAR(state->memory);
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
