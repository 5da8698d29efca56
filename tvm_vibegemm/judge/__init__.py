"""Is a kernel right, is it fast: inputs, numerics, timing, verdict."""
