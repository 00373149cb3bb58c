/* Python's stable ABI of 3.11 (PEP 652): one build serves that and every later version. */

#ifndef KZCONSUMER_PYTHON_API_H
#define KZCONSUMER_PYTHON_API_H

#ifdef Py_LIMITED_API
#include "stable_abi.h"
#else
/* a free-threaded Python has no stable ABI */
#include <Python.h>
#include <structmember.h>
#endif

#ifndef Py_T_LONGLONG /* until 3.12 they have other names, in another header */
#define Py_T_OBJECT_EX 16
#define Py_T_LONGLONG 17
#define Py_READONLY 1
#endif

#ifndef Py_mod_multiple_interpreters /* from 3.12 on */
#define Py_mod_multiple_interpreters 3
#define Py_MOD_PER_INTERPRETER_GIL_SUPPORTED ((void *)2)
#endif

#endif
