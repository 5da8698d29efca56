"""The judge's own device code: inputs, the float64 product, comparison, memory checks.

``trusted.cu`` is built for the device at hand and launched through the CUDA driver, on TVM's
context. Nothing of it is ever given to a kernel under test.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from cuda.bindings import driver, runtime

from ..config import settings
from ..device import Device
from ..errors import BuildError
from ..hashing import digest
from ..kernel.cache import cached
from ..kernel.nvrtc_child import compile_source
from ..toolchain import fingerprint, include_dirs
from ..workload import DTYPES, Workload
from .inputs import LARGEST, NORMAL, Draw, Operand, is_exact, operands, scale_of
from .numerics import LISTED, MAP, Limits, Stats, limits
from .timing import check

_SOURCE = Path(__file__).with_name("trusted.cu")
_TYPES = {"f32": 0, "tf32": 0, "f16": 1, "bf16": 2, "s8": 3, "s32": 4, "f8e4m3": 5, "f8e5m2": 6}
_STEPS = {"bias": 0, "residual": 1, "relu": 2, "scale": 3, "gelu_erf": 4, "gelu_tanh": 5, "silu": 6}
_MAX_STEPS = 16
_THREADS = 256
_MASK = (1 << 64) - 1


class _Operation(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int),
        ("type", ctypes.c_int),
        ("factor", ctypes.c_double),
        ("operand", ctypes.c_uint64),
    )


class _Problem(ctypes.Structure):
    _fields_ = (
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
        *((name, ctypes.c_int) for name in ("a_type", "b_type", "trans_a", "trans_b")),
        *((name, ctypes.c_int64) for name in ("m", "n", "k", "batch")),
        *((name, ctypes.c_int64) for name in ("a_div", "a_mod", "b_div", "b_mod")),
        ("steps", ctypes.c_int),
        ("as_tf32", ctypes.c_int),
        ("step", _Operation * _MAX_STEPS),
    )


class _Limits(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_double)
        for name in ("unit_out", "smallest", "per_size", "largest", "saturates")
    )


class _Stats(ctypes.Structure):
    _fields_ = (
        *((x, ctypes.c_double) for x in ("error2", "want2", "honest2", "sampled2", "honest_want2")),
        *((x, ctypes.c_double) for x in ("max_error", "max_ratio", "max_share")),
        *((x, ctypes.c_uint64) for x in ("wrong", "inexact", "poisoned", "not_finite")),
        *((x, ctypes.c_uint64) for x in ("finite", "inf_as_nan", "compared")),
        ("listed", ctypes.c_uint64 * (LISTED + 1)),
        ("map", ctypes.c_uint32 * (MAP * MAP)),
    )


class Memory:
    """Bytes of device memory, freed with the object."""

    def __init__(self, size: int, dev: Any) -> None:
        self.size = size
        self._tensor = tvm.runtime.empty((max(size, 16),), "uint8", dev)
        self.address = int(self._tensor.data_ptr())

    def view(self, shape: Sequence[int], dtype: str, offset: int) -> Any:
        """Return a tensor of TVM's that begins ``offset`` bytes into this memory."""
        return self._tensor._create_view(list(shape), dtype, offset)

    def read(self, kind: type[ctypes.Structure]) -> Any:
        """Return a copy of a structure that lies at the start."""
        return kind.from_buffer_copy(self._tensor.numpy().tobytes()[: ctypes.sizeof(kind)])

    def write(self, data: ctypes.Structure) -> None:
        """Copy a structure to the start."""
        raw = np.frombuffer(bytes(data), np.uint8)
        self._tensor._create_view([raw.size], "uint8", 0).copyfrom(raw)


