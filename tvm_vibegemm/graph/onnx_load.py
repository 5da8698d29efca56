"""Reads an ONNX file that nobody vouches for: checks it, fixes its shapes, simplifies it."""

from __future__ import annotations

import contextlib
import io
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import InputError, last_line

_LARGE_MODEL = 1 << 30  # bytes of weights; well under the 2 GiB that a protobuf may have
_LARGE_TENSOR = 1 << 20
# ONNX's numbers of the types that have whole bytes, by how many (bfloat16 is 16, float8 17 to 20).
_TYPES_OF = {1: (2, 3, 9, 17, 18, 19, 20), 2: (4, 5, 10, 16), 4: (1, 6, 12), 8: (7, 11, 13, 14)}
_ITEM_BYTES = {number: size for size, numbers in _TYPES_OF.items() for number in numbers}


def load_model(path: Path, shapes: dict[str, tuple[int, ...]]) -> Any:
    """Read and simplify a model.

    Parameters
    ----------
    path
        An ``.onnx`` file.
    shapes
        Shape of each input that is dynamic in the file.

    Returns
    -------
    onnx.ModelProto
        With fixed shapes, as onnxslim leaves it.

    Raises
    ------
    InputError
        When there is no such file, it is not ONNX, a name or shape does not fit, an input stays
        dynamic, or external data lies outside the model's folder.
    """
    import onnx

    if not path.is_file():
        raise InputError(f"model {path}: no such file")
    try:
        model = onnx.load(str(path), load_external_data=False)
    except OSError as error:
        raise InputError(f"model {path}: cannot be read ({error.strerror})") from error
    except Exception as error:  # protobuf has its own errors
        raise InputError(f"model {path}: is not an ONNX model, or is truncated") from error
    if not model.graph.node or not model.opset_import:
        raise InputError(f"model {path}: is not an ONNX model, or is truncated")
    _check_external_data(model, path)
    try:
        onnx.load_external_data_for_model(model, str(path.parent))
    except Exception as error:
        raise InputError(
            f"model {path}: its external data cannot be read ({error!s:.200})"
        ) from error
    _check_sizes(model, path)
    _fix_shapes(model, path, shapes)
    return _simplify(model, path, shapes)


def stored_tensors(model: Any) -> Iterator[Any]:
    """Yield every stored tensor of a model: of its graph, the graphs inside it, its functions."""
    yield from _tensors_of_graph(model.graph)
    for function in model.functions:
        yield from _tensors_of_nodes(function.node)


