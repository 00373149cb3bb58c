/* What this module uses of Python's stable ABI, so that it can be compiled where `Python.h` is not installed.

   Values, layouts and signatures are fixed for every Python 3 from 3.11 on: https://docs.python.org/3/c-api/stable.html.
   `tests/core/plain/test_stable_abi.py` has a compiler compare them with `Python.h`. */

#ifndef KZCONSUMER_STABLE_ABI_H
#define KZCONSUMER_STABLE_ABI_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef ptrdiff_t Py_ssize_t;

#define PyAPI_FUNC(type) extern type
#define PyAPI_DATA(type) extern type
#define PyMODINIT_FUNC __attribute__((visibility("default"))) PyObject *
#define Py_UNUSED(name) unused_##name __attribute__((unused))

/* Objects */

typedef struct _object PyObject;
typedef struct _typeobject PyTypeObject;

struct _object {
    Py_ssize_t ob_refcnt;
    PyTypeObject *ob_type;
};

#define PyObject_HEAD PyObject ob_base;
#define Py_TYPE(object) (((PyObject *)(object))->ob_type)
#define Py_REFCNT(object) (((PyObject *)(object))->ob_refcnt)

PyAPI_DATA(PyObject) _Py_NoneStruct;
PyAPI_DATA(PyObject) _Py_NotImplementedStruct;
#define Py_None (&_Py_NoneStruct)
#define Py_NotImplemented (&_Py_NotImplementedStruct)

typedef Py_ssize_t Py_hash_t;
#define Py_EQ 2
#define Py_NE 3

PyAPI_FUNC(Py_hash_t) PyObject_Hash(PyObject *);
PyAPI_FUNC(PyObject *) PyObject_RichCompare(PyObject *, PyObject *, int);

PyAPI_FUNC(void) Py_DecRef(PyObject *);
PyAPI_FUNC(PyObject *) Py_NewRef(PyObject *);

#define Py_XDECREF(object) Py_DecRef((PyObject *)(object)) /* both take NULL */
#define Py_DECREF(object) Py_DecRef((PyObject *)(object))
#define Py_CLEAR(object)                                                                                               \
    do {                                                                                                               \
        PyObject *cleared = (PyObject *)(object);                                                                      \
        (object) = NULL;                                                                                               \
        Py_DecRef(cleared);                                                                                            \
    } while (0)

typedef int (*visitproc)(PyObject *, void *);
#define Py_VISIT(object)                                                                                               \
    do {                                                                                                               \
        int visited = (object) == NULL ? 0 : visit((PyObject *)(object), arg);                                         \
        if (visited)                                                                                                   \
            return visited;                                                                                            \
    } while (0)

/* Functions and properties */

typedef PyObject *(*PyCFunction)(PyObject *, PyObject *);

typedef struct PyMethodDef {
    const char *ml_name;
    PyCFunction ml_meth;
    int ml_flags;
    const char *ml_doc;
} PyMethodDef;

#define METH_VARARGS 0x0001
#define METH_NOARGS 0x0004
#define METH_O 0x0008

typedef PyObject *(*getter)(PyObject *, void *);
typedef int (*setter)(PyObject *, PyObject *, void *);

typedef struct PyGetSetDef {
    const char *name;
    getter get;
    setter set;
    const char *doc;
    void *closure;
} PyGetSetDef;

typedef struct PyMemberDef {
    const char *name;
    int type;
    Py_ssize_t offset;
    int flags;
    const char *doc;
} PyMemberDef;

/* Types */

typedef struct {
    int slot;
    void *pfunc;
} PyType_Slot;

typedef struct {
    const char *name;
    int basicsize;
    int itemsize;
    unsigned int flags;
    PyType_Slot *slots;
} PyType_Spec;

#define Py_bf_getbuffer 1
#define Py_sq_length 45
#define Py_tp_clear 51
#define Py_tp_dealloc 52
#define Py_tp_doc 56
#define Py_tp_hash 59
#define Py_tp_iter 62
#define Py_tp_iternext 63
#define Py_tp_methods 64
#define Py_tp_new 65
#define Py_tp_repr 66
#define Py_tp_richcompare 67
#define Py_tp_traverse 71
#define Py_tp_members 72
#define Py_tp_getset 73
#define Py_am_await 77
#define Py_am_aiter 78
#define Py_am_anext 79
#define Py_am_send 81

