"""A plan evaluated into numbers: as by hand, and as the host function of TVM has it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tvm_vibegemm.device import Device, device_for
from tvm_vibegemm.errors import InputError, PlanError
from tvm_vibegemm.judge.concrete import concrete_launches
from tvm_vibegemm.kernel import launch
from tvm_vibegemm.kernel.build import Binary, full_source
from tvm_vibegemm.kernel.kernel import Kernel
from tvm_vibegemm.kernel.plan import Plan
from tvm_vibegemm.resources import schedules_dir
from tvm_vibegemm.rivals.reference import operand_shapes
from tvm_vibegemm.workload import BatchMap, EpilogueOp, Workload

DEVICE = device_for("sm_90")
KERNELS = sorted((schedules_dir() / "sm_90" / "kernels").glob("*.cu"))
TYPES = {6: "float16", 7: "float32", 9: "bfloat16", 0: "uint8", 3: "int32"}
EPILOGUE = (EpilogueOp("bias", "f16"), EpilogueOp("relu"), EpilogueOp("residual", "f32"))


def shipped(name: str) -> Kernel:
    return Kernel.load(schedules_dir() / "sm_90" / "kernels" / f"{name}.cu")


def sizes(described: Mapping[str, Any]) -> dict[str, int]:
    return {buffer["name"]: buffer["bytes"] for buffer in described["buffers"]}


def test_general_mma() -> None:
    workload = Workload(70, 130, 40, trans_b=True, batch=3, epilogue=EPILOGUE)
    described = concrete_launches(shipped("general_mma_16bit"), workload, DEVICE, {"BM": 32})
    assert sizes(described) == {
        "A": 3 * 70 * 40 * 2,
        "B": 3 * 130 * 40 * 2,
        "E0": 130 * 2,
        "E1": 3 * 70 * 130 * 4,
        "D": 3 * 70 * 130 * 2,
    }
    assert [b["fill"] for b in described["buffers"]] == ["values"] * 4 + ["none"]
    (only,) = described["launches"]
    assert only["grid"] == [3 * 3 * 3, 1, 1]  # ceil(70/32) · ceil(130/64) · batch
    assert only["block"] == [128, 1, 1] and only["cluster"] == [1, 1, 1]
    assert only["shared_bytes"] == 3 * 2 * (32 * 40 + 64 * 40)
    assert only["args"] == [
        *({"pointer": i, "offset": 0} for i in (0, 1, 4)),
        *({"int32": i} for i in (70, 130, 40)),
        *({"pointer": i, "offset": 0} for i in (2, 3)),
    ]
    assert described["entries"] == {only["entry"]: "gemm_mma"}


def test_general_simt() -> None:
    workload = Workload(65, 64, 17, "f32", "f32", out="f32", trans_a=True)
    described = concrete_launches(shipped("general_simt_f32"), workload, DEVICE)
    (only,) = described["launches"]
    assert sizes(described) == {"A": 65 * 17 * 4, "B": 64 * 17 * 4, "D": 65 * 64 * 4}
    assert (only["grid"], only["block"]) == ([2, 1, 1], [256, 1, 1])
    assert only["shared_bytes"] == 3 * 4 * (16 * 68 + 16 * 68)


def test_three_tf32() -> None:
    workload = Workload(300, 300, 33, "f32", "f32", out="f32", trans_b=True)
    (only,) = concrete_launches(shipped("sm90_3xtf32_f32"), workload, DEVICE)["launches"]
    assert (only["grid"], only["block"]) == ([3 * 2, 1, 1], [384, 1, 1])
    assert only["shared_bytes"] == 197888
    assert [next(iter(arg)) for arg in only["args"]] == ["pointer"] * 3 + ["int32"] * 3


def test_wgmma_maps() -> None:
    workload = Workload(200, 264, 72, batch=4, a_batch=BatchMap(1, 1), trans_b=True)
    described = concrete_launches(
        shipped("sm90_wgmma_16bit"), workload, DEVICE, {"BN": 256, "CLUSTER": 2, "STAGES": 3}
    )
    (only,) = described["launches"]
    assert sizes(described)["A"] == 200 * 72 * 2  # shared by all products
    assert only["cluster"] == [2, 1, 1]
    assert only["grid"] == [2 * min(132 // 2, 1 * 2 * 4), 1, 1]
    assert only["shared_bytes"] == 1024 + 3 * (16384 + 256 * 128) + 2 * 256 * 128 + 256
    a, b, d = (arg["tensor_map"] for arg in only["args"][:3])
    common = {"offset": 0, "data_type": 6, "swizzle": 3}
    assert a == common | {
        "buffer": 0,
        "dims": [72, 200, 1],
        "strides": [144, 28800],
        "box": [64, 128, 1],
        "l2": 3,
    }
    assert b == common | {
        "buffer": 1,
        "dims": [72, 264, 4],
        "strides": [144, 38016],
        "box": [64, 128, 1],
        "l2": 3,
    }
    assert d == common | {
        "buffer": 2,
        "dims": [264, 200, 4],
        "strides": [528, 105600],
        "box": [64, 64, 1],
        "l2": 2,
    }
    assert only["args"][3:] == [
        {"pointer": 2, "offset": 0},
        *({"int32": i} for i in (200, 264, 72, 4)),
    ]


def test_small_m() -> None:
    workload = Workload(5, 256, 128, "bf16", "bf16", out="f32")
    (only,) = concrete_launches(shipped("small_m_16bit"), workload, DEVICE, {"BM": 8})["launches"]
    # Two tiles in N; four times two blocks fit 132 multiprocessors, so K is split in four.
    assert (only["grid"], only["cluster"], only["block"]) == ([8, 1, 1], [4, 1, 1], [160, 1, 1])
    stage = (8 + 128) * 64 * 2
    assert only["shared_bytes"] == min(32, (233472 // 2 - 2560) // stage) * stage + 1536
    a, b = (arg["tensor_map"] for arg in only["args"][:2])
    assert (a["dims"], a["strides"], a["box"]) == ([128, 5], [256], [64, 8])
    assert (b["dims"], b["strides"], b["box"]) == ([256, 128], [512], [64, 64])
    assert a["data_type"] == b["data_type"] == 9
    assert only["args"][-1] == {"int32": 4}


# -- beside the host function ----------------------------------------------------------------------


def unbuilt(
    kernel: Kernel, workload: Workload, device: Device, tunables: Mapping[str, int]
) -> Binary:
    return Binary("unbuilt", b"", *full_source(kernel, workload, device, tunables))


def calls(function: Any) -> list[list[str]]:
    """Return the packed calls of a host function, each as its arguments' texts."""
    text = re.sub(r"T\.int64\((-?\d+)\)", r"\1", str(function))
    text = re.sub(r"T\.address_of\((\w+)\[(\d+)\]\)", r"\1@\2", text).replace(".data", "@0")
    found = re.findall(r"T\.call_packed\((.*)\)$", text, re.MULTILINE)
    return [[part.strip().strip('"') for part in call.split(", ")] for call in found]


