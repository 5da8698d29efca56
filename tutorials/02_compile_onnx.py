"""Lesson 2: an ONNX model to a library, and what became of each of its products.

The same as ``vibegemm compile model.onnx --shape x:4,32,128 --arch sm_90 -o model.so``, from
Python. The model is a small Transformer encoder, made here.
"""

import tempfile
from pathlib import Path

import onnx

from tvm_vibegemm import compile_onnx
from tvm_vibegemm.bench.models import EncoderShape, encoder
from tvm_vibegemm.toolchain import local_device

# %% A model file. Any exporter's will do; inputs that are dynamic in it need a shape below.
folder = tempfile.TemporaryDirectory()
model = Path(folder.name) / "encoder.onnx"
sizes = EncoderShape(layers=1, batch=4, sequence=32, hidden=128, heads=2, feed_forward=256)
onnx.save(encoder("float32", sizes), str(model))

# %% Compile it for Hopper; no GPU is needed. The library appears whole or not at all.
library = Path(folder.name) / "encoder.so"
shapes = {"x": (4, 32, 128)}
compiled = compile_onnx(model, shapes, "sm_90", library, select="valid", progress=print)

# %% One entry for each matrix product: its workload (types, layout, sizes, what follows it) and
# the decision with its reason.
for site in compiled.sites:
    print(f"{site.name}: {site.workload}")
    expected = "not measured" if site.expected_us is None else f"{site.expected_us:.1f} µs"
    print(f"  {site.decision}: {site.reason}; expected time: {expected}")
for skip in compiled.skipped:
    print(f"TVM's rule {skip.rule} threw on {skip.function}: {skip.error}")
print(f"{library.name}: {library.stat().st_size} bytes; seconds: {compiled.seconds}")

# %% Plain TVM is the same pipeline without the kernels: the one to compare with.
plain = compile_onnx(model, shapes, "sm_90", offload=False)
assert not plain.sites

# %% On a machine with a Hopper GPU, run it on random inputs beside ONNX Runtime.
found = local_device()
if found is not None and found[0] == "sm_90":
    from tvm_vibegemm.graph.onnx_check import check_model

    print(check_model(model, shapes, compiled))
else:
    print("no Hopper GPU here: compiled only")
folder.cleanup()
