"""What a GPU can do, read from the data files ``codegen/devices/sm_XX.json``.

A new chip is a new file: no code names an architecture.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from .errors import DeviceError
from .resources import codegen_dir


@dataclass(frozen=True)
class Device:
    """One GPU model of one architecture.

    Parameters
    ----------
    name
        As the driver says it, e.g. ``NVIDIA H200``.
    arch
        Database key of the architecture, e.g. ``sm_90`` (``sm_90a`` is the same key).
    nvrtc_arch
        What the kernels are built for, e.g. ``sm_90a``.
    num_sms
        Streaming multiprocessors.
    smem_per_block, smem_per_sm
        Shared memory in bytes: most that one block may have, and all of one multiprocessor.
    regs_per_sm
        32-bit registers of one multiprocessor.
    l2_bytes
        Size of the L2 cache in bytes.
    dram_gbps
        Reachable memory bandwidth in GB/s, read plus write.
    peaks
        Peak dense rates in TFLOP/s (TOP/s for integers) by canonical operand type.
    features
        Names of the architecture's abilities, e.g. ``wgmma``, ``tma``, ``cluster``.
    measured
        True where the figures were measured; False where they are the vendor's.
    """

    name: str
    arch: str
    nvrtc_arch: str
    num_sms: int
    smem_per_block: int
    smem_per_sm: int
    regs_per_sm: int
    l2_bytes: int
    dram_gbps: float
    peaks: dict[str, float] = field(hash=False)
    features: tuple[str, ...] = ()
    measured: bool = False
    notes: tuple[str, ...] = field(default=(), compare=False)

    def peak_tflops(self, dtype: str) -> float:
        """Return the peak rate for an operand type, in TFLOP/s.

        fp32-class results can also be had from three TF32 products, so ``f32`` is the larger of
        the CUDA cores' rate and a third of the TF32 rate.
        """
        if dtype not in self.peaks:
            raise DeviceError(f"device {self.name}: no peak rate for {dtype!r} in {self.arch}.json")
        if dtype == "f32":
            return max(self.peaks["f32"], self.peaks.get("tf32", 0.0) / 3)
        return self.peaks[dtype]

    def has(self, feature: str) -> bool:
        """Return True where the architecture has the named ability."""
        return feature in self.features


def normalize_arch(arch: str) -> str:
    """Return the database key of an architecture: ``sm_90a`` and ``90`` give ``sm_90``.

    Raises
    ------
    DeviceError
        When the text names no architecture.
    """
    match = re.fullmatch(r"(?:sm_?|compute_)?([0-9]{2,3})[af]?", arch.strip().lower())
    if match is None:
        raise DeviceError(f"arch {arch!r}: not an SM version; known: {', '.join(known_archs())}")
    return f"sm_{match.group(1)}"


def known_archs() -> list[str]:
    """Return the architectures that have a data file, oldest first."""
    found = [path.stem for path in (codegen_dir() / "devices").glob("sm_*.json")]
    found = [arch for arch in found if arch[3:].isdecimal()]
    return sorted(found, key=lambda arch: int(arch[3:]))


@cache
def devices_of(arch: str) -> tuple[Device, ...]:
    """Return the known models of an architecture, the default one first.

    Raises
    ------
    DeviceError
        When there is no data file for it, or the file is malformed.
    """
    key = normalize_arch(arch)
    path = codegen_dir() / "devices" / f"{key}.json"
    if not path.is_file():
        raise DeviceError(f"arch {arch!r} is unknown; known: {', '.join(known_archs())}")
    try:
        data: dict[str, Any] = json.loads(path.read_text())
        common = data["common"]
        return tuple(
            Device(
                arch=key,
                **{
                    **common,
                    **model,
                    "features": tuple(common.get("features", ())),
                    "notes": tuple(common.get("notes", ())) + tuple(model.get("notes", ())),
                },
            )
            for model in data["models"]
        )
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise DeviceError(f"{path}: malformed device data ({error})") from error


def device_for(arch: str, name: str | None = None) -> Device:
    """Return a model of an architecture by its name, or the default one.

    Parameters
    ----------
    arch
        E.g. ``sm_90`` or ``sm_90a``.
    name
        As the driver says it; a name that is not in the data file gives the default model.

    Raises
    ------
    DeviceError
        When the architecture has no data file.
    """
    models = devices_of(arch)
    return next((model for model in models if model.name == name), models[0])