def as_calls(described: Mapping[str, Any]) -> list[list[str]]:
    """Write a description as the calls that the host function has."""
    names = [buffer["name"] for buffer in described["buffers"]]
    made: list[list[Any]] = []
    maps = 0
    for item in described["launches"]:
        args: list[Any] = []
        for arg in item["args"]:
            match arg:
                case {"pointer": index, "offset": offset}:
                    args.append(f"{names[index]}@{offset}")
                case {"tensor_map": one}:
                    name = "tensor_map" + (f"_{maps}" if maps else "")
                    maps += 1
                    args.append(name)
                    rank = len(one["dims"])
                    kind, tf32 = one["data_type"], one["data_type"] == 11
                    made.append(
                        [
                            "runtime.cuTensorMapEncodeTiled",
                            name,
                            "float32" if tf32 else TYPES[kind],
                            rank,
                            f"{names[one['buffer']]}@{one['offset']}",
                            *one["dims"],
                            *one["strides"],
                            *one["box"],
                            *[1] * rank,
                            *(0, one["swizzle"], one["l2"], 0, 11 if tf32 else -1),
                        ]
                    )
                case _:
                    args += arg.values()
        cluster = [] if item["cluster"] == [1, 1, 1] else item["cluster"]
        tail = [1] * item["cooperative"] + [item["shared_bytes"]]
        made.append([item["entry"], *args, *item["grid"], *item["block"], *cluster, *tail])
    return [[str(part) for part in call] for call in made]


