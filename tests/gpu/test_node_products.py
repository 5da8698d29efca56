"""ONNX's node tests of MatMul and Gemm, compiled through the pass and run on the GPU."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from tests.graph.test_node_products import NAMES, cases
from tvm_vibegemm.device import device_for
from tvm_vibegemm.graph.pipeline import vibegemm_pipeline
from tvm_vibegemm.graph.report import SiteReport
from tvm_vibegemm.kernel.module import cuda_target
from tvm_vibegemm.toolchain import local_device

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", NAMES)
def test_node(name: str) -> None:
    found = local_device()
    assert found is not None
    inputs, wanted = cases()[name].data_sets[0]
    sites: list[SiteReport] = []
    target = cuda_target(device_for(*found))
    with target:
        executable = tvm.compile(
            from_onnx(cases()[name].model),
            target=target,
            relax_pipeline=vibegemm_pipeline(target=found[0], select="valid", sites=sites),
        )
    assert [site.decision for site in sites] == ["kernel"]
    machine = relax.VirtualMachine(executable, tvm.cuda(0))
    got = machine["main"](*[tvm.runtime.tensor(np.asarray(x), tvm.cuda(0)) for x in inputs]).numpy()
    assert got.shape == wanted[0].shape
    np.testing.assert_allclose(got, wanted[0], 1e-4, 1e-5)
