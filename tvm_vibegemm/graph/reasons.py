"""The closed list of reasons why a matrix product keeps what the graph had."""

from __future__ import annotations

from enum import Enum


class Decline(Enum):
    """Why a product is declined; the value is the sentence that the report shows."""

    DTYPE = "operand or output types are not float32, float16 or bfloat16, or the operands differ"
    UNKNOWN_SHAPE = "the rank or shape of an operand is unknown"
    SYMBOLIC_NK = "N or K is symbolic; only M may be"
    SYMBOLIC_BATCH = "the batch is symbolic and cannot be flattened into M"
    BATCH_BROADCAST = "the batch broadcast is not expressible: an operand's dimensions lie apart"
    NOT_INFERABLE = "a symbolic dimension cannot be read off the shapes of the operands"
    OTHER_CODEGEN = "already part of another code generator's function"
    LOWERED = "already lowered to a TIR function (call_tir); run the pass before LegalizeOps"
    OTHER_DEVICE = "an operand lives on a device that is no CUDA GPU"
    NESTED = "not bound to a variable of its own; run relax.transform.Normalize first"


class ChainEnd(Enum):
    """Why the chain behind a product ends where it does; the value is a sentence."""

    OUTPUT = "the value is an output, or leaves its block"
    USED_ELSEWHERE = "the value is used more than once"
    NOT_FUSIBLE = "the next operation is none that an epilogue can do"
    OPERAND = "the other operand is no vector along N, not of the output's shape, and no scalar"
    RESHAPE = "the reshape does not keep N as the last dimension"
    CAST = "the cast rounds, so nothing after it belongs to the product"
    DTYPE = "the type is not float32, float16 or bfloat16"
    NOT_INFERABLE = "a symbolic dimension cannot be read off the shapes of the operands"
    BARRIER = "an operation with side effects stands between"
    LONG = "the chain has reached its greatest length"
