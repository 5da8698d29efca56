"""Lesson 1: a Relax program through the pipeline ``vibegemm``.

TVM has the pass and the pipeline as soon as this package is installed: nothing of ours has to be
imported to compile. The program is compiled for Hopper, on a machine with or without a GPU; it
runs where there is one of that kind.
"""

import tempfile
from pathlib import Path

import numpy as np
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

# %% A program: gelu(x·w + b), as a layer of a model has it.


@I.ir_module
class Layer:
    """One layer in float16."""

    @R.function
    def main(  # noqa: D102
        x: R.Tensor((4096, 4096), "float16"),
        w: R.Tensor((4096, 4096), "float16"),
        b: R.Tensor((4096,), "float16"),
    ) -> R.Tensor((4096, 4096), "float16"):
        with R.dataflow():
            product = R.matmul(x, w, out_dtype="float16")
            shifted = R.add(product, b)
            result = R.nn.gelu(shifted)
            R.output(result)
        return result


# %% The pass alone shows what becomes of each product. ``select="valid"`` takes the best kernel
# that fits, whether or not it was measured at this very shape; the default, ``"measured"``, takes
# only one that beat TVM's own schedule there.
from tvm_vibegemm.graph import read_report  # noqa: E402  (only the report needs our package)

offload = tvm.relax.transform.VibeGEMMOffload(target="sm_90", select="valid")
offloaded = offload(Layer)
for site in read_report(offloaded):
    print(f"{site.name}: {site.workload}")
    print(f"  {site.decision}: {site.reason}")

# %% Product, bias and gelu are one call now, of a function that ``relax.ext.vibegemm`` will build.
print(offloaded["main"].script(show_meta=False))

# %% The pipeline does it all: the pass, the code generator, and TVM's own passes for the rest.
target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
pipeline = relax.get_pipeline("vibegemm", select="valid")
with target:
    executable = tvm.compile(Layer, target, relax_pipeline=pipeline)

with tempfile.TemporaryDirectory() as folder:
    library = Path(folder) / "layer.so"
    executable.export_library(str(library))
    print(f"library: {library.stat().st_size} bytes, kernels inside as machine code")

    # %% Run it, where there is a GPU.
    device = tvm.cuda(0)
    if device.exist and device.compute_version == "9.0":
        random = np.random.default_rng(0)
        shapes = ((4096, 4096), (4096, 4096), (4096,))
        arrays = [random.standard_normal(shape).astype("float16") / 8 for shape in shapes]
        machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), device)
        got = machine["main"](*[tvm.runtime.tensor(array, device) for array in arrays])
        print(f"ran: first value {got.numpy()[0, 0]}")
    else:
        print("no Hopper GPU here: compiled only")
