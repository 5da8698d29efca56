"""Finds what compiling needs: NVRTC, CUDA headers, the driver or a stand-in, the C++ compiler.

Everything comes from wheels; a CUDA toolkit on the machine is neither needed nor looked for.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .config import settings
from .errors import ToolchainError

# What libtvm_runtime_cuda.so takes from the driver. Where there is no driver (a build server),
# functions that answer CUDA_ERROR_NO_DEVICE stand in, so that cubins can be wrapped and exported.
_DRIVER_SYMBOLS = (
    "cuDeviceGetName",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuLaunchKernelEx",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuTensorMapEncodeTiled",
)
_NO_DEVICE = 100


@dataclass(frozen=True)
class Check:
    """One finding of :func:`probe`.

    Parameters
    ----------
    name
        What was looked for.
    ok
        True where it is there.
    detail
        Version or place, or why not.
    consequence
        What its lack means; empty where it is there.
    """

    name: str
    ok: bool
    detail: str
    consequence: str = ""


def _wheel_root() -> Path:
    """Return the folder ``nvidia/cu13`` of the CUDA wheels."""
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or []) if spec else []:
        root = Path(place) / "cu13"
        if (root / "include" / "cuda_fp16.h").is_file():
            return root
    raise ToolchainError(
        "CUDA headers: the wheels nvidia-cuda-runtime, -crt and -cccl 13.0 are missing;"
        " pip install tvm-vibegemm brings them"
    )


@cache
def include_dirs() -> tuple[Path, ...]:
    """Return the CUDA header folders, for NVRTC's include path.

    Those of the wheels; where they are missing, those of the toolkit that ``CUDA_PATH`` names.

    Raises
    ------
    ToolchainError
        When there are neither.
    """
    try:
        root = _wheel_root() / "include"
    except ToolchainError:
        root = Path(os.environ.get("CUDA_PATH", "")) / "include"
        if not (root / "cuda_fp16.h").is_file():
            raise
    return tuple(folder for folder in (root, root / "cccl") if folder.is_dir())


@cache
def nvrtc_version() -> tuple[int, int]:
    """Return NVRTC's version, e.g. ``(13, 0)``.

    Raises
    ------
    ToolchainError
        When NVRTC cannot be loaded.
    """
    try:
        from cuda.bindings import nvrtc

        error, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, OSError) as failure:
        raise ToolchainError(
            f"NVRTC cannot be loaded ({failure}); pip install 'nvidia-cuda-nvrtc==13.0.*'"
        ) from failure
    if int(error) != 0:
        raise ToolchainError(f"NVRTC does not answer ({error.name})")
    return int(major), int(minor)


@cache
def fingerprint() -> str:
    """Return the versions of all that shapes a cubin: NVRTC and the header wheels.

    Raises
    ------
    ToolchainError
        When NVRTC cannot be loaded.
    """
    wheels = ("nvrtc", "runtime", "crt", "cccl")
    versions = [f"{name} {_version(f'nvidia-cuda-{name}')}" for name in wheels]
    headers = [] if "runtime missing" not in versions else [str(include_dirs()[0])]
    return ", ".join([f"NVRTC {'.'.join(map(str, nvrtc_version()))}", *versions, *headers])


@cache
def cuda_home() -> Path:
    """Return a folder laid out like a CUDA toolkit, made of links to the header wheels.

    TVM looks for headers at ``$CUDA_PATH/include`` and for CCCL only at
    ``$CUDA_PATH/targets/x86_64-linux/include/cccl``.
    """
    headers = _wheel_root() / "include"
    home = settings().cubin_cache.parent / f"cuda-home-{_version('nvidia-cuda-runtime')}"
    links = {
        home / "include": headers,
        home / "targets" / "x86_64-linux" / "include": headers,
    }
    try:
        for link, target in links.items():
            link.parent.mkdir(parents=True, exist_ok=True)
            if link.is_symlink() and link.resolve() == target.resolve():
                continue
            temporary = Path(tempfile.mktemp(dir=link.parent, prefix=f".{link.name}-"))
            temporary.symlink_to(target)
            temporary.replace(link)  # atomic: another process sees the old link or the new one
    except OSError as error:
        raise ToolchainError(
            f"CUDA headers: {home} cannot be written ({error});"
            " set VIBEGEMM_CUBIN_CACHE to a folder that can"
        ) from error
    return home


def tvm_environment() -> None:
    """Set what TVM's own kernel compilation needs, where the user has not set it.

    TVM guesses the headers' place from ``which nvcc``, which is wrong where nvcc is a wrapper and
    absent where there is no toolkit.
    """
    given = os.environ.get("CUDA_PATH") or os.environ.get("CUDA_HOME")
    if not given or not (Path(given) / "include" / "cuda_fp16.h").is_file():
        os.environ["CUDA_PATH"] = str(cuda_home())
    ensure_driver()


@cache
def has_driver() -> bool:
    """Return True where a real ``libcuda.so.1`` can be opened."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return hasattr(library, "cuInit")  # our stand-in has none


