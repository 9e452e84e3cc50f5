"""What a user may choose, and the only file that reads environment variables."""

import dataclasses
import functools
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from jax_uzip._src import native

MAX_PACK_BYTES = (1 << 31) - 1
"""A larger message goes to jax.lax whole."""

SHORT_NAMES = {
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "c64": "complex64",
    "c128": "complex128",
    "e3m4": "float8_e3m4",
    "e4m3": "float8_e4m3",
    "e4m3b11fnuz": "float8_e4m3b11fnuz",
    "e4m3fn": "float8_e4m3fn",
    "e4m3fnuz": "float8_e4m3fnuz",
    "e5m2": "float8_e5m2",
    "e5m2fnuz": "float8_e5m2fnuz",
    "e8m0fnu": "float8_e8m0fnu",
}
"""What dtypes may be called as well, wherever a user names one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Which messages are compressed, and the payload sizes that they may travel in.

    Hashable and immutable: options are a static parameter of every collective, and must be the same
    on every process of a program.  Each field has an environment variable (``JAX_UZIP_`` and the
    field's name in capitals), read once, that sets the default of the process; empty means not set.

    Attributes:
      enabled: ``False`` sends everything through ``jax.lax``.
      min_bytes: a message of fewer raw bytes per device goes to ``jax.lax`` untouched.  The default,
        64 KiB, is about where saving a third of the bytes pays for two more kernels and the agreement
        on a size.  0 compresses every message.
      dtypes: the dtypes to compress, as names, long or short (``"bf16"``), or dtype objects; ``None``
        means all that the codec knows (bf16, f16, f32, f64, the fp8 kinds, complex).
      pack_bytes: leaves of one dtype of a pytree are packed together into messages of at most this
        many raw bytes, below 2 GiB; a leaf larger than that travels alone.  0 packs nothing.
      tiers: the payload sizes on offer, as rising fractions of the raw size; raw is always the
        last and is not listed.  ``None`` chooses them by dtype and size (see ``tiers.py``).
      transport: how payloads travel: ``"composed"`` through XLA's own collectives, the only one so far;
        ``"auto"`` takes the best that there is.

    >>> jax_uzip.Options(min_bytes=1 << 20, dtypes=["float32", "bfloat16"]).dtypes
    ('bfloat16', 'float32')
    """

    enabled: bool = True
    min_bytes: int = 64 << 10
    dtypes: tuple[str, ...] | None = None
    pack_bytes: int = 32 << 20
    tiers: tuple[float, ...] | None = None
    transport: str = "auto"

    def __post_init__(self):
        """Checks every field and stores it in its one canonical, hashable form."""
        for name, check in _CHECKS.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))


def default() -> Options:
    """The options of a call that passes none: the environment's, read on first use."""
    return _process_default()


def from_env(environ: Mapping[str, str]) -> Options:
    """Options from the variables of ENVIRONMENT that are set and not empty."""
    _warn_of_unknown(environ)
    chosen = {}
    for variable, (field, parse) in ENVIRONMENT.items():
        text = environ.get(variable, "")
        if not text.strip():
            continue
        try:
            chosen[field] = parse(text)
            Options(**{field: chosen[field]})
        except (ValueError, TypeError) as e:
            raise ValueError(f"environment variable {variable}={text!r}: {e}") from e
    return Options(**chosen)


@functools.cache
def _process_default() -> Options:
    return from_env(os.environ)


def flag_from_env(environ: Mapping[str, str]) -> bool:
    """Whether the drop-in flag is on from the start."""
    text = environ.get(FLAG, "")
    try:
        return bool(text.strip()) and _parse_flag(text)
    except ValueError as e:
        raise ValueError(f"environment variable {FLAG}={text!r}: {e}") from e


