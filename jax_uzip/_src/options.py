"""What a user may choose, and the only file that reads environment variables."""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from jax_uzip._src import native


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Which messages are compressed, and the payload sizes that they may travel in.

    Hashable and immutable: options are a static parameter of every collective, and must be the same
    on every process of a program.  Each field has an environment variable (``JAX_UZIP_`` and the
    field's name in capitals), read once, that sets the default of the process.

    Attributes:
      enabled: ``False`` sends everything through ``jax.lax``.
      min_bytes: a message of fewer raw bytes per device goes to ``jax.lax`` untouched.  The default,
        64 KiB, is about where saving a third of the bytes pays for two more kernels and the agreement
        on a size.  0 compresses every message.
      dtypes: the dtypes to compress, as names or dtype objects; ``None`` means all that the codec
        knows (bf16, f16, f32, f64, the fp8 kinds, complex).
      pack_bytes: leaves of one dtype of a pytree are packed together into messages of at most this
        many raw bytes; a leaf larger than that travels alone.  0 packs nothing.
      tiers: the payload sizes on offer, as rising fractions of the raw size; raw is always the
        last and is not listed.  ``None`` chooses them by dtype and size (see ``tiers.py``).

    >>> jax_uzip.Options(min_bytes=1 << 20, dtypes=["bfloat16"])
    Options(enabled=True, min_bytes=1048576, dtypes=('bfloat16',), pack_bytes=33554432, tiers=None)
    """

    enabled: bool = True
    min_bytes: int = 64 << 10
    dtypes: tuple[str, ...] | None = None
    pack_bytes: int = 32 << 20
    tiers: tuple[float, ...] | None = None

    def __post_init__(self):
        """Checks every field and stores it in its one canonical, hashable form."""
        for name, check in _CHECKS.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))


def default() -> Options:
    """The options of a call that passes none: the environment's, read on first use."""
    return _process_default()


def from_env(environ: Mapping[str, str]) -> Options:
    """Options from the variables of ENVIRONMENT that are set."""
    chosen = {}
    for variable, (field, parse) in ENVIRONMENT.items():
        text = environ.get(variable)
        if text is None:
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


def _check_dtypes(name: str, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a sequence of dtypes or None for all, got {value!r}")
    names = {_dtype_name(v) for v in value}
    known = sorted(dtype.name for dtype in native.dtypes())
    if unknown := sorted(names.difference(known)):
        raise ValueError(
            f"{name} lists {', '.join(unknown)}, which the codec does not compress; "
            f"choose among {', '.join(known)}"
        )
    return tuple(sorted(names))


def _dtype_name(value: Any) -> str:
    return value if isinstance(value, str) else np.dtype(value).name


def _check_tiers(name: str, value: Any) -> tuple[float, ...] | None:
    if value is None:
        return None
    if not isinstance(value, Iterable) or isinstance(value, str):
        raise TypeError(f"{name} must be a sequence of fractions or None, got {value!r}")
    try:
        tiers = tuple(map(float, value))
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a sequence of fractions, got {value!r}") from None
    if not all(0 < t < 1 for t in tiers) or list(tiers) != sorted(set(tiers)):
        raise ValueError(
            f"{name} must be rising fractions of the raw size between 0 and 1 (raw itself is always "
            f"on offer and is not listed), got {tiers}"
        )
    return tiers


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "enabled": _check_enabled,
    "min_bytes": _check_bytes,
    "dtypes": _check_dtypes,
    "pack_bytes": _check_bytes,
    "tiers": _check_tiers,
}


# ---- the environment -------------------------------------------------------------------------


def _parse_flag(text: str) -> bool:
    flags = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
    if text.strip().lower() not in flags:
        raise ValueError(f"must be one of {', '.join(flags)}")
    return flags[text.strip().lower()]


def _parse_list(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _parse_fractions(text: str) -> list[float]:
    return [float(item) for item in _parse_list(text)]


ENVIRONMENT: dict[str, tuple[str, Callable[[str], Any]]] = {
    "JAX_UZIP_ENABLED": ("enabled", _parse_flag),
    "JAX_UZIP_MIN_BYTES": ("min_bytes", int),
    "JAX_UZIP_DTYPES": ("dtypes", _parse_list),
    "JAX_UZIP_PACK_BYTES": ("pack_bytes", int),
    "JAX_UZIP_TIERS": ("tiers", _parse_fractions),
}
