"""Launches kernels from a description, with nothing but the driver: what the sanitizer watches.

A program of its own, run by path: it imports neither TVM (slow under the tool, and its memory
pools hide accesses out of bounds) nor this package. Every buffer is an allocation of its own of
exactly the bytes that it needs; the output is not initialised, so that reads of it are seen.
"""

from __future__ import annotations

import ctypes
import json
import random
import struct
import sys
from pathlib import Path
from typing import Any

EXIT_LAUNCH = 3  # the kernel cannot be loaded or launched, or failed
EXIT_SETUP = 4  # the device cannot be used at all
_SEED = 20_240_601


class Refused(Exception):
    """The driver answered with an error."""

    def __init__(self, stage: str, text: str) -> None:
        super().__init__(text)
        self.stage = stage


def values(dtype: str) -> list[bytes]:
    """Return 256 encodings of small finite values of a type, little-endian.

    Parameters
    ----------
    dtype
        Canonical name, e.g. ``f16``.
    """
    floats = [(i - 128) / 64 for i in range(256)]
    match dtype:
        case "f64" | "f32" | "tf32" | "f16":
            code = {"f64": "<d", "f16": "<e"}.get(dtype, "<f")
            return [struct.pack(code, x) for x in floats]
        case "bf16":  # the upper half of a float32; these values need no rounding
            return [struct.pack("<f", x)[2:] for x in floats]
        case "s32":
            return [struct.pack("<i", i - 128) for i in range(256)]
        case "f8e4m3" | "f8e5m2":  # without the top bit of the exponent: no NaN, no infinity
            return [bytes([i & 0xBF]) for i in range(256)]
        case _:
            return [bytes([i]) for i in range(256)]


def fill(dtype: str, size: int, seed: int) -> bytes:
    """Return ``size`` bytes of random small values of a type."""
    table = values(dtype)
    count = size // len(table[0])
    return b"".join(map(table.__getitem__, random.Random(seed).randbytes(count)))