def sources(environ: Mapping[str, str]) -> dict[str, str]:
    """Where each field of `default` has its value from: ``default`` or the variable that is set."""
    set_by = {
        field: variable
        for variable, (field, _) in ENVIRONMENT.items()
        if environ.get(variable, "").strip()
    }
    return {f.name: set_by.get(f.name, "default") for f in dataclasses.fields(Options)}


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Variables that look like ours and are none."""
    known = {*ENVIRONMENT, "JAX_UZIP_NO_SKIP"}  # the latter is one of the tests'
    return sorted(v for v in environ if v.startswith("JAX_UZIP_") and v not in known)


def dtype_of(value: DTypeLike) -> np.dtype[Any]:
    """What `np.dtype` returns, for the names that it does not know as well.

    >>> dtype_of("bf16"), dtype_of("e4m3fn")
    (dtype(bfloat16), dtype(float8_e4m3fn))
    """
    if isinstance(value, str):
        name = SHORT_NAMES.get(value, value)
        value = getattr(ml_dtypes, name, name)
    return np.dtype(value)


# ---- checks: one a field ---------------------------------------------------------------------


def _check_enabled(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def _check_bytes(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer number of bytes, got {value!r}")
    if value < 0:
        raise ValueError(f"{name} must be 0 or more bytes, got {value}")
    return int(value)


def _check_pack_bytes(name: str, value: Any) -> int:
    value = _check_bytes(name, value)
    if value > MAX_PACK_BYTES:
        raise ValueError(
            f"{name} must be at most {MAX_PACK_BYTES}, since a larger message would go to jax.lax, "
            f"got {value}"
        )
    return value


def _check_dtypes(name: str, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a sequence of dtypes or None for all, got {value!r}")
    names = {_dtype_name(name, v) for v in value}
    if not names:
        raise ValueError(f"{name} is empty: to compress nothing, choose enabled=False")
    known = sorted(dtype.name for dtype in native.dtypes())
    if unknown := sorted(names.difference(known)):
        raise ValueError(
            f"{name} lists {', '.join(unknown)}, which the codec does not compress; "
            f"choose among {', '.join(known)}"
        )
    return tuple(sorted(names))


def _dtype_name(name: str, value: Any) -> str:
    if isinstance(value, str):
        return SHORT_NAMES.get(value, value)
    if not isinstance(value, np.dtype | type):  # np.dtype(None) would be float64
        raise TypeError(f"{name} must be a sequence of dtypes, got {value!r} in it")
    return np.dtype(value).name


def _check_tiers(name: str, value: Any) -> tuple[float, ...] | None:
    if value is None:
        return None
    if not isinstance(value, Iterable) or isinstance(value, str | bytes):
        raise TypeError(f"{name} must be a sequence of fractions or None, got {value!r}")
    try:
        tiers = tuple(map(_fraction, value))
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} must be a sequence of fractions, got {value!r}") from None
    if not tiers:
        raise ValueError(
            f"{name} is empty: choose None for the default, or enabled=False to send everything raw"
        )
    if not all(0 < t < 1 for t in tiers) or list(tiers) != sorted(set(tiers)):
        raise ValueError(
            f"{name} must be rising fractions of the raw size between 0 and 1 (raw itself is always "
            f"on offer and is not listed), got {tiers}"
        )
    return tiers


def _fraction(value: Any) -> float:
    if isinstance(value, str | bytes):
        raise TypeError
    return float(value)


def _check_transport(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be one of {', '.join(TRANSPORTS)}, got {value!r}")
    if value not in TRANSPORTS:
        raise ValueError(f"{name} must be one of {', '.join(TRANSPORTS)}, got {value!r}")
    return value


TRANSPORTS = ("auto", "composed")

_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "enabled": _check_enabled,
    "min_bytes": _check_bytes,
    "dtypes": _check_dtypes,
    "pack_bytes": _check_pack_bytes,
    "tiers": _check_tiers,
    "transport": _check_transport,
}


# ---- the environment -------------------------------------------------------------------------


def _warn_of_unknown(environ: Mapping[str, str]) -> None:
    if unknown := unknown_variables(environ):
        warnings.warn(
            f"environment variable {', '.join(unknown)} is none of jax_uzip's and has no effect; "
            f"those are {', '.join(ENVIRONMENT)}",
            stacklevel=2,
        )


def _parse_flag(text: str) -> bool:
    flags = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
    if text.strip().lower() not in flags:
        raise ValueError(f"must be one of {', '.join(flags)}")
    return flags[text.strip().lower()]


def _parse_bytes(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("must be an integer number of bytes, such as 65536") from None


def _parse_list(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _parse_fractions(text: str) -> list[float]:
    try:
        return [float(item) for item in _parse_list(text)]
    except ValueError:
        raise ValueError("must be fractions of the raw size, such as 0.5,0.75") from None


FLAG = "JAX_UZIP"
"""Turns the drop-in flag on."""

ENVIRONMENT: dict[str, tuple[str, Callable[[str], Any]]] = {
    "JAX_UZIP_ENABLED": ("enabled", _parse_flag),
    "JAX_UZIP_MIN_BYTES": ("min_bytes", _parse_bytes),
    "JAX_UZIP_DTYPES": ("dtypes", _parse_list),
    "JAX_UZIP_PACK_BYTES": ("pack_bytes", _parse_bytes),
    "JAX_UZIP_TIERS": ("tiers", _parse_fractions),
    "JAX_UZIP_TRANSPORT": ("transport", str.strip),
}
