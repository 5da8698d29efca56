"""From an ONNX file to an exported library whose matrix products run generated kernels."""

from __future__ import annotations

import contextlib
import io
import os
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..device import Device, device_for
from ..errors import InputError, VibeGEMMError, last_line
from ..rivals.guard import Skipped
from .onnx_load import load_model
from .report import SiteReport

Progress = Callable[[str], None]


@dataclass
class Compiled:
    """What a compilation gave.

    Parameters
    ----------
    device
        What it was compiled for.
    sites
        What became of each matrix product.
    skipped
        Schedule rules of TVM that threw and were passed over.
    seconds
        Duration of each phase.
    library
        Path of the exported library, where one was asked for.
    executable
        What ``relax.VirtualMachine`` runs, where none was.
    """

    device: Device
    sites: list[SiteReport] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    library: Path | None = None
    executable: Any = None


def import_onnx(
    path: str | Path, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> tuple[Any, Any]:
    """Read, simplify and import a model.

    Parameters
    ----------
    path
        An ``.onnx`` file.
    shapes
        Shape of each input that is dynamic in the file.

    Returns
    -------
    tvm.IRModule, onnx.ModelProto
        The Relax module, and the simplified model it was made of.

    Raises
    ------
    InputError
        When the file cannot be read or a shape does not fit; one line.
    """
    from tvm.relax.frontend.onnx import from_onnx

    model = load_model(Path(path), dict(shapes or {}))
    printed = io.StringIO()  # the importer prints which operator it failed at
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
            warnings.simplefilter(
                "ignore"
            )  # of ONNX's checker, about files as exporters write them
            return from_onnx(model, keep_params_in_input=False), model
    except VibeGEMMError:
        raise
    except Exception as error:  # the importer raises what it likes
        found = re.search(r"Error converting operator (\w+)", printed.getvalue())
        where = f" (operator {found[1]})" if found else ""
        raise InputError(
            f"model {path}: TVM cannot import it{where}: {last_line(error)}"
        ) from error


def compile_onnx(
    path: str | Path,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    arch: str = "sm_90",
    output: str | Path | None = None,
    *,
    database: Any = None,
    select: str = "measured",
    fallback: str = "metaschedule",
    offload: bool = True,
    spelling: str | None = None,
    cuda_graph: bool = False,
    progress: Progress = lambda _: None,
) -> Compiled:
    """Compile an ONNX model for a GPU, on a machine that needs none.

    Parameters
    ----------
    path
        An ``.onnx`` file; external data is read from its own folder only.
    shapes
        Shape of each input that is dynamic in the file.
    arch
        Architecture, e.g. ``sm_90``.
    output
        Where the library goes; it appears whole or not at all.
    database, select, fallback
        As of :func:`tvm_vibegemm.VibeGEMMOffload`.
    offload
        False for plain TVM: the same pipeline without our kernels.
    spelling
        Architecture as TVM's own kernels are to be scheduled (``sm_90`` or ``sm_90a``).
    cuda_graph
        True to have TVM capture the model's static parts as CUDA graphs at their first run
        (``relax.backend.use_cuda_graph``), which takes the host out of each later run.
    progress
        Receives one line a phase.

    Returns
    -------
    Compiled
        Library or executable, with the report.

    Raises
    ------
    VibeGEMMError
        One line that names the input, the reason and what to do.
    """
    import tvm

    from ..kernel.module import cuda_target
    from ..toolchain import cxx_compiler, tvm_environment
    from .pipeline import vibegemm_pipeline

    device = device_for(arch)
    result = Compiled(device)
    destination = _writable(Path(output)) if output is not None else None
    if destination is not None:
        cxx_compiler()  # before minutes of work, not after
    tvm_environment()

    clock = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal clock
        now = time.perf_counter()
        result.seconds[name] = round(now - clock, 2)
        clock = now

    progress(f"reading {path}")
    module = import_onnx(path, shapes)[0]  # the model goes: its weights are in the module now
    lap("import")
    progress(f"compiling for {device.arch}")
    target = cuda_target(device, spelling)
    pipeline = vibegemm_pipeline(
        offload=offload,
        target=device.arch,
        database=database,
        select=select,
        fallback=fallback,
        sites=result.sites,
        skipped=result.skipped,
    )
    try:
        with target, _pass_context(cuda_graph):
            executable = tvm.compile(module, target=target, relax_pipeline=pipeline)
    except VibeGEMMError:
        raise
    except Exception as error:  # TVM raises what it likes
        raise InputError(f"model {path}: TVM cannot compile it: {last_line(error)}") from error
    lap("compile")
    if destination is None:
        result.executable = executable
        return result
    progress(f"exporting {destination}")
    _export(executable, destination)
    lap("export")
    result.library = destination
    return result


def _pass_context(cuda_graph: bool) -> Any:
    """Return the caller's pass context, with CUDA graphs switched on where they are asked for."""
    import tvm

    current = tvm.transform.PassContext.current()
    config = dict(current.config)
    if cuda_graph:
        config["relax.backend.use_cuda_graph"] = True
    return tvm.transform.PassContext(
        opt_level=current.opt_level,
        required_pass=list(current.required_pass),
        disabled_pass=list(current.disabled_pass),
        instruments=list(current.instruments),
        config=config,
    )


def _writable(path: Path) -> Path:
    if path.is_dir():
        raise InputError(f"output {path}: is a folder; name a file")
    folder = path.resolve().parent
    if not folder.is_dir():
        raise InputError(f"output {path}: the folder {folder} does not exist")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"output {path}: cannot be written ({error.strerror})") from error
    return path


def _export(executable: Any, path: Path) -> None:
    """Export next to the destination and rename, so that nobody sees half a library."""
    with tempfile.TemporaryDirectory(dir=path.resolve().parent, prefix=".vibegemm-") as folder:
        built = Path(folder) / f"library{path.suffix or '.so'}"
        try:
            executable.export_library(str(built))
            os.replace(built, path)
        except OSError as error:
            raise InputError(f"output {path}: cannot be written ({error.strerror})") from error
        except Exception as error:
            raise InputError(f"output {path}: export failed: {last_line(error)}") from error