#define Py_TPFLAGS_DISALLOW_INSTANTIATION (1UL << 7)
#define Py_TPFLAGS_IMMUTABLETYPE (1UL << 8)
#define Py_TPFLAGS_HAVE_GC (1UL << 14)
#define Py_TPFLAGS_BYTES_SUBCLASS (1UL << 27)
#define Py_TPFLAGS_UNICODE_SUBCLASS (1UL << 28)
#define Py_TPFLAGS_DEFAULT 0

PyAPI_FUNC(PyObject *) PyType_FromModuleAndSpec(PyObject *, PyType_Spec *, PyObject *);
PyAPI_FUNC(PyObject *) PyType_GenericAlloc(PyTypeObject *, Py_ssize_t);
PyAPI_FUNC(unsigned long) PyType_GetFlags(PyTypeObject *);
PyAPI_FUNC(PyObject *) PyType_GetModule(PyTypeObject *);

PyAPI_FUNC(PyObject *) _PyObject_New(PyTypeObject *);
#define PyObject_New(type, of) ((type *)_PyObject_New(of))
PyAPI_FUNC(void) PyObject_Free(void *);
PyAPI_FUNC(void) PyObject_GC_Del(void *);
PyAPI_FUNC(void) PyObject_GC_UnTrack(void *);

/* Modules */

typedef struct PyModuleDef_Base {
    PyObject ob_base;
    PyObject *(*m_init)(void);
    Py_ssize_t m_index;
    PyObject *m_copy;
} PyModuleDef_Base;

typedef struct PyModuleDef_Slot {
    int slot;
    void *value;
} PyModuleDef_Slot;

typedef struct PyModuleDef {
    PyModuleDef_Base m_base;
    const char *m_name;
    const char *m_doc;
    Py_ssize_t m_size;
    PyMethodDef *m_methods;
    PyModuleDef_Slot *m_slots;
    int (*m_traverse)(PyObject *, visitproc, void *);
    int (*m_clear)(PyObject *);
    void (*m_free)(void *);
} PyModuleDef;

#define PyModuleDef_HEAD_INIT                                                                                          \
    { {1, NULL}, NULL, 0, NULL }
#define Py_mod_exec 2

PyAPI_DATA(const unsigned long) Py_Version;

PyAPI_FUNC(PyObject *) PyModuleDef_Init(PyModuleDef *);
PyAPI_FUNC(int) PyModule_AddType(PyObject *, PyTypeObject *);
PyAPI_FUNC(void *) PyModule_GetState(PyObject *);

/* Buffers */

typedef struct {
    void *buf;
    PyObject *obj;
    Py_ssize_t len;
    Py_ssize_t itemsize;
    int readonly;
    int ndim;
    char *format;
    Py_ssize_t *shape;
    Py_ssize_t *strides;
    Py_ssize_t *suboffsets;
    void *internal;
} Py_buffer;

#define PyBUF_SIMPLE 0

PyAPI_FUNC(int) PyBuffer_FillInfo(Py_buffer *, PyObject *, void *, Py_ssize_t, int, int);
PyAPI_FUNC(void) PyBuffer_Release(Py_buffer *);
PyAPI_FUNC(int) PyObject_GetBuffer(PyObject *, Py_buffer *, int);
PyAPI_FUNC(PyObject *) PyMemoryView_FromObject(PyObject *);

/* The GIL */

typedef struct _ts PyThreadState;

PyAPI_FUNC(PyThreadState *) PyEval_SaveThread(void);
PyAPI_FUNC(void) PyEval_RestoreThread(PyThreadState *);

#define Py_BEGIN_ALLOW_THREADS                                                                                         \
    {                                                                                                                  \
        PyThreadState *released = PyEval_SaveThread();
#define Py_END_ALLOW_THREADS                                                                                           \
        PyEval_RestoreThread(released);                                                                                \
    }

/* Errors */

PyAPI_DATA(PyObject *) PyExc_StopAsyncIteration;
PyAPI_DATA(PyObject *) PyExc_StopIteration;
PyAPI_DATA(PyObject *) PyExc_TypeError;
PyAPI_DATA(PyObject *) PyExc_ValueError;

PyAPI_FUNC(void) PyErr_Clear(void);
PyAPI_FUNC(int) PyErr_ExceptionMatches(PyObject *);

PyAPI_FUNC(PyObject *) PyErr_NoMemory(void);
PyAPI_FUNC(PyObject *) PyErr_Occurred(void);
PyAPI_FUNC(void) PyErr_SetNone(PyObject *);
PyAPI_FUNC(void) PyErr_SetObject(PyObject *, PyObject *);
PyAPI_FUNC(void) PyErr_SetString(PyObject *, const char *);

/* Calls and iteration */

