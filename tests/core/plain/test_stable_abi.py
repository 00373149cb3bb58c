"""`stable_abi.h` declares what Python's own headers declare as its stable ABI."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from hatch_build import FLAGS, compiler
from tests.support.programs import give_up

ROOT = Path(__file__).parents[3]
NATIVE = ROOT / "kzconsumer/records/native"
OURS = (NATIVE / "stable_abi.h").read_text()
HEADERS = Path(sysconfig.get_path("include"))
LIMITED = ["-DPy_LIMITED_API=0x030B0000", "-DPY_SSIZE_T_CLEAN"]

MEMBERS = re.findall(r"^#define Py_(T_\w+|READONLY) (\d+)$", (NATIVE / "python_api.h").read_text(), re.MULTILINE)
PROTOTYPES = re.findall(r"^PyAPI_(?:FUNC|DATA)\(.*\) (\w+)(?:\(.*\))?;$", OURS, re.MULTILINE)
TYPES = re.findall(r"^typedef [^{}\n]*;$", OURS, re.MULTILINE)
"""Those of one line: C allows a type to be defined again if it is the same."""
CONSTANTS = [
    *re.findall(r"^#define ((?:Py|METH)\w+) (?:\(?\d)", OURS, re.MULTILINE),
    *re.findall(r"PYGEN_\w+", "".join(re.findall(r"^typedef enum .*;$", OURS, re.MULTILINE))),
]
COUNT = "#if PY_VERSION_HEX >= 0x030E0000\n#define ob_refcnt ob_refcnt_full\n#endif"
"""In headers from 3.14 on, `ob_refcnt` is the lower half of the count's word. The other is 0 in objects of ours."""
STRUCTS = {"PyObject": ["ob_refcnt", "ob_type"]} | {
    name: re.findall(r"(\w+)\)?(?:\([^)]*\))?;$", body, re.MULTILINE)
    for body, name in re.findall(r"^typedef struct \w*\s?\{\n((?:    .*;\n)*)\} (\w+);$", OURS, re.MULTILINE)
}


@pytest.fixture(autouse=True)
def _python_h() -> None:
    if not (HEADERS / "Python.h").exists():
        give_up("Python.h", "apt-get install python3-dev")


def compile_c(source: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [*compiler(), "-std=c11", *options, str(source)]
    return subprocess.run(command, capture_output=True, text=True)


def layout(tmp_path: Path, header: str, *options: str) -> str:
    """The values of all constants, the size of each struct and where its fields are."""
    lines = [f'printf("{name} %lld\\n", (long long){name});' for name in CONSTANTS]
    for struct, fields in STRUCTS.items():
        lines.append(f'printf("{struct} %zu\\n", sizeof({struct}));')
        lines += [
            f'printf("{struct}.{name} %zu %zu\\n", offsetof({struct}, {name}), sizeof((({struct} *)0)->{name}));'
            for name in fields
        ]
    source, made = tmp_path / "layout.c", tmp_path / "layout"
    body = "\n".join(lines)
    source.write_text(f"#include <stddef.h>\n#include <stdio.h>\n#include {header}\nint main(void) {{\n{body}\n}}\n")
    built = compile_c(source, *LIMITED, *options, "-o", str(made))
    assert built.returncode == 0, built.stderr
    return subprocess.run([made], capture_output=True, text=True, check=True).stdout


def redeclared(tmp_path: Path, declarations: str) -> subprocess.CompletedProcess[str]:
    """Compiled behind the headers of Python, which must have declared the same names."""
    functions = [name for name in PROTOTYPES if f"_{name}_SizeT" not in OURS]  # those are macros, for ours
    undefined = "\n".join(f"#undef {name}" for name in functions)
    known = ", ".join(f"&{name}" for name in PROTOTYPES)
    source = tmp_path / "again.c"
    source.write_text(
        f"#include <stddef.h>\n#include <Python.h>\n{undefined}\nconst void *known[] = {{{known}}};\n{declarations}\n"
    )
    return compile_c(source, *LIMITED, f"-I{HEADERS}", "-fsyntax-only", "-Werror")


def declarations() -> str:
    functions = [line for line in OURS.splitlines() if line.startswith(("PyAPI_FUNC", "PyAPI_DATA")) and ";" in line]
    text = "\n".join([*TYPES, *functions])
    # From 3.13 on, the list of keywords is const, which makes no difference to a call.
    return text if sys.version_info < (3, 13) else text.replace("char **, ...", "char *const *, ...")


def test_constants_and_layouts_are_those_of_python(tmp_path: Path) -> None:
    assert len(CONSTANTS) > 12
    assert {"PyModuleDef", "Py_buffer", "PyType_Spec"} <= set(STRUCTS)
    assert len(TYPES) > 7
    ours = layout(tmp_path, '"stable_abi.h"', f"-I{NATIVE}")
    assert ours == layout(tmp_path, f"<Python.h>\n#include <structmember.h>\n{COUNT}", f"-I{HEADERS}")


def test_functions_are_declared_as_python_declares_them(tmp_path: Path) -> None:
    assert len(PROTOTYPES) > 40
    checked = redeclared(tmp_path, declarations())
    assert checked.returncode == 0, checked.stderr


def test_codes_of_members_are_those_of_python(tmp_path: Path) -> None:
    """Until 3.12 they have other names."""
    assert {name for name, _ in MEMBERS} == {"T_OBJECT_EX", "T_LONGLONG", "READONLY"}
    source = tmp_path / "codes.c"
    asserts = "\n".join(f'_Static_assert({name} == {value}, "{name}");' for name, value in MEMBERS)
    source.write_text(f"#include <Python.h>\n#include <structmember.h>\n{asserts}\n")
    checked = compile_c(source, f"-I{HEADERS}", "-fsyntax-only")
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("PyLong_FromSize_t(size_t)", "PyLong_FromSize_t(int)"),
        ("typedef Py_ssize_t Py_hash_t;", "typedef int Py_hash_t;"),
        ("typedef int (*visitproc)(PyObject *, void *);", "typedef long (*visitproc)(PyObject *, void *);"),
    ],
)
def test_control_another_declaration_is_refused(tmp_path: Path, right: str, wrong: str) -> None:
    assert right in declarations()
    assert "conflicting types" in redeclared(tmp_path, declarations().replace(right, wrong)).stderr


def test_it_is_compiled_with_the_headers_of_python_too(tmp_path: Path) -> None:
    """As for a free-threaded Python, which has no stable ABI."""
    sources = [str(source) for source in sorted(NATIVE.glob("*.c"))]
    command = [*compiler(), *FLAGS, "-Werror", f"-I{HEADERS}", *sources, "-o", str(tmp_path / "made.so")]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, f"{shlex.join(command)}\n{built.stderr}"