class Runner:
    """Runs the jobs of one description on one device."""

    def __init__(self, ordinal: int) -> None:
        from cuda.bindings import driver

        self.driver = driver
        self.stage = "setup"
        self.ask(driver.cuInit(0), "cuInit")
        device = self.ask(driver.cuDeviceGet(ordinal), "cuDeviceGet")
        context = self.ask(driver.cuDevicePrimaryCtxRetain(device), "cuDevicePrimaryCtxRetain")
        self.ask(driver.cuCtxSetCurrent(context), "cuCtxSetCurrent")

    def ask(self, result: tuple[Any, ...], call: str) -> Any:
        """Return the value of a driver call, or raise :class:`Refused`."""
        if int(result[0]) != 0:
            raise Refused(self.stage, f"{call}: {result[0].name} (error {int(result[0])})")
        return result[1] if len(result) > 1 else None

    def run(self, job: dict[str, Any]) -> int:
        """Run one job: allocate, fill, launch ``repeats`` times; return the number of launches."""
        driver = self.driver
        self.stage = "setup"
        addresses = []
        for index, buffer in enumerate(job["buffers"]):
            size = buffer["bytes"]
            pointer = self.ask(driver.cuMemAlloc(max(size, 1)), f"cuMemAlloc of {size} bytes")
            addresses.append(int(pointer))
            if buffer["fill"] == "values" and size:
                data = fill(buffer["dtype"], size, _SEED + index)
                self.ask(driver.cuMemcpyHtoD(pointer, data, size), "cuMemcpyHtoD")
        self.stage = "launch"
        image = Path(job["cubin"]).read_bytes()
        module = self.ask(driver.cuModuleLoadData(image), "cuModuleLoadData")
        launches = 0
        for _ in range(job["repeats"]):
            for address, buffer in zip(addresses, job["buffers"], strict=True):
                if buffer["fill"] == "zero" and buffer["bytes"]:
                    self.ask(driver.cuMemsetD8(address, 0, buffer["bytes"]), "cuMemsetD8")
            for launch in job["launches"]:
                self.launch(module, launch, addresses)
                launches += 1
            self.ask(driver.cuCtxSynchronize(), "cuCtxSynchronize")
        # Under the tool a faulty kernel is stopped alone, and the next job still runs.
        self.ask(driver.cuModuleUnload(module), "cuModuleUnload")
        for address in addresses:
            self.ask(driver.cuMemFree(address), "cuMemFree")
        return launches

    def launch(self, module: Any, launch: dict[str, Any], addresses: list[int]) -> None:
        """Launch one entry with its clusters, shared memory and arguments."""
        driver, entry = self.driver, launch["entry"]
        function = self.ask(
            driver.cuModuleGetFunction(module, entry.encode()), f"cuModuleGetFunction of {entry}"
        )
        if launch["shared_bytes"]:
            limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self.ask(
                driver.cuFuncSetAttribute(function, limit, launch["shared_bytes"]),
                f"cuFuncSetAttribute of {launch['shared_bytes']} bytes of shared memory",
            )
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = launch["grid"]
        config.blockDimX, config.blockDimY, config.blockDimZ = launch["block"]
        config.sharedMemBytes = launch["shared_bytes"]
        attributes = []
        kinds = driver.CUlaunchAttributeID
        if launch["cluster"] != [1, 1, 1]:
            attribute = driver.CUlaunchAttribute()
            attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            cluster = attribute.value.clusterDim
            cluster.x, cluster.y, cluster.z = launch["cluster"]
            attributes.append(attribute)
        if launch["cooperative"]:
            attribute = driver.CUlaunchAttribute()
            attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attribute.value.cooperative = 1
            attributes.append(attribute)
        config.attrs, config.numAttrs = attributes, len(attributes)
        held = [self.argument(argument, addresses) for argument in launch["args"]]
        places = (ctypes.c_void_p * max(len(held), 1))(*(place for _, place in held))
        self.ask(
            driver.cuLaunchKernelEx(config, function, ctypes.addressof(places), 0),
            f"cuLaunchKernelEx of {entry}",
        )

    def argument(self, argument: dict[str, Any], addresses: list[int]) -> tuple[Any, int]:
        """Return an argument's value (to be kept alive) and the address where it stands."""
        value: Any
        match argument:
            case {"pointer": index, "offset": offset}:
                value = ctypes.c_uint64(addresses[index] + offset)
            case {"int32": number}:
                value = ctypes.c_int32(number)
            case {"int64": number}:
                value = ctypes.c_int64(number)
            case {"tensor_map": described}:
                value = self.tensor_map(described, addresses)
                return value, int(value.getPtr())
            case _:
                raise Refused(self.stage, f"unknown argument {sorted(argument)}")
        return value, ctypes.addressof(value)

    def tensor_map(self, described: dict[str, Any], addresses: list[int]) -> Any:
        """Encode a tensor map; extents innermost first, strides in bytes without the innermost."""
        driver = self.driver
        rank = len(described["dims"])
        result = driver.cuTensorMapEncodeTiled(
            driver.CUtensorMapDataType(described["data_type"]),
            rank,
            addresses[described["buffer"]] + described["offset"],
            [driver.cuuint64_t(extent) for extent in described["dims"]],
            [driver.cuuint64_t(stride) for stride in described["strides"]],
            [driver.cuuint32_t(extent) for extent in described["box"]],
            [driver.cuuint32_t(1)] * rank,
            driver.CUtensorMapInterleave(0),
            driver.CUtensorMapSwizzle(described["swizzle"]),
            driver.CUtensorMapL2promotion(described["l2"]),
            driver.CUtensorMapFloatOOBfill(0),
        )
        return self.ask(result, f"cuTensorMapEncodeTiled of dims {described['dims']}")


def main(path: str) -> int:
    """Run every job of a description file; print one JSON object; return the exit status."""
    description = json.loads(Path(path).read_text(encoding="utf-8"))
    launches = 0
    stage = "setup"
    try:
        runner = Runner(description["device"])
        for job in description["jobs"]:
            launches += runner.run(job)
    except Refused as error:
        stage, text = error.stage, str(error)
    except (ImportError, RuntimeError, OSError) as error:  # no bindings, or no driver library
        text = " ".join(str(error).split()) or type(error).__name__
    else:
        print(json.dumps({"launches": launches}), flush=True)
        return 0
    print(json.dumps({"launches": launches, "stage": stage, "error": text}), flush=True)
    return EXIT_SETUP if stage == "setup" else EXIT_LAUNCH


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
