"""Device data: every shipped file reads, and what names no device is a DeviceError."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tvm_vibegemm import device
from tvm_vibegemm.errors import DeviceError
from tvm_vibegemm.workload import OPERAND_DTYPES


def test_every_shipped_architecture_reads() -> None:
    archs = device.known_archs()
    assert {"sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"} <= set(archs)
    assert archs == sorted(archs, key=lambda arch: int(arch[3:]))
    for arch in archs:
        for model in device.devices_of(arch):
            assert model.arch == arch
            assert model.nvrtc_arch.rstrip("af") == arch
            assert model.smem_per_block <= model.smem_per_sm
            for dtype in set(OPERAND_DTYPES) & set(model.peaks):
                assert model.peak_tflops(dtype) > 0


def test_spellings() -> None:
    for text in ("sm_90", "sm_90a", "SM90", "90", " compute_90a "):
        assert device.normalize_arch(text) == "sm_90"
    for text in ("", "hopper", "sm_9", "sm_90b", "sm_９０", "../sm_90", "sm_90\nx"):
        with pytest.raises(DeviceError):
            device.normalize_arch(text)


def test_lookup() -> None:
    assert device.device_for("sm_90a", "NVIDIA H200").name == "NVIDIA H200"
    assert device.device_for("sm_90", "unheard of") == device.devices_of("sm_90")[0]
    with pytest.raises(DeviceError, match=r"sm_75.*known: .*sm_90"):
        device.device_for("sm_75")
    with pytest.raises(DeviceError, match="no peak rate"):
        device.device_for("sm_80").peak_tflops("f8e4m3")


def test_fp32_peak_counts_three_tf32_products() -> None:
    model = device.device_for("sm_90")
    assert model.peak_tflops("f32") == max(model.peaks["f32"], model.peaks["tf32"] / 3)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", json.dumps({"common": [], "models": [{}]}),
     json.dumps({"common": {}, "models": [{"name": "x"}]}), "\xff"],
)  # fmt: skip
def test_malformed_data(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "devices").mkdir()
    (tmp_path / "devices" / "sm_77.json").write_text(text, encoding="latin-1")
    monkeypatch.setattr(device, "codegen_dir", lambda: tmp_path)
    with pytest.raises(DeviceError, match="malformed"):
        device.devices_of("sm_77")
