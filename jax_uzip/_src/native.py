"""Loads the native module, registers its FFI targets, and answers questions about the wire format.

No number of the format is written down in Python: whatever depends on it asks here. The functions
on NumPy arrays run on the host without JAX.
"""

import functools
from typing import Any

import jax
import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

try:
    from jax_uzip import _uzip_cpu
except ImportError as error:
    raise ImportError(
        f"jax_uzip's native module could not be loaded ({error}). In a checkout, compile it with "
        "`make dev`; elsewhere, install the package with `pip install .` and import it from "
        "outside the checkout, whose own jax_uzip/ folder has no native module."
    ) from error

COMPACT = 0
"""Layout in which blocks follow each other without gaps: the fewest bytes."""

SLOTTED = 1
"""Layout in which every block has a slot of a fixed size: positions are known without reading."""

FORMAT_VERSION: int = _uzip_cpu.format_version()
"""Version of the wire format that this build writes and reads."""

PLATFORMS = ("cpu",)
"""Platforms of XLA that the native targets are registered for."""

_PARTS = {np.dtype(np.complex64): np.float32, np.dtype(np.complex128): np.float64}


def isa() -> str:
    """The instruction set that the codec runs with on this CPU."""
    return _uzip_cpu.isa()


def register_targets() -> None:
    """Tells JAX of the native FFI targets; registering them again is harmless."""
    for name, capsule in _uzip_cpu.targets().items():
        for platform in PLATFORMS:
            jax.ffi.register_ffi_target(name, capsule, platform=platform)


@functools.cache
def _codes() -> dict[np.dtype[Any], int]:
    codes = {
        np.dtype(getattr(ml_dtypes, name, name)): code
        for name, code in _uzip_cpu.dtype_codes().items()
    }
    return codes | {pair: codes[np.dtype(part)] for pair, part in _PARTS.items()}


def dtypes() -> dict[np.dtype[Any], int]:
    """Returns the dtypes that the codec knows, each with its number on the wire.

    A complex dtype travels as pairs of its part's dtype and has that dtype's number.

    >>> import numpy as np
    >>> np.dtype("float32") in dtypes(), np.dtype("int32") in dtypes()
    (True, False)
    """
    return dict(_codes())


def wire_code(dtype: DTypeLike) -> int:
    """Returns the number of `dtype` on the wire; raises TypeError for a dtype without one."""
    try:
        return _codes()[np.dtype(dtype)]
    except (KeyError, TypeError):  # TypeError: one of JAX's own, which NumPy does not know
        known = ", ".join(sorted(d.name for d in _codes()))
        hint = ""
        if isinstance(dtype, np.dtype) and not dtype.isnative:
            hint = ' (bring its bytes into native order: x.astype(x.dtype.newbyteorder("=")))'
        raise TypeError(f"jax_uzip cannot encode dtype {dtype}{hint}; it encodes {known}") from None


def values_per_item(dtype: DTypeLike) -> int:
    """Returns how many values of the wire's dtype make one item: 2 for complex, else 1."""
    return 2 if np.dtype(dtype) in _PARTS else 1


def payload_capacity(n: int, dtype: DTypeLike, layout: int = COMPACT) -> int:
    """Returns the most bytes that `n` items of `dtype` can take when encoded."""
    return _uzip_cpu.capacity(n * values_per_item(dtype), wire_code(dtype), layout)


def encode_host(x: NDArray[Any], layout: int = COMPACT) -> NDArray[np.uint8]:
    """Encodes a NumPy array; the payload has exactly the bytes that it needs.

    >>> import numpy as np
    >>> x = np.zeros(4096, np.float32)
    >>> encode_host(x).size < x.nbytes // 20
    True
    """
    code = wire_code(x.dtype)
    raw = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
    return _uzip_cpu.encode(raw, code, x.size * values_per_item(x.dtype), layout)


def decode_host(payload: NDArray[np.uint8], n: int, dtype: DTypeLike) -> NDArray[Any]:
    """Decodes a payload into a flat NumPy array of `n` items.

    Raises:
        ValueError: The payload is malformed, or is not one of `n` items of `dtype`.

    >>> import numpy as np
    >>> x = np.arange(5, dtype=np.float32)
    >>> decode_host(encode_host(x), 5, x.dtype)
    array([0., 1., 2., 3., 4.], dtype=float32)
    """
    dtype = np.dtype(dtype)
    payload = np.ascontiguousarray(payload).reshape(-1).view(np.uint8)
    return _uzip_cpu.decode(payload, wire_code(dtype), n * values_per_item(dtype)).view(dtype)


register_targets()