def both(
    kernel: Kernel,
    workload: Workload,
    tunables: Mapping[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[list[list[str]], list[list[str]]]:
    monkeypatch.setattr(launch, "build", unbuilt)
    branch = launch.Branch(kernel, tunables)
    *inputs, output = operand_shapes(workload)
    outputs: list[Any] = [output]
    if size := launch.workspace_bytes(workload, DEVICE, [branch]):
        outputs.append(((size,), "uint8"))
    host = launch.host_function("f", workload, DEVICE, [branch], inputs, outputs)
    described = concrete_launches(kernel, workload, DEVICE, tunables)
    return calls(host.function), as_calls(described)


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
@pytest.mark.parametrize("epilogue", [(), EPILOGUE], ids=["plain", "epilogue"])
def test_same_as_the_host_function(
    path: Path, epilogue: tuple[EpilogueOp, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel.load(path)
    types = kernel.plan.types[-1]
    batch = 3 if kernel.plan.batched else 1
    for layout in kernel.plan.layouts:
        workload = Workload(
            *(33, 264, 136),
            *(types.a, types.b, types.acc, types.out[-1]),
            trans_a=layout[0] == "t",
            trans_b=layout[1] == "t",
            batch=batch,
            epilogue=epilogue,
        )
        tunables = {"CLUSTER": 2} if "CLUSTER" in kernel.plan.tunables else {}
        want, got = both(kernel, workload, tunables, monkeypatch)
        assert got == want and len(got) >= 1


def plan(**fields: Any) -> Kernel:
    """Return a kernel of two launches over a workspace, with every sort of argument."""
    data: dict[str, Any] = {
        "name": "split",
        "arch": ["sm_90"],
        "types": [{"a": "f32", "b": "f32", "acc": "f32", "out": ["f32"]}],
        "layouts": ["nn"],
        "epilogue": False,
        "workspace_bytes": "1024 + 2 * M * N * 4",
        "launches": [
            {
                "entry": "first",
                "grid": ["M", 2, 1],
                "block": [64, 1, 2],
                "cooperative": True,
                "params": [
                    {"tensor_map": "A", "box": [32, 8], "as_tf32": True, "l2": "none"},
                    {
                        "tensor_map": "workspace",
                        "box": [16, 16],
                        "offset": 1024,
                        "rows": "2 * M",
                        "cols": "N",
                        "dtype": "f32",
                    },
                    {"pointer": "workspace", "offset": "1024 + M * N * 4"},
                    {"int64": "M * N * K"},
                ],
            },
            {
                "entry": "never",
                "grid": [1, 1, 1],
                "block": [32, 1, 1],
                "when": "K > 4096",
                "params": [],
            },
            {
                "entry": "second",
                "grid": [1, 1, 1],
                "block": [32, 1, 1],
                "when": "M",
                "params": [{"pointer": "D"}],
            },
        ],
    }
    source = "\n".join(
        f'extern "C" __global__ void {name}() {{}}' for name in ("first", "never", "second")
    )
    return Kernel(source, Plan.load(json.dumps(data | fields)))


WORKLOAD = Workload(16, 32, 64, "f32", "f32", out="f32")


def test_workspace_conditions_and_cooperative(monkeypatch: pytest.MonkeyPatch) -> None:
    want, got = both(plan(), WORKLOAD, {}, monkeypatch)
    assert got == want
    described = concrete_launches(plan(), WORKLOAD, DEVICE)
    assert described["buffers"][-1] == {
        "name": "workspace",
        "dtype": "u8",
        "bytes": 1024 + 2 * 16 * 32 * 4,
        "fill": "none",
    }
    assert [described["entries"][x["entry"]] for x in described["launches"]] == ["first", "second"]
    assert described["launches"][0]["cooperative"] is True


def test_zeroed_workspace() -> None:
    described = concrete_launches(plan(workspace_zero=True), WORKLOAD, DEVICE)
    assert described["buffers"][-1]["fill"] == "zero"


def test_what_cannot_be_launched() -> None:
    with pytest.raises(InputError, match="M is dynamic"):
        concrete_launches(plan(), Workload(None, 32, 64, "f32", "f32", out="f32"), DEVICE)
    with pytest.raises(InputError, match="no element"):
        concrete_launches(plan(), Workload(0, 32, 64, "f32", "f32", out="f32"), DEVICE)
    with pytest.raises(PlanError, match="layout nt"):
        concrete_launches(
            plan(), Workload(16, 32, 64, "f32", "f32", out="f32", trans_b=True), DEVICE
        )
    with pytest.raises(PlanError, match="ends at byte 5120 of 4096"):
        concrete_launches(plan(workspace_bytes=4096), WORKLOAD, DEVICE)
