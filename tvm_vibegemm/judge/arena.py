"""The memory that a kernel under test sees: every buffer between guard bands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..rivals.reference import operand_shapes
from ..workload import Workload
from .dlpack import Described
from .inputs import Operand, draws, operands, specials
from .trusted import Memory, Trusted

GUARD = 64 << 10
# TVM promises its kernels 64 bytes and no more; a place that is a multiple of 64 and of nothing
# larger shows what relies on more.
_OFFSET = GUARD + 64
NAN_WORD = 0xFFFFFFFF  # NaN in every float type
FINITE_WORD = 0x5C5C5C5C  # 279 as fp16, 2.5e17 as fp32 and bf16, 92 as int8
# NaN or 3.4e38 by type: what is added to it, or trusted, shows.
JUNK_WORD = 0x7F7F7F7F
_OUTPUT_GUARD = 0xC3A5693C


class Guarded:
    """A buffer with guard bands on both sides."""

    def __init__(self, trusted: Trusted, shape: Sequence[int], dtype: str, size: int) -> None:
        self.size = size
        self._trusted = trusted
        padded = -(-size // 4) * 4
        self._memory = Memory(_OFFSET + padded + GUARD, trusted.dev)
        self.address = self._memory.address + _OFFSET
        self._end = self.address + padded
        self._pattern = 0
        self._described = Described(self.address, shape, dtype, trusted.dev.index)
        self.tensor = self._described.tensor

    def guard(self, pattern: int) -> None:
        """Fill both guards, and the bytes that pad the buffer to whole words."""
        self._pattern = pattern
        self._trusted.fill(self._memory.address, _OFFSET, pattern)
        self._trusted.fill(self._end - 4 if self.size % 4 else self._end, GUARD, pattern)

    def fill(self, pattern: int) -> None:
        """Fill the buffer itself, and then its guards again."""
        self._trusted.fill(self.address, self._end - self.address, pattern)
        self.guard(self._pattern)

    def touched(self) -> int:
        """Return how many bytes of the guards were written to."""
        first = self._trusted.changed(self._memory.address, _OFFSET, self._pattern)
        # From the buffer's end on, in step with the word it was filled with.
        tail = self.address + self.size
        turn = 8 * (self.size % 4)
        word = (self._pattern >> turn | self._pattern << (32 - turn)) & 0xFFFFFFFF
        return first + self._trusted.changed(tail, self._end + GUARD - 4 - tail, word)


class Arena:
    """All buffers of one workload, for one kernel after another.

    Parameters
    ----------
    trusted, workload
        What fills them, and what they are for; M is fixed.
    workspace
        Bytes of workspace, 0 for none.
    """

    def __init__(self, trusted: Trusted, workload: Workload, workspace: int) -> None:
        self.trusted, self.workload = trusted, workload
        *self.layout, self.out_layout = operands(workload)
        shapes = operand_shapes(workload)
        self.inputs = [
            Guarded(trusted, shape, dtype, operand.bytes)
            for operand, (shape, dtype) in zip(self.layout, shapes[:-1], strict=True)
        ]
        out_shape, out_type = shapes[-1]
        self.output = Guarded(trusted, out_shape, out_type, self.out_layout.bytes)
        self.workspace = Guarded(trusted, (workspace,), "uint8", workspace) if workspace else None
        self.output._pattern = _OUTPUT_GUARD
        if self.workspace:
            self.workspace._pattern = _OUTPUT_GUARD

    def draw(self, recipe: str, seed: int, guards: int) -> None:
        """Fill the inputs, and what lies beside them."""
        for buffer in self.inputs:
            buffer.fill(0)
            buffer.guard(guards)
        fill_inputs(self.trusted, self.workload, self.addresses, recipe, seed)

    @property
    def addresses(self) -> list[int]:
        """Where the inputs stand."""
        return [buffer.address for buffer in self.inputs]

    def run(self, call: Any, poison: int, workspace: int | None) -> None:
        """Call a kernel on a poisoned output; the workspace is filled, or left as it is (None)."""
        self.output.fill(poison)
        room = None
        if self.workspace is not None:
            if workspace is not None:
                self.workspace.fill(workspace)
            else:
                self.workspace.guard(_OUTPUT_GUARD)
            room = self.workspace.tensor
        self.trusted.sync()
        call([buffer.tensor for buffer in self.inputs], self.output.tensor, room)
        self.trusted.sync()

    def written_outside(self) -> str | None:
        """Return which buffer's neighbourhood was written to, or None."""
        labels = ["A", "B", *(f"operand {i}" for i in range(len(self.inputs) - 2)), "D"]
        buffers = [*self.inputs, self.output]
        if self.workspace is not None:
            labels.append("the workspace")
            buffers.append(self.workspace)
        for label, buffer in zip(labels, buffers, strict=True):
            count = buffer.touched()
            if count:
                return f"{count} bytes beside {label}"
        return None


def fill_inputs(
    trusted: Trusted, workload: Workload, addresses: Sequence[int], recipe: str, seed: int
) -> None:
    """Write A, B and the epilogue's operands at the addresses given."""
    layout: list[Operand] = operands(workload)[:-1]
    for number, (operand, how) in enumerate(zip(layout, draws(workload, recipe), strict=True)):
        trusted.draw(addresses[number], operand, how, operand_seed(seed, number))
    if recipe == "special":
        for number, place, value in specials(workload):
            trusted.poke(addresses[number], layout[number], place, value)


def operand_seed(seed: int, number: int) -> int:
    """Return the seed of one operand's values."""
    return seed * 1000003 + number * 7919 + 1