typedef enum { PYGEN_RETURN = 0, PYGEN_ERROR = -1, PYGEN_NEXT = 1 } PySendResult;

PyAPI_FUNC(PySendResult) PyIter_Send(PyObject *, PyObject *, PyObject **);
PyAPI_FUNC(PyObject *) PyObject_CallFunctionObjArgs(PyObject *, ...);
PyAPI_FUNC(PyObject *) PyObject_CallNoArgs(PyObject *);
PyAPI_FUNC(PyObject *) PyObject_CallObject(PyObject *, PyObject *);
PyAPI_FUNC(PyObject *) PyObject_GetAttrString(PyObject *, const char *);
PyAPI_FUNC(PyObject *) PyObject_SelfIter(PyObject *);

/* Values; with PY_SSIZE_T_CLEAN lengths of "#" are Py_ssize_t, as they are everywhere from 3.13 on */

#define PyArg_ParseTuple _PyArg_ParseTuple_SizeT
#define PyArg_ParseTupleAndKeywords _PyArg_ParseTupleAndKeywords_SizeT
#define Py_BuildValue _Py_BuildValue_SizeT
#define PyObject_CallFunction _PyObject_CallFunction_SizeT

PyAPI_FUNC(int) PyArg_ParseTuple(PyObject *, const char *, ...);
PyAPI_FUNC(int) PyArg_ParseTupleAndKeywords(PyObject *, PyObject *, const char *, char **, ...);
PyAPI_FUNC(PyObject *) Py_BuildValue(const char *, ...);
PyAPI_FUNC(PyObject *) PyObject_CallFunction(PyObject *, const char *, ...);

PyAPI_FUNC(PyObject *) PyBool_FromLong(long);
PyAPI_FUNC(double) PyFloat_AsDouble(PyObject *);
PyAPI_FUNC(long long) PyLong_AsLongLong(PyObject *);
PyAPI_FUNC(unsigned long) PyLong_AsUnsignedLong(PyObject *);
PyAPI_FUNC(PyObject *) PyLong_FromLong(long);
PyAPI_FUNC(PyObject *) PyLong_FromLongLong(long long);
PyAPI_FUNC(PyObject *) PyLong_FromSize_t(size_t);
PyAPI_FUNC(PyObject *) PyLong_FromSsize_t(Py_ssize_t);

PyAPI_FUNC(PyObject *) PyBytes_FromStringAndSize(const char *, Py_ssize_t);
PyAPI_FUNC(const char *) PyUnicode_AsUTF8AndSize(PyObject *, Py_ssize_t *);
PyAPI_FUNC(PyObject *) PyUnicode_DecodeUTF8(const char *, Py_ssize_t, const char *);
PyAPI_FUNC(PyObject *) PyUnicode_FromFormat(const char *, ...);
#define PyBytes_Check(object) ((PyType_GetFlags(Py_TYPE(object)) & Py_TPFLAGS_BYTES_SUBCLASS) != 0)
#define PyUnicode_Check(object) ((PyType_GetFlags(Py_TYPE(object)) & Py_TPFLAGS_UNICODE_SUBCLASS) != 0)

PyAPI_FUNC(Py_ssize_t) PyDict_Size(PyObject *);
PyAPI_FUNC(int) PyList_Append(PyObject *, PyObject *);
PyAPI_FUNC(PyObject *) PyList_AsTuple(PyObject *);
PyAPI_FUNC(PyObject *) PyList_New(Py_ssize_t);
PyAPI_FUNC(int) PyList_SetItem(PyObject *, Py_ssize_t, PyObject *);
PyAPI_FUNC(PyObject *) PyTuple_New(Py_ssize_t);
PyAPI_FUNC(PyObject *) PyTuple_GetItem(PyObject *, Py_ssize_t);
PyAPI_FUNC(PyObject *) PyTuple_Pack(Py_ssize_t, ...);
PyAPI_FUNC(int) PyTuple_SetItem(PyObject *, Py_ssize_t, PyObject *);
PyAPI_FUNC(Py_ssize_t) PyTuple_Size(PyObject *);
PyAPI_FUNC(PyObject *) PySequence_GetSlice(PyObject *, Py_ssize_t, Py_ssize_t);
PyAPI_FUNC(PyObject *) PySequence_Tuple(PyObject *);

PyAPI_FUNC(void *) PyCapsule_GetPointer(PyObject *, const char *);
typedef void (*PyCapsule_Destructor)(PyObject *);
PyAPI_FUNC(PyObject *) PyCapsule_New(void *, const char *, PyCapsule_Destructor);

#endif
