"""ONNX's own node tests of MatMul and Gemm: each is offloaded, and gives ONNX's numbers."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest
from tvm.relax.frontend.onnx import from_onnx

from tvm_vibegemm.graph.report import read_report

from .helpers import apply, execute, with_codegen

NAMES = (
    "test_gemm_all_attributes",
    "test_gemm_alpha",
    "test_gemm_beta",
    "test_gemm_default_matrix_bias",
    "test_gemm_default_no_bias",
    "test_gemm_default_scalar_bias",
    "test_gemm_default_single_elem_vector_bias",
    "test_gemm_default_vector_bias",
    "test_gemm_default_zero_bias",
    "test_gemm_transposeA",
    "test_gemm_transposeB",
    "test_matmul_1d_1d",
    "test_matmul_1d_3d",
    "test_matmul_2d",
    "test_matmul_3d",
    "test_matmul_4d",
    "test_matmul_4d_1d",
    "test_matmul_bcast",
)


@cache
def cases() -> dict[str, Any]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other operators' tests overflow on purpose
        tests = load_model_tests(kind="node")
    return {
        test.name: test
        for test in tests
        if test.name.startswith(("test_gemm_", "test_matmul_"))
        and all(np.asarray(x).dtype.kind == "f" for x in test.data_sets[0][0])
    }


@pytest.mark.parametrize("name", NAMES)
def test_node(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, wanted = cases()[name].data_sets[0]
    result = apply(from_onnx(cases()[name].model), monkeypatch)
    assert [site.decision for site in read_report(result)] == ["kernel"]
    (got,) = execute(with_codegen(result), [np.asarray(x) for x in inputs])
    assert got.shape == wanted[0].shape
    np.testing.assert_allclose(got, wanted[0], 1e-4, 1e-5)
