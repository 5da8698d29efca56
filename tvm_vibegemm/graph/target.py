"""Which device the pass compiles for."""

from __future__ import annotations

from typing import Any

import tvm

from ..device import Device, device_for, devices_of, normalize_arch
from ..errors import DeviceError


def resolve_device(target: Any, mod: Any) -> Device:
    """Return the device: the argument's, the current target's, the module's, or the local GPU.

    Parameters
    ----------
    target
        A ``tvm.target.Target``, what ``Target`` accepts, an arch such as ``sm_90``, a
        :class:`~tvm_vibegemm.device.Device`, or None.
    mod
        The module; its first CUDA vdevice counts where no target is given.

    Returns
    -------
    Device
        ``sm_90`` and ``sm_90a`` give the same one.

    Raises
    ------
    DeviceError
        One line: the target is not CUDA, its arch is unknown, or there is neither target nor GPU.
    """
    if isinstance(target, Device):
        return target
    if target is not None:
        return _of_target(_read(target))
    current = tvm.target.Target.current(allow_none=True)
    if current is not None:
        return _of_target(current)
    targets = [vdevice.target for vdevice in mod.global_infos.get("vdevice", [])]
    cuda = [x for x in targets if x is not None and x.kind.name == "cuda"]
    if cuda:
        return _of_target(cuda[0])
    if targets:
        return _of_target(targets[0])
    # The last resort, so imported late: it opens the driver.
    from ..toolchain import local_device

    local = local_device()
    if local is None:
        raise DeviceError(
            "VibeGEMMOffload: no target is given or current, the module has no vdevice, and there "
            "is no GPU here; pass target='sm_90' or use it within a target"
        )
    return device_for(*local)


def _read(target: Any) -> Any:
    if isinstance(target, tvm.target.Target):
        return target
    if isinstance(target, str):
        try:
            return tvm.target.Target({"kind": "cuda", "arch": normalize_arch(target)})
        except DeviceError:
            pass  # not an arch: a tag, a kind or JSON
    try:
        return tvm.target.Target(target)
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DeviceError(f"target {target!r}: not a target of TVM ({first})") from error


def _of_target(target: Any) -> Device:
    if target.kind.name != "cuda":
        raise DeviceError(
            f"target kind {target.kind.name!r}: VibeGEMM has kernels for CUDA only; "
            "pass a cuda target, e.g. target='sm_90'"
        )
    arch = str(target.attrs["arch"]) if "arch" in target.attrs else ""
    # A tag such as nvidia/nvidia-h100 says the model too.
    words = str(target.tag or "").rpartition("/")[2].lower().split("-")
    named = next(
        (
            model.name
            for model in devices_of(arch)
            if words[-1] and words[-1] in model.name.lower().split()
        ),
        None,
    )
    return device_for(arch, named)
