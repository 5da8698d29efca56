"""Tensors of TVM's over memory at any address.

A view of TVM's own keeps the base address and notes an offset, which compiled functions refuse. So
the memory is described anew, through DLPack.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import tvm_ffi

_CUDA = 2  # kDLCUDA
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4}
_FP8 = {"float8_e4m3fn": 10, "float8_e5m2": 12}  # kDLFloat8_…, eight bits each


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensor(ctypes.Structure):
    _fields_ = (
        ("tensor", _DLTensor),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class _Exporter:
    def __init__(self, managed: _DLManagedTensor) -> None:
        self.managed = managed

    def __dlpack__(self, **_: Any) -> Any:
        return _new_capsule(ctypes.addressof(self.managed), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        tensor = self.managed.tensor
        return int(tensor.device_type), int(tensor.device_id)


class Described:
    """A tensor over memory that belongs to someone else.

    Parameters
    ----------
    address
        Of the first element.
    shape, dtype
        Of the tensor; row-major.
    index
        Number of the GPU.
    kind
        DLPack's device type.
    """

    def __init__(
        self, address: int, shape: Sequence[int], dtype: str, index: int, kind: int = _CUDA
    ) -> None:
        self._shape = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        code, bits = _type(dtype)
        self._managed = _DLManagedTensor(
            _DLTensor(address, kind, index, len(shape), code, bits, 1, self._shape, None, 0)
        )
        # The description must outlive the tensor: TVM keeps the pointer to it.
        self.tensor = tvm_ffi.from_dlpack(_Exporter(self._managed))


def _type(dtype: str) -> tuple[int, int]:
    if dtype in _FP8:
        return _FP8[dtype], 8
    name = dtype.rstrip("0123456789")
    return _CODES[name], int(dtype[len(name) :])
