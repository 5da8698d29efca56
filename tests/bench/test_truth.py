"""A model's float64 result: that of ONNX Runtime but for its roundings, kept in a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tvm_vibegemm.bench.models import EncoderShape, encoder
from tvm_vibegemm.bench.truth import float64_truth
from tvm_vibegemm.errors import InputError
from tvm_vibegemm.graph.onnx_check import random_inputs, widened_truth

SMALL = EncoderShape(layers=1, batch=2, sequence=8, hidden=32, heads=2, feed_forward=64)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_it_is_what_onnx_runtime_gives_but_for_rounding(dtype: str, tmp_path: Path) -> None:
    model = encoder(dtype, SMALL)
    inputs = random_inputs(model)
    (got,) = float64_truth(model, inputs, tmp_path / "truth.npz")
    (want,) = widened_truth(model, inputs)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, want, atol=1e-5)
    assert np.abs(got - want).max() > 0  # float32 rounds


def test_a_kept_result_is_used_for_the_same_model_and_inputs_only(tmp_path: Path) -> None:
    model, path = encoder("float32", SMALL), tmp_path / "truth.npz"
    inputs = random_inputs(model)
    (first,) = float64_truth(model, inputs, path)
    written = path.stat().st_mtime_ns
    (again,) = float64_truth(model, inputs, path)
    assert np.array_equal(first, again) and path.stat().st_mtime_ns == written
    (other,) = float64_truth(model, random_inputs(model, seed=1), path)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("content", [b"", b"not a zip file", b"PK\x03\x04 cut short"])
def test_another_file_is_one_line_and_stays(content: bytes, tmp_path: Path) -> None:
    model, path = encoder("float32", SMALL), tmp_path / "mine.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"mine\.txt: holds no float64 result"):
        float64_truth(model, random_inputs(model), path)
    assert path.read_bytes() == content


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    model = encoder("float32", SMALL)
    with pytest.raises(InputError, match="cannot be written"):
        float64_truth(model, random_inputs(model), tmp_path / "nowhere" / "truth.npz")
