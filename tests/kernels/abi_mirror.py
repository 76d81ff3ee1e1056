"""infeng/abi.h for ctypes: what is needed to call a kernel directly, without a program."""

from __future__ import annotations

import ctypes as c
from typing import Any

import numpy as np

F32, BF16, I8, I32 = 1, 3, 4, 6
OP_LINEAR, OP_EPILOGUE, OP_SHRINK = 3, 4, 8
LORA = 2
VERSION = (0, 11)
DTYPES = {np.dtype(np.float32): F32, np.dtype(np.int8): I8, np.dtype(np.int32): I32}


class Tensor(c.Structure):
    _fields_ = (
        ("data", c.c_void_p),
        ("dtype", c.c_int32),
        ("device_type", c.c_int32),
        ("device_id", c.c_int32),
        ("ndim", c.c_int32),
        ("shape", c.c_int64 * 4),
        ("strides", c.c_int64 * 4),
    )


class Activation(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("group", c.c_uint32),
        ("x", Tensor),
        ("q", Tensor),
        ("scale", Tensor),
        ("sum", Tensor),
        ("rotated", c.c_uint64),
    )


class LoraSegment(c.Structure):
    _fields_ = (
        ("row_begin", c.c_int32),
        ("row_end", c.c_int32),
        ("rank", c.c_int32),
        ("dtype", c.c_uint32),
        ("u_column", c.c_int32),
        ("weight", c.c_float),
        ("panel_begin", c.c_int32),
        ("panel_step", c.c_int32),
        ("panel_count", c.c_int32),
        ("reserved", c.c_int32),
        ("a", c.c_void_p),
        ("scaling", c.c_void_p),
        ("b", c.c_void_p),
        ("b_scale", c.c_void_p),
        ("row_scale", c.c_void_p),
        ("bias", c.c_void_p),
    )


class Epilogue(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("kind", c.c_uint32),
        ("next", c.c_void_p),
        ("function", c.c_uint32),
        ("scalar", c.c_float),
        ("limit", c.c_float),
        ("reserved", c.c_uint32),
    )


class LoraEpilogue(c.Structure):
    _fields_ = (
        ("head", Epilogue),
        ("u", Tensor),
        ("segments", c.POINTER(LoraSegment)),
        ("segment_count", c.c_int32),
        ("segment_stride", c.c_uint32),
    )


class Args(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("epilogue_count", c.c_uint32),
        ("next", c.c_void_p),
        ("epilogues", c.POINTER(c.POINTER(Epilogue))),
        ("rows", c.c_int64),
        ("instance", c.c_void_p),
    )


class EpilogueArgs(c.Structure):
    _fields_ = (("common", Args), ("input", Tensor), ("out", Tensor))


class ShrinkArgs(c.Structure):
    _fields_ = (
        ("common", Args),
        ("input", c.POINTER(Activation)),
        ("u", Tensor),
        ("segments", c.POINTER(LoraSegment)),
        ("segment_count", c.c_int32),
        ("segment_stride", c.c_uint32),
    )


class Worker(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("index", c.c_int32),
        ("count", c.c_int32),
        ("message_size", c.c_int32),
        ("shared", c.c_void_p),
        ("private", c.c_void_p),
        ("message", c.c_char_p),
        ("team", c.c_void_p),
    )


class Workspace(c.Structure):
    _fields_ = (("struct_size", c.c_uint32), ("align", c.c_uint32), ("shared", c.c_int64), ("per_worker", c.c_int64))


class Problem(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("op", c.c_uint32),
        ("next", c.c_void_p),
        ("weight_format", c.c_uint32),
        ("act_format", c.c_uint32),
        ("kv_format", c.c_uint32),
        ("epilogue_count", c.c_uint32),
        ("epilogues", c.POINTER(c.POINTER(Epilogue))),
        ("needs", c.c_uint64),
        ("rows_min", c.c_int64),
        ("rows_max", c.c_int64),
        ("n", c.c_int64),
        ("k", c.c_int64),
        ("context", c.c_int64),
        ("heads", c.c_int32),
        ("kv_heads", c.c_int32),
        ("head_dim", c.c_int32),
        ("v_head_dim", c.c_int32),
        ("workers", c.c_int32),
        ("experts", c.c_int32),
        ("top_k", c.c_int32),
        ("reserved", c.c_int32),
    )


