"""The one catalogue of test inputs, and the one way to compare bits.

    for kind in data.KINDS:
        x = data.make(kind, "bfloat16", 4097)      # 1-D, exactly 4097 values, the same on every call
        assert (data.bits(f(x)) == data.bits(x)).all()

NumPy and ml_dtypes only, so that the codec's tests can use it without JAX.  To add a dtype, add a
line to DTYPES; to add an input, add a function under "The kinds" and give it the decorator.
"""

import zlib
from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np

DTYPES: dict[str, np.dtype] = {
    np.dtype(t).name: np.dtype(t)
    for t in (
        ml_dtypes.bfloat16,
        np.float16,
        np.float32,
        np.float64,
        ml_dtypes.float8_e3m4,
        ml_dtypes.float8_e4m3,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e4m3fnuz,
        ml_dtypes.float8_e4m3b11fnuz,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e5m2fnuz,
        ml_dtypes.float8_e8m0fnu,
        np.complex64,
        np.complex128,
    )
}

# Bits of the exponent; only the wider dtypes need it, the 8-bit ones are tested exhaustively.
EXPONENT_BITS = {"bfloat16": 8, "float16": 5, "float32": 8, "float64": 11}

# Around every block length of the format, plus lengths that no vector width divides.
SIZES = (0, 1, 2, 7, 31, 33, 511, 512, 513, 1023, 1025, 2047, 2048, 2049, 4097)

KINDS: dict[str, Callable[[np.dtype, int, np.random.Generator], np.ndarray]] = {}


# ---- bits ------------------------------------------------------------------------------------


def part_dtype(dtype) -> np.dtype:
    """The dtype itself, or that of the parts of a complex one."""
    dtype = np.dtype(dtype)
    return np.dtype(f"float{dtype.itemsize * 4}") if dtype.kind == "c" else dtype


def uint_dtype(dtype) -> np.dtype:
    """The unsigned integer as wide as a value (as a part, for complex)."""
    return np.dtype(f"uint{part_dtype(dtype).itemsize * 8}")


def bits(x) -> np.ndarray:
    """The integer view of an array: compare this, since NaN != NaN and -0 == +0.

    A complex array gets a last axis of two, for its real and imaginary part.
    """
    x = np.asarray(x)
    x = np.ascontiguousarray(x).reshape(x.shape)
    if x.dtype.kind == "c":
        x = x[..., np.newaxis]
    return x.view(uint_dtype(x.dtype)) if x.dtype.kind not in "biu" else x


def from_bits(pattern: np.ndarray, dtype) -> np.ndarray:
    """The inverse of `bits`: values of a dtype from their integer patterns."""
    dtype = np.dtype(dtype)
    x = np.ascontiguousarray(pattern.astype(uint_dtype(dtype))).view(dtype)
    return x[..., 0] if dtype.kind == "c" else x


def serial_sum(rows: np.ndarray) -> np.ndarray:
    """What rows add up to: in their order, in float32 for 8- and 16-bit floats and rounded once.

    Every NaN is the canonical one.  A complex row counts as twice as many reals, and gives those.
    """
    part = part_dtype(rows.dtype)
    rows = rows.view(part)
    wide = part if part.itemsize >= 4 else np.dtype(np.float32)
    with np.errstate(all="ignore"):
        total = rows[0].astype(wide)
        for row in rows[1:]:
            total = total + row.astype(wide)
        total = total.astype(part)
    nan = np.isnan(total.astype(wide))
    total[nan] = abs(np.array(np.nan, wide)).astype(part)
    return total


# ---- making one ------------------------------------------------------------------------------


def make(kind: str, dtype, n: int, seed: int = 0) -> np.ndarray:
    """`n` values of a kind, 1-D; the same on every call with the same arguments."""
    dtype = np.dtype(dtype)
    rng = np.random.default_rng([seed, n, zlib.crc32(f"{kind} {dtype.name}".encode())])
    part = part_dtype(dtype)
    parts = n * (2 if dtype.kind == "c" else 1)
    x = KINDS[kind](part, parts, rng)
    assert (x.dtype, x.shape) == (part, (parts,)), (kind, dtype)
    return x.view(dtype)


def every(dtype, n: int, seed: int = 0) -> Iterator[tuple[str, np.ndarray]]:
    """`(kind, values)` for every kind of the catalogue."""
    for kind in KINDS:
        yield kind, make(kind, dtype, n, seed)


# ---- The kinds -------------------------------------------------------------------------------
# Each gets a real dtype (never a complex one), a length and a generator, and returns 1-D values.


def _kind(function):
    KINDS[function.__name__] = function
    return function