@cache
def ensure_driver() -> None:
    """Make TVM's CUDA runtime loadable, with a stand-in driver where there is no real one.

    After it the global function ``ffi.Module.create.cuda`` exists.

    Raises
    ------
    ToolchainError
        When there is neither a driver nor a C++ compiler to build the stand-in, or a library of
        TVM's CUDA runtime is missing.
    """
    import tvm_ffi

    if tvm_ffi.get_global_func("ffi.Module.create.cuda", allow_missing=True) is not None:
        return
    import tvm

    runtime = "libcudart.so.13"
    with contextlib.suppress(ToolchainError):
        runtime = str(_wheel_root() / "lib" / runtime)

    library = Path(tvm.__file__).parent / "lib" / "libtvm_runtime_cuda.so"
    try:
        if not has_driver():
            ctypes.CDLL(str(_stub_driver()), ctypes.RTLD_GLOBAL)
        ctypes.CDLL(runtime, ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise ToolchainError(f"TVM's CUDA runtime cannot be loaded ({error})") from error
    if tvm_ffi.get_global_func("ffi.Module.create.cuda", allow_missing=True) is None:
        raise ToolchainError(
            f"{library}: loaded, but cannot make CUDA modules; reinstall apache-tvm"
        )


def _stub_driver() -> Path:
    folder = settings().cubin_cache.parent / "driver-stub-1"
    path = folder / "libcuda.so.1"
    if path.is_file():
        return path
    compiler = cxx_compiler()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        source = Path(work) / "stub.cc"
        source.write_text(
            "".join(
                f'extern "C" int {name}() {{ return {_NO_DEVICE}; }}\n' for name in _DRIVER_SYMBOLS
            )
        )
        built = Path(work) / path.name
        soname = f"-Wl,-soname,{path.name}"
        command = [compiler, "-shared", "-fPIC", soname, "-o", str(built), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise ToolchainError(f"C++ compiler {compiler}: cannot build a shared library ({last})")
        built.replace(path)
    return path


def cxx_compiler() -> str:
    """Return the C++ compiler that exporting a library needs.

    Raises
    ------
    ToolchainError
        When there is none.
    """
    for name in (os.environ.get("CXX"), "g++", "c++", "clang++"):
        if name and (found := shutil.which(name)):
            return found
    raise ToolchainError(
        "C++ compiler: none found (looked for $CXX, g++, c++, clang++);"
        " exporting a library needs one: install g++"
    )


def local_device(index: int = 0) -> tuple[str, str] | None:
    """Return (architecture, name) of a GPU of this machine, or None where there is none.

    Parameters
    ----------
    index
        The device's number.
    """
    if not has_driver():
        return None
    try:
        from cuda.bindings import driver

        def ask(result: tuple[object, ...]) -> object:
            if int(result[0]) != 0:  # type: ignore[call-overload]
                raise RuntimeError(str(result[0]))
            return result[1] if len(result) > 1 else None

        ask(driver.cuInit(0))
        device = ask(driver.cuDeviceGet(index))
        attribute = driver.CUdevice_attribute
        major = ask(
            driver.cuDeviceGetAttribute(
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device
            )
        )
        minor = ask(
            driver.cuDeviceGetAttribute(
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device
            )
        )
        name = ask(driver.cuDeviceGetName(128, device))
    except (ImportError, RuntimeError, OSError):
        return None
    text = name.split(b"\0")[0].decode() if isinstance(name, bytes) else str(name)
    return f"sm_{major}{minor}", text


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def probe() -> list[Check]:
    """Look for everything that compiling and running need; nothing is raised."""

    def attempt(name: str, find: Callable[[], str], consequence: str) -> Check:
        try:
            return Check(name, True, find())
        except ToolchainError as error:
            return Check(name, False, str(error), consequence)

    checks = [
        Check(
            "TVM",
            _version("apache-tvm") != "missing",
            f"apache-tvm {_version('apache-tvm')}, apache-tvm-ffi {_version('apache-tvm-ffi')}",
            "" if _version("apache-tvm") != "missing" else "nothing works without TVM",
        ),
        attempt(
            "NVRTC",
            lambda: ".".join(map(str, nvrtc_version())),
            "no kernel can be compiled",
        ),
        attempt(
            "CUDA headers",
            lambda: str(include_dirs()[0]),
            "no kernel can be compiled",
        ),
        attempt("C++ compiler", cxx_compiler, "no library can be exported"),
        Check(
            "driver",
            has_driver(),
            "libcuda.so.1" if has_driver() else "no libcuda.so.1; a stand-in is used for compiling",
            "" if has_driver() else "compiling works, running and measuring do not",
        ),
    ]
    found = local_device()
    checks.append(
        Check(
            "device",
            found is not None,
            f"{found[1]} ({found[0]})" if found else "no GPU",
            "" if found else "name the architecture (--arch); nothing can be measured here",
        )
    )
    return checks
