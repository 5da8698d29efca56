"""Powers with small whole exponents become products; other powers stay."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_vibegemm.graph.powers import expand_powers


def module(exponent: float, dataflow: bool = True) -> tvm.IRModule:
    x = relax.Var("x", relax.TensorType((3, 4), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        if dataflow:
            with builder.dataflow():
                y = builder.emit(relax.op.power(x, relax.const(exponent, "float32")))
                out = builder.emit_output(relax.op.add(y, x))
        else:
            y = builder.emit(relax.op.power(x, relax.const(exponent, "float32")))
            out = builder.emit(relax.op.add(y, x))
        builder.emit_func_output(out)
    return builder.get()


@pytest.mark.parametrize("dataflow", [True, False])
@pytest.mark.parametrize("exponent", [2.0, 3.0, 4.0])
def test_products(exponent: float, dataflow: bool) -> None:
    result = expand_powers(module(exponent, dataflow))
    assert "R.power" not in result.script()
    relax.analysis.well_formed(result)  # raises where it is not
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    machine = relax.VirtualMachine(tvm.compile(result, target="llvm"), tvm.cpu())
    got = machine["main"](tvm.runtime.tensor(x, tvm.cpu())).numpy()
    np.testing.assert_allclose(got, x**exponent + x, rtol=1e-6)


@pytest.mark.parametrize("exponent", [0.5, -1.0, 1.0, 2.5, 5.0])
def test_other_powers_stay(exponent: float) -> None:
    before = module(exponent)
    assert expand_powers(before) is before
