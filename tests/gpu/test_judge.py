"""The judge on the GPU: its own arithmetic, every exploit, and honest kernels that must pass."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tvm

from tests.exploits.catalogue import CONTROLS, EXPLOITS, SHORTCUTS, Control, Exploit, Shortcut
from tvm_vibegemm.device import device_for
from tvm_vibegemm.judge.arena import fill_inputs
from tvm_vibegemm.judge.candidate import Candidate
from tvm_vibegemm.judge.inputs import RECIPES, magnitude, numpy_dtype, operands, truth
from tvm_vibegemm.judge.numerics import stats_of
from tvm_vibegemm.judge.session import Session
from tvm_vibegemm.judge.trusted import Memory, Trusted, storage
from tvm_vibegemm.judge.worker import Worker
from tvm_vibegemm.kernel.kernel import Kernel
from tvm_vibegemm.rivals.reference import operand_shapes
from tvm_vibegemm.toolchain import local_device
from tvm_vibegemm.workload import Workload

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def trusted() -> Trusted:
    found = local_device()
    assert found is not None
    return Trusted(device_for(*found), tvm.cuda(0))


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Worker(0) as worker:
        yield Session(worker, tmp_path_factory.mktemp("references"), check_s=8.0, time_s=30.0)


PRODUCTS = [
    "vg1:f16.f16.f32.f16:nn:x1:m77:n130:k200:bias(f16)+gelu_erf",
    "vg1:bf16.bf16.f32.f32:tt:x6(a1/3,b2/3):m33:n65:k100:residual(f32)+silu",
    "vg1:f32.f32.f32.f32:nt:x1:m129:n127:k1000:scale+relu",
    "vg1:tf32.tf32.f32.f32:tn:x2:m64:n64:k64:gelu_tanh",
    "vg1:s8.s8.s32.s32:nt:x1:m40:n50:k60:-",
    "vg1:f8e4m3.f8e5m2.f32.bf16:nt:x1:m48:n40:k96:bias(bf16)",
    "vg1:f16.f16.f32.f16:nn:x1:m5:n9:k0:bias(f16)",
]


@pytest.mark.parametrize("key", PRODUCTS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_product_and_counts_agree_with_numpy(key: str, recipe: str, trusted: Trusted) -> None:
    workload = Workload.parse(key)
    layout = operands(workload)
    memories = [Memory(x.bytes + 4, trusted.dev) for x in layout[:-1]]
    addresses = [memory.address for memory in memories]
    fill_inputs(trusted, workload, addresses, recipe, 11)
    trusted.sync()
    arrays = [
        memory.view(shape, "uint8", 0).numpy().view(numpy_dtype(dtype)).reshape(real)
        for memory, x, (real, dtype) in zip(
            memories, layout, operand_shapes(workload)[:-1], strict=False
        )
        for shape in [[x.bytes]]
    ]
    with np.errstate(all="ignore"):
        want, size = truth(workload, arrays), magnitude(workload, arrays)
    made = trusted.product(workload, trusted.problem(workload, addresses))
    trusted.sync()
    got = made.want.view([layout[-1].size], "float64", 0).numpy().reshape(want.shape)
    np.testing.assert_allclose(
        got,
        want,
        rtol=1e-9,
        atol=1e-9 * max(np.nanmax(np.where(np.isfinite(size), size, 0)), 1e-300),
    )
    # An output with a few faults is counted as NumPy counts it.
    out = np.asarray(want).reshape(-1)
    dtype = numpy_dtype(storage(workload.out))
    with np.errstate(all="ignore"):
        low, high = (
            (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.kind == "i" else (-np.inf, np.inf)
        )
        output = np.clip(out, low, high).astype(dtype)
        output[3] = dtype.type(1) if dtype.kind == "i" else np.nan
        output[7] = output[7] + dtype.type(2)
    place = Memory(layout[-1].bytes + 4, trusted.dev)
    place.view([layout[-1].bytes], "uint8", 0).copyfrom(output.view(np.uint8).copy())
    found = trusted.stats(trusted.compare(workload, recipe, place.address, made, 0x01020304))
    expected = stats_of(workload, recipe, output, want, size)
    assert found.not_finite == expected.not_finite
    assert found.compared == expected.compared
    assert abs(found.inexact - expected.inexact) <= 1 + out.size // 500
    assert found.rms == pytest.approx(expected.rms, rel=1e-4)
    assert found.max_error == pytest.approx(expected.max_error, rel=1e-4)


def entry(path: Path) -> dict[str, object]:
    kernel = Kernel.load(path)
    return {**Candidate(kernel, kernel.plan.defaults()).as_job(), "kernel": kernel.hash}


def verdict(session: Session, path: Path, workload: str) -> tuple[str, str, float | None]:
    """Judge a kernel with enough timed passes to see what changes after a while."""
    found = session.judge(
        Workload.parse(workload), [entry(path)], rounds=15, against_reference=False
    )
    return found[-1].verdict, str(found[-1].evidence.get("detail", "")), found[-1].median_us


@pytest.mark.parametrize("exploit", [e for e in EXPLOITS if e.stage == "run"], ids=lambda e: e.name)
def test_exploit_is_refused(exploit: Exploit, session: Session) -> None:
    got, detail, _ = verdict(session, exploit.path, exploit.workload)
    assert got in (exploit.reason, *exploit.also), detail


@pytest.mark.parametrize("control", CONTROLS, ids=lambda c: f"{c.name} {c.workload}")
def test_honest_twin_is_accepted(control: Control, session: Session) -> None:
    got, detail, _ = verdict(session, control.path, control.workload)
    assert got == "accepted", detail


@pytest.mark.parametrize("shortcut", SHORTCUTS, ids=lambda s: s.name)
def test_shortcut_gains_nothing(shortcut: Shortcut, session: Session) -> None:
    got, detail, took = verdict(session, shortcut.path, shortcut.workload)
    if got == "accepted":
        honest = shortcut.path.with_name(f"{shortcut.honest}.cu")
        _, _, real = verdict(session, honest, shortcut.workload)
        assert took is not None and real is not None and took > 0.9 * real, detail
    else:
        assert got == "stateful", detail


def test_the_next_honest_job_passes_after_hostile_ones(session: Session) -> None:
    names = ("illegal_address", "infinite_loop", "trap")
    hostile = {e.name: e for e in EXPLOITS}
    for name in names:
        assert verdict(session, hostile[name].path, hostile[name].workload)[0] != "accepted"
        assert verdict(session, CONTROLS[0].path, CONTROLS[0].workload)[0] == "accepted"
