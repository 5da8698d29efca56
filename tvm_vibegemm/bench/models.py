"""Builds measuring models as ONNX: an encoder of BERT's size with made-up weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

_ONNX = {"float32": 1, "float16": 10, "bfloat16": 16}


@dataclass(frozen=True)
class EncoderShape:
    """Sizes of a Transformer encoder; the defaults are BERT-base (Devlin et al., 2019)."""

    layers: int = 12
    batch: int = 32
    sequence: int = 128
    hidden: int = 768
    heads: int = 12
    feed_forward: int = 3072


class _Graph:
    """Collects nodes and stored tensors of one model."""

    def __init__(self, dtype: str, seed: int) -> None:
        from ..judge.inputs import numpy_dtype

        self.dtype, self.numpy = dtype, numpy_dtype(dtype)
        self.nodes: list[Any] = []
        self.stored: list[Any] = []
        # Weights are slices of one pool: distinct for each layer, yet a library of them packs well.
        self.pool = np.random.default_rng(seed).standard_normal(3_000_000, dtype=np.float32)
        self.taken = 0

    def weight(
        self, *shape: int, scale: float = 0.02, shift: float = 0.0, dtype: str | None = None
    ) -> str:
        size = int(np.prod(shape))
        start = (self.taken * 7919) % (len(self.pool) - size)
        self.taken += 1
        values = self.pool[start : start + size].reshape(shape) * np.float32(scale)
        kind = np.dtype(dtype) if dtype else self.numpy
        return self.store((values + np.float32(shift)).astype(kind))

    def store(self, values: np.ndarray[Any, Any]) -> str:
        import onnx

        name = f"w{len(self.stored)}"
        kind = _ONNX.get(values.dtype.name, 7)
        tensor = onnx.helper.make_tensor(name, kind, values.shape, values.tobytes(), raw=True)
        self.stored.append(tensor)
        return name

    def scalar(self, value: float) -> str:
        return self.store(np.array(value, self.numpy))

    def ints(self, *values: int) -> str:
        return self.store(np.array(values, np.int64))

    def add(self, op: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        import onnx

        name = output or f"t{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(op, list(inputs), [name], **attributes))
        return name


def encoder(dtype: str = "float32", shape: EncoderShape | None = None, seed: int = 0) -> Any:
    """Return an encoder as an ONNX model, input ``x`` and output ``y`` (batch, sequence, hidden).

    The feed-forward part has its gelu decomposed, as exporters write it.

    Parameters
    ----------
    dtype
        ``float32``, ``float16`` or ``bfloat16``: of everything.
    shape
        Sizes; BERT-base by default.
    seed
        Of the weights: the same in every type, but for the rounding.

    Returns
    -------
    onnx.ModelProto
        Opset 17.
    """
    import onnx

    s = shape or EncoderShape()
    g = _Graph(dtype, seed)
    x = "x"
    for layer in range(s.layers):
        last = "y" if layer == s.layers - 1 else None
        x = _layer(g, s, x, last)
    dims = [s.batch, s.sequence, s.hidden]
    graph = onnx.helper.make_graph(
        g.nodes,
        "encoder",
        [onnx.helper.make_tensor_value_info("x", _ONNX[dtype], dims)],
        [onnx.helper.make_tensor_value_info("y", _ONNX[dtype], dims)],
        g.stored,
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    model.ir_version = 9
    return model


def _linear(g: _Graph, x: str, k: int, n: int) -> str:
    product = g.add("MatMul", x, g.weight(k, n))
    return g.add("Add", product, g.weight(n))


def _normed(g: _Graph, x: str, hidden: int, output: str | None = None) -> str:
    scale = g.weight(hidden, scale=0.05, shift=1.0, dtype="float32")
    shift = g.weight(hidden, dtype="float32")
    if g.dtype == "float32":
        return g.add("LayerNormalization", x, scale, shift, axis=-1, epsilon=1e-5, output=output)
    # In float32, as mixed-precision training leaves it; TVM has no bfloat16 normalisation.
    wide = g.add("Cast", x, to=_ONNX["float32"])
    normed = g.add("LayerNormalization", wide, scale, shift, axis=-1, epsilon=1e-5)
    return g.add("Cast", normed, to=_ONNX[g.dtype], output=output)


def _layer(g: _Graph, s: EncoderShape, x: str, output: str | None) -> str:
    width = s.hidden // s.heads
    split = g.ints(s.batch, s.sequence, s.heads, width)

    def heads(perm: list[int]) -> str:
        flat = _linear(g, x, s.hidden, s.hidden)
        return g.add("Transpose", g.add("Reshape", flat, split), perm=perm)

    query, key, value = heads([0, 2, 1, 3]), heads([0, 2, 3, 1]), heads([0, 2, 1, 3])
    scores = g.add("Div", g.add("MatMul", query, key), g.scalar(float(np.sqrt(width))))
    context = g.add("MatMul", g.add("Softmax", scores, axis=-1), value)
    merged = g.add("Transpose", context, perm=[0, 2, 1, 3])
    merged = g.add("Reshape", merged, g.ints(s.batch, s.sequence, s.hidden))
    attended = g.add("Add", _linear(g, merged, s.hidden, s.hidden), x)
    x = _normed(g, attended, s.hidden)
    inner = _linear(g, x, s.hidden, s.feed_forward)
    erf = g.add("Erf", g.add("Div", inner, g.scalar(float(np.sqrt(2.0)))))
    gelu = g.add("Mul", g.add("Mul", inner, g.add("Add", erf, g.scalar(1.0))), g.scalar(0.5))
    out = g.add("Add", _linear(g, gelu, s.feed_forward, s.hidden), x)
    return _normed(g, out, s.hidden, output)
