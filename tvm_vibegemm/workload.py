"""What one matrix product asks for, and the canonical key that names it in the database.

``D[b, m, n] = epilogue(sum_k A[b, m, k] * B[b, k, n])`` for ``b`` in ``range(batch)``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .errors import InputError

if TYPE_CHECKING:
    from .device import Device

KEY_VERSION = "vg1"


@dataclass(frozen=True)
class DType:
    """A type as the key names it, with how it is stored.

    Parameters
    ----------
    name
        Canonical name, e.g. ``f16``. ``tf32`` is stored as float32 but promises only TF32
        precision, so it is a type of its own: fp32 always means fp32-class error.
    storage
        TVM's name of the stored type.
    bits
        Stored size in bits.
    """

    name: str
    storage: str
    bits: int

    @property
    def bytes(self) -> int:
        """Stored size in bytes."""
        return self.bits // 8


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("f64", "float64", 64),
        DType("f32", "float32", 32),
        DType("tf32", "float32", 32),
        DType("f16", "float16", 16),
        DType("bf16", "bfloat16", 16),
        DType("s32", "int32", 32),
        DType("s8", "int8", 8),
        DType("u8", "uint8", 8),
        DType("f8e4m3", "float8_e4m3fn", 8),
        DType("f8e5m2", "float8_e5m2", 8),
    )
}
OPERAND_DTYPES = ("f32", "tf32", "f16", "bf16", "s8", "f8e4m3", "f8e5m2")

EPILOGUE_KINDS = ("bias", "relu", "gelu_erf", "gelu_tanh", "silu", "scale", "residual")
_WITH_OPERAND = ("bias", "residual")


def dtype_from_storage(storage: str) -> str | None:
    """Return the canonical name of a stored type (``float16`` → ``f16``), or None.

    ``float32`` means ``f32``: TF32 is never assumed.
    """
    for dtype in DTYPES.values():
        if dtype.storage == storage and dtype.name != "tf32":
            return dtype.name
    return None


@dataclass(frozen=True)
class BatchMap:
    """Which of an operand's matrices the product ``b`` uses: ``(b // div) % mod``.

    Numpy broadcasting of batch dimensions comes down to this wherever the operand's own
    (not broadcast) batch dimensions are adjacent.

    Parameters
    ----------
    div
        How many consecutive products share a matrix.
    mod
        How many matrices the operand holds.
    """

    div: int = 1
    mod: int = 1


@dataclass(frozen=True)
class EpilogueOp:
    """One step that follows the product, applied to the accumulator.

    Parameters
    ----------
    kind
        One of :data:`EPILOGUE_KINDS`. ``bias`` adds a vector of length N, ``residual`` a tensor
        of the output's shape, ``scale`` multiplies by a constant.
    dtype
        Canonical type of the operand of ``bias`` and ``residual``, else None.
    value
        The factor of ``scale``. Not part of the key: speed does not depend on it.
    """

    kind: str
    dtype: str | None = None
    value: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in EPILOGUE_KINDS:
            raise InputError(f"unknown epilogue {self.kind!r}; known: {', '.join(EPILOGUE_KINDS)}")
        if (self.kind in _WITH_OPERAND) != (self.dtype is not None):
            raise InputError(f"epilogue {self.kind!r}: an operand type goes with bias and residual")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise InputError(f"epilogue {self.kind!r}: unknown type {self.dtype!r}")

    @property
    def key(self) -> str:
        """Canonical text: ``relu`` or ``bias(f16)``."""
        return f"{self.kind}({self.dtype})" if self.dtype else self.kind


@dataclass(frozen=True)
class Workload:
    """One matrix product with its epilogue.

    Parameters
    ----------
    m, n, k
        Rows of D, columns of D, and the summed dimension; ``m`` is None where it is dynamic.
    a, b, acc, out
        Canonical type names of the operands, the accumulator and the output.
    trans_a, trans_b
        True where the operand is stored transposed: A as K×M, B as N×K (row-major otherwise).
    batch
        Number of products.
    a_batch, b_batch
        Which matrix of the operand each product uses; by default every product has its own.
    epilogue
        Steps after the product, in order.
    """

    m: int | None
    n: int
    k: int
    a: str = "f16"
    b: str = "f16"
    acc: str = "f32"
    out: str = "f16"
    trans_a: bool = False
    trans_b: bool = False
    batch: int = 1
    a_batch: BatchMap | None = None
    b_batch: BatchMap | None = None
    epilogue: tuple[EpilogueOp, ...] = ()

    def __post_init__(self) -> None:
        for field, value in (("n", self.n), ("k", self.k), ("batch", self.batch)):
            if value < 0:
                raise InputError(f"workload: {field} = {value} is negative")
        if self.m is not None and self.m < 0:
            raise InputError(f"workload: m = {self.m} is negative")
        for name in (self.a, self.b):
            if name not in OPERAND_DTYPES:
                raise InputError(
                    f"workload: unknown operand type {name!r}; known: {', '.join(OPERAND_DTYPES)}"
                )
        for name in (self.acc, self.out):
            if name not in DTYPES:
                raise InputError(f"workload: type {name!r} is unknown; known: {', '.join(DTYPES)}")
        for side in ("a_batch", "b_batch"):
            given = getattr(self, side)
            if given is None:
                object.__setattr__(self, side, BatchMap(1, self.batch))
            elif given.div < 1 or given.mod < min(1, self.batch):
                raise InputError(f"workload: {side} {given} is not positive")
            elif given.mod == 1 and given.div != 1:
                object.__setattr__(self, side, BatchMap(1, 1))
            elif given.mod > 1 and self.batch % (given.div * given.mod):
                raise InputError(f"workload: {side} {given} does not fit batch {self.batch}")

    # -- names -------------------------------------------------------------------------------

    @property
    def layout(self) -> str:
        """BLAS-style layout: ``nn``, ``nt``, ``tn`` or ``tt`` (``t`` = stored transposed)."""
        return ("t" if self.trans_a else "n") + ("t" if self.trans_b else "n")

    @property
    def key(self) -> str:
        """Canonical, versioned text that :meth:`parse` reads back (scale factors left out)."""
        batch = f"x{self.batch}"
        maps = ((" a", self.a_batch), (" b", self.b_batch))
        parts = [
            f"{tag.strip()}{m.div}/{m.mod}"
            for tag, m in maps
            if m is not None and m != BatchMap(1, self.batch)
        ]
        if parts:
            batch += f"({','.join(parts)})"
        epilogue = "+".join(op.key for op in self.epilogue) or "-"
        m = "*" if self.m is None else str(self.m)
        return (
            f"{KEY_VERSION}:{self.a}.{self.b}.{self.acc}.{self.out}:{self.layout}:{batch}"
            f":m{m}:n{self.n}:k{self.k}:{epilogue}"
        )

    def __str__(self) -> str:
        return self.key

    @classmethod
    def parse(cls, key: str) -> Workload:
        """Read a canonical key.

        Parameters
        ----------
        key
            E.g. ``vg1:f16.f16.f32.f16:nt:x1:m16:n4096:k4096:bias(f16)+gelu_erf``.

        Returns
        -------
        Workload
            The workload; ``Workload.parse(key).key == key``.

        Raises
        ------
        InputError
            When the text is not a key of this version.
        """
        match = _KEY.fullmatch(key.strip())
        if match is None:
            raise InputError(
                f"workload key {key[:120]!r}: not of the form "
                f"{KEY_VERSION}:A.B.ACC.OUT:LAYOUT:xBATCH:mM:nN:kK:EPILOGUE"
            )
        group = match.groupdict()
        maps: dict[str, BatchMap] = {}
        for part in (group["maps"] or "").split(","):
            if part:
                div, mod = part[1:].split("/")
                maps[f"{part[0]}_batch"] = BatchMap(int(div), int(mod))
        epilogue = []
        if group["epilogue"] != "-":
            for text in group["epilogue"].split("+"):
                kind, _, dtype = text.rstrip(")").partition("(")
                epilogue.append(EpilogueOp(kind, dtype or None))
        workload = cls(
            m=None if group["m"] == "*" else int(group["m"]),
            n=int(group["n"]),
            k=int(group["k"]),
            a=group["a"],
            b=group["b"],
            acc=group["acc"],
            out=group["out"],
            trans_a=group["layout"][0] == "t",
            trans_b=group["layout"][1] == "t",
            batch=int(group["batch"]),
            epilogue=tuple(epilogue),
            **maps,
        )
        if workload.key != key.strip():
            raise InputError(
                f"workload key {key[:120]!r} is not canonical; meant {workload.key!r}?"
            )
        return workload

    # -- variations ----------------------------------------------------------------------------

    def at(self, m: int) -> Workload:
        """Return this workload with M fixed to ``m``."""
        return replace(self, m=m)

    @property
    def is_empty(self) -> bool:
        """True where D has no element."""
        return self.m == 0 or self.n == 0 or self.batch == 0

    # -- cost ----------------------------------------------------------------------------------

    def _static_m(self) -> int:
        if self.m is None:
            raise InputError(f"workload {self.key}: M is dynamic; fix it first with .at(m)")
        return self.m

    def flops(self) -> int:
        """Return the floating-point (or integer) operations of the products: ``2·batch·M·N·K``."""
        return 2 * self.batch * self._static_m() * self.n * self.k

    def min_bytes(self) -> int:
        """Return the fewest bytes that must move: each operand read once, D written once."""
        m = self._static_m()
        assert self.a_batch is not None and self.b_batch is not None
        total = self.a_batch.mod * m * self.k * DTYPES[self.a].bytes
        total += self.b_batch.mod * self.k * self.n * DTYPES[self.b].bytes
        total += self.batch * m * self.n * DTYPES[self.out].bytes
        for op in self.epilogue:
            if op.kind == "bias" and op.dtype:
                total += self.n * DTYPES[op.dtype].bytes
            elif op.kind == "residual" and op.dtype:
                total += self.batch * m * self.n * DTYPES[op.dtype].bytes
        return total

    def roofline_us(self, device: Device) -> float:
        """Return the least time on a device, in microseconds.

        The larger of operations over the peak rate of the operand type and bytes over the
        measured copy bandwidth (Williams, Waterman, Patterson: Roofline, CACM 2009).
        """
        compute = self.flops() / (device.peak_tflops(self.a) * 1e12)
        memory = self.min_bytes() / (device.dram_gbps * 1e9)
        return max(compute, memory) * 1e6


_T = r"[a-z0-9]+"
_KEY = re.compile(
    rf"{KEY_VERSION}:(?P<a>{_T})\.(?P<b>{_T})\.(?P<acc>{_T})\.(?P<out>{_T}):(?P<layout>[nt][nt])"
    r":x(?P<batch>\d{1,15})(?:\((?P<maps>[ab]\d{1,15}/\d{1,15}(?:,b\d{1,15}/\d{1,15})?)\))?"
    r":m(?P<m>\*|\d{1,15}):n(?P<n>\d{1,15}):k(?P<k>\d{1,15})"
    r":(?P<epilogue>-|[a-z_]+(?:\([a-z0-9]+\))?(?:\+[a-z_]+(?:\([a-z0-9]+\))?){0,15})",
    re.ASCII,
)