def _cast(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    with np.errstate(all="ignore"):  # narrow dtypes overflow and underflow on purpose
        return x.astype(dtype)


def _patterns(dtype: np.dtype) -> np.ndarray:
    """Every bit pattern of an 8- or 16-bit dtype; the corners of every field of a wider one."""
    width = dtype.itemsize * 8
    if width <= 16:
        return np.arange(1 << width, dtype=np.uint64)
    exponent_bits = EXPONENT_BITS[dtype.name]
    mantissa_bits = width - 1 - exponent_bits
    top, quiet = (1 << exponent_bits) - 1, 1 << (mantissa_bits - 1)
    full = (1 << mantissa_bits) - 1
    bias = top >> 1
    return np.array(
        [
            sign << (width - 1) | exponent << mantissa_bits | mantissa
            for sign in (0, 1)
            # 0: zeros and denormals; top: infinities, then signalling and quiet NaNs with payloads
            for exponent in (0, 1, 2, bias - 1, bias, bias + 1, top - 1, top)
            for mantissa in (
                0,
                1,
                2,
                quiet - 1,
                quiet,
                quiet + 1,
                full - 1,
                full,
                full & 0x55555555,
            )
        ],
        dtype=np.uint64,
    )


@_kind
def special(dtype, n, rng):
    """Zeros, infinities, denormals, quiet and signalling NaNs of both signs, in random order."""
    return from_bits(np.resize(rng.permutation(_patterns(dtype)), n), dtype)


@_kind
def all_patterns(dtype, n, rng):
    """Every pattern in order (8 and 16 bits), as far as `n` goes; the corners of wider dtypes."""
    del rng
    return from_bits(np.resize(_patterns(dtype), n), dtype)


@_kind
def special_among_gaussian(dtype, n, rng):
    """Weights with a few per cent of special values strewn in."""
    x = gaussian(dtype, n, rng)
    at = rng.random(n) < 0.03
    x[at] = special(dtype, n, rng)[at]
    return x


@_kind
def denormals(dtype, n, rng):
    """Both zeros and the smallest magnitudes that there are."""
    width = dtype.itemsize * 8
    mantissa_bits = width - 1 - EXPONENT_BITS.get(dtype.name, 5)
    magnitude = rng.integers(0, 1 << mantissa_bits, n, dtype=np.uint64)
    return from_bits(
        magnitude | rng.integers(0, 2, n, dtype=np.uint64) << np.uint64(width - 1), dtype
    )


@_kind
def zeros(dtype, n, rng):
    del rng
    return from_bits(np.zeros(n, np.uint64), dtype)


@_kind
def negative_zeros(dtype, n, rng):
    del rng
    return from_bits(np.full(n, 1 << (dtype.itemsize * 8 - 1), np.uint64), dtype)


@_kind
def constant(dtype, n, rng):
    del rng
    return _cast(np.full(n, 1.37), dtype)


@_kind
def random_bits(dtype, n, rng):
    """Incompressible."""
    return from_bits(
        rng.integers(0, 1 << dtype.itemsize * 8, n, dtype=np.uint64, endpoint=False), dtype
    )


@_kind
def gaussian(dtype, n, rng):
    """Weights: N(0, 1/46), but unit variance where 8 bits could hardly hold less."""
    return _cast(rng.standard_normal(n) * (1.0 if dtype.itemsize == 1 else 0.0217), dtype)


@_kind
def gaussian_denormal(dtype, n, rng):
    """A sigma at the smallest normal value: half of the values are denormal."""
    return _cast(rng.standard_normal(n) * float(ml_dtypes.finfo(dtype).smallest_normal), dtype)


@_kind
def gaussian_overflowing(dtype, n, rng):
    """A sigma at the largest finite value: a third overflow (to infinity, or to NaN)."""
    with np.errstate(over="ignore"):
        return _cast(rng.standard_normal(n) * float(ml_dtypes.finfo(dtype).max), dtype)


@_kind
def relu(dtype, n, rng):
    """Activations: half exact zeros."""
    return _cast(np.maximum(rng.standard_normal(n), 0), dtype)


@_kind
def one_percent_zeros(dtype, n, rng):
    x = gaussian(dtype, n, rng)
    x[rng.random(n) < 0.01] = 0
    return x


@_kind
def sparse(dtype, n, rng):
    """99 % exact zeros."""
    x = gaussian(dtype, n, rng)
    x[rng.random(n) < 0.99] = 0
    return x


@_kind
def laplace(dtype, n, rng):
    """Gradients: heavier tails than a Gaussian's."""
    return _cast(rng.laplace(size=n), dtype)


@_kind
def rows_of_own_scales(dtype, n, rng):
    """Rows of 1024 values, each with its own scale e^N(0,1)."""
    scale = np.exp(rng.standard_normal(n // 1024 + 1))
    return _cast(rng.standard_normal(n) * np.repeat(scale, 1024)[:n], dtype)


@_kind
def uniform(dtype, n, rng):
    return _cast(rng.uniform(-1, 1, n), dtype)


@_kind
def mixed_runs(dtype, n, rng):
    """Runs of 1500 values of the other kinds: neighbouring blocks take different paths."""
    kinds = (gaussian, zeros, random_bits, relu, special, constant, laplace, denormals)
    runs = [kinds[i % len(kinds)](dtype, 1500, rng) for i in range(n // 1500 + 1)]
    return np.concatenate(runs)[:n]