class Kernel(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("op", c.c_uint32),
        ("next", c.c_void_p),
        ("name", c.c_char_p),
        ("features", c.c_char_p),
        ("numerics", c.c_uint32),
        ("kind", c.c_uint32),
        ("priority", c.c_int32),
        ("fuses", c.c_uint32),
        ("handles", c.c_uint64),
        ("accepts", c.c_void_p),
        ("workspace", c.CFUNCTYPE(c.c_int32, c.POINTER(Problem), c.POINTER(Workspace))),
        ("create", c.c_void_p),
        ("destroy", c.c_void_p),
        ("phases", c.c_void_p),
        ("tiles", c.CFUNCTYPE(c.c_int64, c.c_void_p, c.c_int32)),
        ("run", c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_int32, c.c_int64, c.c_int64, c.POINTER(Worker))),
        ("pack_size", c.c_void_p),
        ("pack", c.c_void_p),
    )


class Host(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("abi_major", c.c_uint16),
        ("abi_minor", c.c_uint16),
        ("next", c.c_void_p),
        ("version", c.c_char_p),
        ("features", c.c_char_p),
    )


class LibraryDesc(c.Structure):
    _fields_ = (
        ("struct_size", c.c_uint32),
        ("abi_major", c.c_uint16),
        ("abi_minor", c.c_uint16),
        ("next", c.c_void_p),
        ("name", c.c_char_p),
        ("version", c.c_char_p),
        ("kernels", c.POINTER(c.POINTER(Kernel))),
        ("kernel_count", c.c_int32),
        ("format_count", c.c_int32),
        ("formats", c.c_void_p),
        ("thread_enter", c.c_void_p),
        ("thread_exit", c.c_void_p),
        ("numerics", c.c_uint32),
        ("op_count", c.c_int32),
        ("ops", c.c_void_p),
    )


def open_kernels(path: str) -> dict[str, Kernel]:
    """Return the kernels of a library by name; the library stays loaded."""
    host = Host(c.sizeof(Host), *VERSION, None, b"test", b"")
    description = LibraryDesc(struct_size=c.sizeof(LibraryDesc))
    assert c.CDLL(path).infeng_library(c.byref(host), c.byref(description)) == 0
    kernels = (description.kernels[i].contents for i in range(description.kernel_count))
    return {kernel.name.decode(): kernel for kernel in kernels}


def steps(*made: c.Structure) -> Any:
    """Return the pointers to epilogues that begin with a header, which the caller keeps alive."""
    return (c.POINTER(Epilogue) * max(len(made), 1))(*(c.cast(c.pointer(each), c.POINTER(Epilogue)) for each in made))


def tensor(array: np.ndarray | None) -> Tensor:
    """Return a view of a C-contiguous array, which the caller keeps alive."""
    if array is None:
        return Tensor()
    strides = [s // array.itemsize for s in array.strides]
    return Tensor(
        data=array.ctypes.data,
        dtype=DTYPES[array.dtype],
        device_type=1,
        ndim=array.ndim,
        shape=(c.c_int64 * 4)(*array.shape),
        strides=(c.c_int64 * 4)(*strides),
    )


def run(kernel: Kernel, args: Any, *, tiles: list[tuple[int, int]] | None = None) -> tuple[int, str]:
    """Run all tiles, or the given ranges of them in that order; return (status, message)."""
    text = c.create_string_buffer(200)
    worker = Worker(struct_size=c.sizeof(Worker), count=1, message_size=200, message=c.cast(text, c.c_char_p))
    scratch = _scratch(kernel, args.common.rows)
    worker.private = scratch.ctypes.data
    for first, last in tiles or [(0, kernel.tiles(c.byref(args), 0))]:
        status = kernel.run(c.byref(args), 0, first, last, c.byref(worker))
        if status:
            return status, text.value.decode()
    return 0, ""


def _scratch(kernel: Kernel, rows: int) -> np.ndarray:
    """Return what one worker needs, filled with a value that is not zero."""
    space = Workspace(struct_size=c.sizeof(Workspace))
    if kernel.workspace:
        problem = Problem(c.sizeof(Problem), kernel.op, rows_min=rows, rows_max=rows)
        assert kernel.workspace(c.byref(problem), c.byref(space)) == 0
    memory = np.full(space.per_worker + 64, 0xFF, np.uint8)
    return memory[-memory.ctypes.data % 64 :]