def _tensors_of_graph(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _tensors_of_nodes(graph.node)


def _tensors_of_nodes(nodes: Any) -> Iterator[Any]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            sparse = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
            for tensor in (*sparse, *attribute.sparse_tensors):
                yield from (tensor.values, tensor.indices)
            graphs = [attribute.g] if attribute.HasField("g") else []
            for graph in (*graphs, *attribute.graphs):
                yield from _tensors_of_graph(graph)


def _check_external_data(model: Any, path: Path) -> None:
    # The folder that the path names, even where the file in it is a link: data is read from there.
    root = path.parent.resolve()
    for tensor in stored_tensors(model):
        for entry in tensor.external_data:
            if entry.key != "location":
                continue
            place = (root / entry.value).resolve()  # follows links and ..
            if not place.is_relative_to(root):
                raise InputError(
                    f"model {path}: external data at {entry.value!r} lies outside the model's"
                    " folder; refused"
                )
            if not place.is_file():
                raise InputError(f"model {path}: external data {entry.value!r} is missing")


def _check_sizes(model: Any, path: Path) -> None:
    """Refuse a stored tensor whose bytes are not those of its shape: a truncated data file."""
    for tensor in stored_tensors(model):
        if not tensor.HasField("raw_data") or tensor.data_type not in _ITEM_BYTES:
            continue  # in typed fields, which the importer counts, or of several values a byte
        wanted = _ITEM_BYTES[tensor.data_type] * math.prod(tensor.dims)
        if len(tensor.raw_data) != wanted:
            raise InputError(
                f"model {path}: tensor {tensor.name!r} has {len(tensor.raw_data)} bytes, its shape"
                f" needs {wanted}; the file is truncated or damaged"
            )


def _inputs(model: Any) -> dict[str, Any]:
    stored = {tensor.name for tensor in model.graph.initializer}
    return {value.name: value for value in model.graph.input if value.name not in stored}


def _fix_shapes(model: Any, path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    inputs = _inputs(model)
    for name, value in inputs.items():
        if not value.type.HasField("tensor_type"):
            what = (value.type.WhichOneof("value") or "value of no type").removesuffix("_type")
            raise InputError(f"model {path}: input {name!r} is a {what}; it has to be a tensor")
    for name, shape in shapes.items():
        if name not in inputs:
            raise InputError(
                f"model {path}: has no input {name!r}; its inputs: {', '.join(inputs) or 'none'}"
            )
        kind = inputs[name].type.tensor_type
        if not kind.HasField("shape"):  # of unknown rank: any may fit
            kind.shape.SetInParent()
            for _ in shape:
                kind.shape.dim.add()
        dims = kind.shape.dim
        given = ",".join(map(str, shape))
        if len(dims) != len(shape):
            raise InputError(
                f"model {path}: input {name!r} has {len(dims)} dimensions, not"
                f" {len(shape)} ({given})"
            )
        for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
            if not 0 <= size < 1 << 63:
                raise InputError(f"model {path}: input {name!r}: {size} is no extent ({given})")
            if dim.HasField("dim_value") and dim.dim_value not in (0, size):
                raise InputError(
                    f"model {path}: input {name!r} has {dim.dim_value} along axis {axis},"
                    f" not {size}"
                )
            dim.dim_value = size
    for name, value in inputs.items():
        if not value.type.tensor_type.HasField("shape"):
            raise InputError(
                f"model {path}: input {name!r} is of unknown rank; fix it: --shape {name}:…"
            )
        dims = value.type.tensor_type.shape.dim
        open_axes = [
            i for i, d in enumerate(dims) if not d.HasField("dim_value") or d.dim_value < 0
        ]
        if open_axes:
            text = ",".join(
                str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in dims
            )
            raise InputError(
                f"model {path}: input {name!r} is dynamic ({text}); fix it: --shape {name}:…"
            )


def _simplify(model: Any, path: Path, shapes: dict[str, tuple[int, ...]]) -> Any:
    import onnxslim

    logging.getLogger("onnxslim").setLevel(logging.ERROR)
    fixed = [f"{name}:{','.join(map(str, shape))}" for name, shape in shapes.items()]
    # onnxslim serialises the model, which past the limit of a protobuf is an error.
    size = sum(len(tensor.raw_data) for tensor in stored_tensors(model))
    aside = _set_aside(model) if size > _LARGE_MODEL else {}
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            slim = onnxslim.slim(model, input_shapes=fixed or None)
    except Exception as error:
        shape_text = ", ".join(fixed) or "its own shapes"
        raise InputError(
            f"model {path}: cannot be simplified with {shape_text}: {last_line(error, 200)}"
        ) from error
    _put_back(slim, aside)
    return slim


def _set_aside(model: Any) -> dict[str, Any]:
    """Make inputs of a model's large weights, and return the weights.

    Their values do not matter for its shapes; what is lost is folding of large constants.
    """
    import onnx

    listed = {value.name for value in model.graph.input}
    aside = {}
    kept = []
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) < _LARGE_TENSOR:
            kept.append(tensor)
            continue
        aside[tensor.name] = tensor
        if tensor.name not in listed:
            model.graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    # The weights live on in `aside`: protobuf keeps a message's memory while it is referred to.
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    return aside


def _put_back(model: Any, aside: dict[str, Any]) -> None:
    inputs = [value for value in model.graph.input if value.name not in aside]
    weights = [aside[value.name] for value in model.graph.input if value.name in aside]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.graph.initializer.extend(weights)
