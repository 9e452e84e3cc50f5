"""Writes the golden payloads of this folder: what version 1 of the wire format is, once and for all.

    python tests/golden/make.py            # writes those that are missing
    python tests/golden/make.py --force    # writes all: for a new version of the format, and only then

A golden file is one payload, named `<dtype>-<case>.uzip`.  Its values are not stored: they follow from
its name by the recipes below, which use integers alone, so that no random generator and no rounding
of some library can change them.  To add a case, add a line to CASES and run this.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

FOLDER = Path(__file__).parent


# ---- Recipes: n values, from integers alone -----------------------------------------------------


@dataclass(frozen=True)
class Field:
    """Where a dtype has its exponent, and the exponent of most of the `weights`."""

    dtype: np.dtype
    mantissa_bits: int
    exponent_bits: int
    centre: int

    @property
    def width(self) -> int:
        return self.dtype.itemsize * 8

    def values(self, sign, exponent, mantissa) -> np.ndarray:
        bits = exponent << np.uint64(self.mantissa_bits) | mantissa >> np.uint64(
            64 - self.mantissa_bits
        )
        if self.mantissa_bits == 0:  # float8_e8m0fnu, which has no sign either
            bits = exponent
        else:
            bits = bits | (sign & np.uint64(1)) << np.uint64(self.width - 1)
        return bits.astype(f"<u{self.dtype.itemsize}").view(self.dtype)


FIELDS = {
    field.dtype.name: field
    for field in (
        Field(np.dtype(ml_dtypes.bfloat16), 7, 8, 121),
        Field(np.dtype(np.float16), 10, 5, 10),
        Field(np.dtype(np.float32), 23, 8, 121),
        Field(np.dtype(np.float64), 52, 11, 1017),
        Field(np.dtype(ml_dtypes.float8_e4m3fn), 3, 4, 8),
        Field(np.dtype(ml_dtypes.float8_e4m3fnuz), 3, 4, 9),
        Field(np.dtype(ml_dtypes.float8_e4m3b11fnuz), 3, 4, 12),
        Field(np.dtype(ml_dtypes.float8_e4m3), 3, 4, 8),
        Field(np.dtype(ml_dtypes.float8_e5m2), 2, 5, 15),
        Field(np.dtype(ml_dtypes.float8_e5m2fnuz), 2, 5, 16),
        Field(np.dtype(ml_dtypes.float8_e3m4), 4, 3, 4),
        Field(np.dtype(ml_dtypes.float8_e8m0fnu), 0, 8, 127),
    )
}


def hashed(n: int, seed: int) -> np.ndarray:
    """`n` random-looking u64: the SplitMix64 sequence."""
    x = (np.arange(1, n + 1, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(
        0x9E3779B97F4A7C15
    )
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)


def weights(field: Field, n: int, seed: int) -> np.ndarray:
    """Exponents that fall off by halves below the centre: aligned."""
    h = hashed(n, seed)
    below = np.zeros(n, np.uint64)
    for bit in range(field.centre.bit_length() + 3):
        below += ((h & np.uint64((2 << bit) - 1)) == 0).astype(np.uint64)
    exponent = np.uint64(field.centre) - np.minimum(below, np.uint64(field.centre))
    return field.values(h >> np.uint64(24), exponent, hashed(n, seed + 1))


def scattered(field: Field, n: int, seed: int) -> np.ndarray:
    """Three exponents that are far apart: ranked."""
    h = hashed(n, seed)
    top = (1 << field.exponent_bits) - 2
    span = min(top - 1, 200)  # no more than float64 has symbols for
    low = (top - span + 1) // 2
    exponent = np.array([low, low + span // 2, low + span], np.uint64)[h % np.uint64(3)]
    return field.values(h >> np.uint64(24), exponent, hashed(n, seed + 1))


def ends(field: Field, n: int, seed: int) -> np.ndarray:
    """Zeros and denormals, infinities and NaNs of both signs, among ordinary values."""
    h = hashed(n, seed)
    top = (1 << field.exponent_bits) - 1
    exponent = np.array([0, 0, 0, 0, 0, top, top, top, field.centre], np.uint64)[h % np.uint64(9)]
    mantissa = np.where(h >> np.uint64(60), hashed(n, seed + 1), np.uint64(0))
    return field.values(h >> np.uint64(24), exponent, mantissa)


def noise(field: Field, n: int, seed: int) -> np.ndarray:
    """Every bit random: raw."""
    return hashed(n, seed).astype(f"<u{field.dtype.itemsize}").view(field.dtype)


def same(field: Field, n: int, seed: int) -> np.ndarray:
    """One value: constant."""
    return np.repeat(weights(field, 1, seed), n)


def mixed(field: Field, n: int, seed: int) -> np.ndarray:
    """Blocks of 512 values of each of the above, then again, as far as `n` goes; the last one weights."""
    recipes = (weights, same, scattered, noise, ends)
    blocks = [recipes[i % len(recipes)](field, 512, seed + 2 * i) for i in range(n // 512)]
    return np.concatenate([*blocks, weights(field, n % 512, seed + 1000)])


def mostly_same(field: Field, n: int, seed: int) -> np.ndarray:
    """A large message whose payload is small: two parts of 2048 values are not constant, nor is the end."""
    x = same(field, n, seed)
    x[4096:6144] = weights(field, 2048, seed + 2)
    x[n // 2048 * 1024 : n // 2048 * 1024 + 2048] = ends(field, 2048, seed + 4)
    x[-(n % 1024) :] = weights(field, n % 1024, seed + 6)
    return x


def mostly_zero(field: Field, n: int, seed: int) -> np.ndarray:
    """The same with zeros, and an end that is constant too."""
    x = np.zeros(n, f"<u{field.dtype.itemsize}").view(field.dtype)
    x[n // 2 : n // 2 + 300] = scattered(field, 300, seed)
    return x


# ---- Cases --------------------------------------------------------------------------------------

COMPACT, SLOTTED = 0, 1


@dataclass(frozen=True)
class Case:
    dtype: np.dtype
    name: str
    recipe: Callable[[Field, int, int], np.ndarray]
    n: int
    layout: int = COMPACT

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.dtype.name}-{self.name}.uzip"

    def values(self) -> np.ndarray:
        """The `n` values; a complex one is made of two."""
        pairs = self.dtype.kind == "c"
        part = np.dtype(f"float{self.dtype.itemsize * 4}") if pairs else self.dtype
        seed = sum(self.path.name.encode()) % 4096
        return self.recipe(FIELDS[part.name], self.n * (1 + pairs), seed).view(self.dtype)


def _cases():
    for field in FIELDS.values():
        yield Case(field.dtype, "compact", mixed, 5 * 512 + 77)
        yield Case(field.dtype, "slotted", mixed, 5 * 512 + 3, SLOTTED)
        yield Case(field.dtype, "odd", weights, 7)
    for pair in (np.complex64, np.complex128):
        yield Case(np.dtype(pair), "compact", mixed, 601)
    for dtype in (ml_dtypes.bfloat16, np.float32, np.float64, ml_dtypes.float8_e4m3fn):
        yield Case(np.dtype(dtype), "empty", weights, 0)
        yield Case(np.dtype(dtype), "one", weights, 1)
        yield Case(np.dtype(dtype), "nine-slotted", weights, 9, SLOTTED)
    yield Case(np.dtype(np.float16), "empty-slotted", weights, 0, SLOTTED)
    yield Case(np.dtype(ml_dtypes.bfloat16), "many-chunks", mixed, 20 * 512 + 509)
    yield Case(np.dtype(ml_dtypes.bfloat16), "blocks-of-1024", mostly_same, (1 << 19) + 1023)
    yield Case(np.dtype(ml_dtypes.bfloat16), "blocks-of-2048", mostly_same, (1 << 21) + 1001)
    yield Case(np.dtype(np.float32), "blocks-of-2048", mostly_same, (1 << 21) + 2047)
    yield Case(np.dtype(np.float64), "blocks-of-1024", mostly_zero, (1 << 19) + 3)
    yield Case(np.dtype(ml_dtypes.float8_e4m3fn), "blocks-of-1024", mostly_same, (1 << 19) + 9)
    yield Case(np.dtype(ml_dtypes.float8_e4m3fn), "blocks-of-2048", mostly_zero, (1 << 21) + 1)


CASES = list(_cases())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--force", action="store_true", help="overwrite files that are there")
    force = parser.parse_args().force
    from jax_uzip._src import native

    for case in CASES:
        if case.path.exists() and not force:
            continue
        payload = native.encode_host(case.values(), case.layout)
        case.path.write_bytes(payload.tobytes())
        print(f"{payload.size:7} bytes  {case.path.name}")
    print(f"{sum(case.path.stat().st_size for case in CASES)} bytes in {len(CASES)} files")
    left_over = {p.name for p in FOLDER.glob("*.uzip")} - {case.path.name for case in CASES}
    if left_over:
        sys.exit(f"no case for {', '.join(sorted(left_over))}")


if __name__ == "__main__":
    main()