class Trusted:
    """The judge's kernels on one device.

    Parameters
    ----------
    device
        What is built for.
    dev
        TVM's device.
    """

    def __init__(self, device: Device, dev: Any) -> None:
        self.device, self.dev = device, dev
        check(runtime.cudaSetDevice(dev.index))
        check(runtime.cudaFree(0))  # makes the context that TVM uses current
        self._module = check(driver.cuModuleLoadData(_cubin(device)))
        self._functions: dict[str, Any] = {}
        self._counter = Memory(8, dev)

    # -- launching ---------------------------------------------------------------------------

    def _launch(self, name: str, work: int, *args: Any) -> None:
        if name not in self._functions:
            self._functions[name] = check(driver.cuModuleGetFunction(self._module, name.encode()))
        blocks = max(1, min(-(-work // _THREADS), 32 * self.device.num_sms))
        pointers = (ctypes.c_void_p * len(args))(*(ctypes.addressof(arg) for arg in args))
        launched = driver.cuLaunchKernel(
            *(self._functions[name], blocks, 1, 1, _THREADS, 1, 1, 0, 0),
            ctypes.addressof(pointers),
            0,
        )
        check(launched)

    def sync(self) -> None:
        """Wait for the device, whatever stream its work is on."""
        check(runtime.cudaDeviceSynchronize())

    def _count(self, name: str, work: int, *args: Any) -> int:
        self.fill(self._counter.address, 8, 0)
        self._launch(name, work, *args, _u64(self._counter.address))
        self.sync()
        return int(self._counter.view([1], "int64", 0).numpy()[0])

    # -- memory ------------------------------------------------------------------------------

    def fill(self, address: int, size: int, pattern: int) -> None:
        """Fill memory (a multiple of 4 bytes) with a 32-bit word."""
        self._launch("fill_words", size // 4, _u64(address), _i64(size // 4), _u32(pattern))

    def changed(self, address: int, size: int, pattern: int) -> int:
        """Return how many bytes are not as the word repeated from ``address`` on says."""
        if size == 0:
            return 0
        return self._count("count_changed", size, _u64(address), _i64(size), _u32(pattern))

    def different(self, a: int, b: int, size: int) -> int:
        """Return how many bytes differ between two places."""
        if size == 0:
            return 0
        return self._count("count_different", size, _u64(a), _u64(b), _i64(size))

    def read_all(self, memory: Memory) -> None:
        """Read memory, so that the L2 holds it and nothing dirty."""
        words = memory.size // 16
        self._launch(
            "read_all", words, _u64(memory.address), _i64(words), _u64(self._counter.address)
        )

    # -- inputs ------------------------------------------------------------------------------

    def draw(self, address: int, operand: Operand, how: Draw, seed: int) -> None:
        """Write an operand's values."""
        self._launch("fill", operand.size, *_drawn(address, operand, how, seed))

    def change(self, address: int, operand: Operand, how: Draw, seed: int, at: int) -> None:
        """Write new values at one place of the summed dimension (or one row of an extra)."""
        others = operand.matrices * (operand.cols if operand.k_rows else operand.rows)
        self._launch("change", others, *_drawn(address, operand, how, seed), _i64(at))

    def poke(self, address: int, operand: Operand, place: float, value: float) -> None:
        """Write one value at ``place`` in [0, 1) of an operand."""
        at = min(int(place * operand.size), operand.size - 1)
        self._launch("poke", 1, _u64(address), _int(operand.dtype), _i64(at), _double(value))

    # -- the true result -----------------------------------------------------------------------

    def problem(self, workload: Workload, addresses: Sequence[int]) -> Memory:
        """Return the description of a product, in device memory, for the calls below."""
        assert workload.a_batch is not None and workload.b_batch is not None
        told = _Problem(
            a=addresses[0],
            b=addresses[1],
            a_type=_TYPES[workload.a],
            b_type=_TYPES[workload.b],
            trans_a=workload.trans_a,
            trans_b=workload.trans_b,
            m=workload.m,
            n=workload.n,
            k=workload.k,
            batch=workload.batch,
            a_div=workload.a_batch.div,
            a_mod=workload.a_batch.mod,
            b_div=workload.b_batch.div,
            b_mod=workload.b_batch.mod,
            steps=len(workload.epilogue),
            as_tf32=workload.a == "tf32",
        )
        rest = iter(addresses[2:])
        for i, op in enumerate(workload.epilogue):
            told.step[i] = _Operation(
                _STEPS[op.kind],
                _TYPES[op.dtype] if op.dtype else 0,
                scale_of(op) if op.kind == "scale" else 0.0,
                next(rest) if op.dtype else 0,
            )
        memory = Memory(ctypes.sizeof(told), self.dev)
        memory.write(told)
        return memory

    def product(self, workload: Workload, problem: Memory) -> Truth:
        """Compute the float64 result and the sums of magnitudes behind it."""
        size = operands(workload)[-1].size
        truth = Truth(Memory(8 * size, self.dev), Memory(4 * size, self.dev))
        m, n = workload.m or 0, workload.n
        tiles = -(-m // 64) * -(-n // 64) * workload.batch
        args = (_u64(problem.address), _u64(truth.want.address), _u64(truth.size.address))
        self._launch("product", tiles * _THREADS, *args)
        return truth

    def compare(
        self, workload: Workload, recipe: str, got: int, truth: Truth, poison: int
    ) -> Memory:
        """Start comparing an output, every element, with the truth; see :meth:`stats`."""
        exact = is_exact(workload, recipe)
        found = self.no_stats()
        m, n = workload.m or 0, workload.n
        self._launch(
            *("compare", workload.batch * m * n, _u64(got), _int(workload.out)),
            *(_u64(truth.want.address), _u64(truth.size.address)),
            *(_i64(workload.batch), _i64(m), _i64(n)),
            *(_limits(workload, recipe), ctypes.c_int(exact)),
            *(_u32(poison), _u64(found.address)),
        )
        return found

    def sample(
        self, workload: Workload, problem: Memory, got: int, seed: int, count: int, found: Memory
    ) -> None:
        """Judge ``count`` elements drawn from the seed; adds to ``found``."""
        self._launch(
            *("sample", 32 * count, _u64(problem.address), _u64(got), _int(workload.out)),
            *(_u64(seed), _i64(count), _limits(workload, NORMAL), _u64(found.address)),
        )

    def honest(
        self, workload: Workload, problem: Memory, got: int, truth: Truth, found: Memory
    ) -> None:
        """Add the errors of an honest kernel of the class and of ``got`` on some tiles."""
        m, n = workload.m or 0, workload.n
        tiles = -(-m // 16) * -(-n // 8) * workload.batch
        tiles = min(tiles, max(64, min(2048, 2**28 // max(workload.k * 128, 1))))
        self._launch(
            *("honest", 32 * tiles, _u64(problem.address), _u64(got)),
            *(_u64(truth.want.address), _int(workload.out), _u64(97), _i64(tiles)),
            *(_double(LARGEST[workload.out]), _u64(found.address)),
        )

    def no_stats(self) -> Memory:
        """Return counts that are all zero."""
        found = Memory(ctypes.sizeof(_Stats), self.dev)
        self.fill(found.address, found.size - found.size % 4, 0)
        return found

    def stats(self, found: Memory) -> Stats:
        """Wait for a comparison and return what it counted."""
        self.sync()
        raw = found.read(_Stats)
        names = [field[0] for field in _Stats._fields_ if field[0] not in ("listed", "map")]
        count = min(int(raw.listed[LISTED]), LISTED)
        return Stats(
            **{name: getattr(raw, name) for name in names},
            listed=[int(x) for x in raw.listed[:count]],
            map=tuple(raw.map),
        )


class Truth:
    """The float64 result of one product and the magnitudes behind it."""

    def __init__(self, want: Memory, size: Memory) -> None:
        self.want, self.size = want, size


def _cubin(device: Device) -> bytes:
    source = _SOURCE.read_text()
    flags = [f"--gpu-architecture={device.nvrtc_arch}", "-std=c++17"]

    def produce() -> dict[str, Any]:
        includes = [f"--include-path={folder}" for folder in include_dirs()]
        request = {"source": source, "name": _SOURCE.name, "options": flags + includes}
        answer = compile_source(request)
        if not answer["ok"]:
            raise BuildError(f"the judge's own kernels do not build: {answer['log'][:300]}")
        return {"cubin": answer["cubin"]}

    key = digest(source, *flags, fingerprint())
    return bytes.fromhex(cached(settings().cubin_cache, key, produce)["cubin"])


def prepare_trusted(device: Device) -> None:
    """Build the judge's kernels, with no GPU, into the cache."""
    _cubin(device)


def _limits(workload: Workload, recipe: str) -> _Limits:
    limit: Limits = limits(workload, recipe)
    return _Limits(
        limit.unit_out, limit.smallest, limit.per_size, limit.largest, float(limit.saturates)
    )


def _drawn(address: int, x: Operand, how: Draw, seed: int) -> tuple[Any, ...]:
    return (
        *(_u64(address), _int(x.dtype), _i64(x.matrices), _i64(x.rows), _i64(x.cols)),
        *(ctypes.c_int(x.k_rows), ctypes.c_int(int(how.kind)), _double(how.top), _u64(seed)),
    )


def _u64(value: int) -> ctypes.c_uint64:
    return ctypes.c_uint64(value & _MASK)


def _i64(value: int) -> ctypes.c_int64:
    return ctypes.c_int64(value)


def _u32(value: int) -> ctypes.c_uint32:
    return ctypes.c_uint32(value)


def _double(value: float) -> ctypes.c_double:
    return ctypes.c_double(value)


def _int(dtype: str) -> ctypes.c_int:
    return ctypes.c_int(_TYPES[dtype])


def storage(workload_type: str) -> str:
    """Return the stored type of a canonical one."""
    return DTYPES[workload_type].storage
