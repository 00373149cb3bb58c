"""Loads, stores and copies at raw addresses, for numba's nopython code.

Nothing here checks a bound: the kernels do, before every call. All loads give an int64, so that no kernel mixes signed
and unsigned 64-bit numbers (numba would make floats of them).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_INT64 = ir.IntType(64)


def _load(bits: int, *, signed: bool, big_endian: bool) -> Any:
    def load(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            width = ir.IntType(bits)
            value = builder.load(builder.inttoptr(arguments[0], width.as_pointer()), align=1)
            if big_endian and bits > 8:
                kind = ir.FunctionType(width, [width])
                swap = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
                    builder.module, kind, f"llvm.bswap.i{bits}"
                )
                value = builder.call(swap, [value])
            if bits == 64:
                return value
            return builder.sext(value, _INT64) if signed else builder.zext(value, _INT64)

        return types.int64(types.int64), generate

    return intrinsic(load)


def _store(bits: int) -> Any:
    def store(typing_context: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            width = ir.IntType(bits)
            number = arguments[1] if bits == 64 else builder.trunc(arguments[1], width)
            builder.store(number, builder.inttoptr(arguments[0], width.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return intrinsic(store)


load_u8 = _load(8, signed=False, big_endian=False)
load_i8 = _load(8, signed=True, big_endian=False)
load_i16 = _load(16, signed=True, big_endian=True)
load_i32 = _load(32, signed=True, big_endian=True)
load_u32 = _load(32, signed=False, big_endian=True)
load_i64 = _load(64, signed=True, big_endian=True)
load_u32_little = _load(32, signed=False, big_endian=False)
store_i8 = _store(8)
store_i32 = _store(32)
store_i64 = _store(64)


def _copy(typing_context: Any, target: Any, source: Any, length: Any) -> Any:
    """memcpy(target, source, length)"""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        to, of, size = arguments
        target_at, source_at = builder.inttoptr(to, byte), builder.inttoptr(of, byte)
        cgutils.raw_memcpy(builder, target_at, source_at, size, 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


copy: Any = intrinsic(_copy)
