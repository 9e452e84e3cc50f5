"""`analyze`: what the codec would save on given data, beside Shannon's bound for exponent coding."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import jax
import jax.core
import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from jax_uzip._src import native, tables
from jax_uzip._src.options import dtype_of

PART_BYTES = 64 << 20
"""Tensors are looked at in parts of this size, so that memory does not grow with theirs."""

# ---- public ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Row:
    """What is known of one tensor, or of several together.

    Attributes:
      name: path in the pytree.
      dtype: name of the dtype; empty for several.
      shape: of the tensor; `None` for several.
      values: how many floats, two for a complex number; 0 where the codec does not know the dtype.
      raw_bytes: before encoding.
      encoded_bytes: after; those of the tensor itself where the codec does not know its dtype.
      bound_bytes: signs and mantissas as they are and exponents at their entropy; at best this is
        what a codec reaches that looks only at how often each exponent occurs.
      exponent_bits: Shannon's information of all exponents, given how often each occurs.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    values: int
    raw_bytes: int
    encoded_bytes: int
    bound_bytes: float
    exponent_bits: float

    @property
    def ratio(self) -> float:
        """Raw bytes by encoded bytes."""
        return self.raw_bytes / self.encoded_bytes if self.encoded_bytes else 1.0

    @property
    def bound_ratio(self) -> float:
        """Raw bytes by bound_bytes, infinite where there is no information at all.

        Data whose mantissas repeat (zeros, constants) can be encoded to less.
        """
        if self.bound_bytes:
            return self.raw_bytes / self.bound_bytes
        return math.inf if self.raw_bytes else 1.0

    @property
    def exponent_entropy(self) -> float | None:
        """Bits of information in an exponent, on average; `None` if nothing is compressed."""
        return self.exponent_bits / self.values if self.values else None

    def to_dict(self) -> dict[str, Any]:
        """Returns what JSON can hold; an infinite ratio is `None`."""
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": None if self.shape is None else list(self.shape),
            "compressed": self.values > 0,
            "raw_bytes": self.raw_bytes,
            "encoded_bytes": self.encoded_bytes,
            "ratio": self.ratio,
            "exponent_entropy": self.exponent_entropy,
            "bound_ratio": self.bound_ratio if math.isfinite(self.bound_ratio) else None,
        }


SortKey = Literal["name", "raw", "encoded", "ratio"]


@dataclasses.dataclass(frozen=True)
class Analysis:
    """What `analyze` found: a row for each tensor, and all together.  `print` shows it as a table."""

    rows: tuple[Row, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of these rows should know, a sentence or two each."""
        return tuple(text for applies, text in _NOTES if any(map(applies, self.rows)))

    @property
    def total(self) -> Row:
        """All rows as one: sums of bytes, so that ratios are weighted by size."""
        return _together("total", self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Returns what JSON can hold."""
        return {
            "tensors": [row.to_dict() for row in self.rows],
            "total": self.total.to_dict(),
            "notes": list(self.notes),
        }

    def table(self, *, sort: SortKey | None = None, limit: int | None = None) -> str:
        """Returns the table as text, and the notes below it.

        Of names, what cannot be printed (control characters, lone surrogates) is escaped.

        Args:
          sort: order of the rows: by name, or the largest first; `None` keeps theirs.
          limit: show this many rows, and those left out as one.
        """
        rows = list(self.rows)
        if sort == "name":
            rows.sort(key=lambda row: row.name)
        elif sort is not None:
            number = {"raw": "raw_bytes", "encoded": "encoded_bytes", "ratio": "ratio"}[sort]
            rows.sort(key=lambda row: getattr(row, number), reverse=True)
        if limit is not None and len(rows) > limit:
            rest = rows[limit:]
            rows = [*rows[:limit], _together(f"({len(rest)} more)", rest)]
        table = tables.text(_HEADER, [*map(_cells, rows)], _cells(self.total), left=(0, 1))
        return "\n".join([table, *(f"\n{note}" for note in self.notes)])

    def __str__(self) -> str:
        return self.table()


def analyze(
    tree: Any,
    *,
    cast: DTypeLike | None = None,
    progress: Callable[[int], None] | None = None,
) -> Analysis:
    """Says what the codec would save on the arrays of a pytree.

    Each tensor is encoded by itself, on the host, in parts of at most 64 MiB.  Collectives pack
    small tensors together, which costs a little less than the sum of theirs here.  Of an array
    that has shards in other processes, what this process holds is looked at.

    Args:
      tree: pytree of NumPy or JAX arrays.
      cast: dtype to cast the floats to first, as in ``"bfloat16"`` or ``"bf16"``; complex ones
        stay.
      progress: called with the number of raw bytes done since the last call.

    Returns:
      `Analysis`.  Tensors of dtypes that the codec does not know have a row with ratio 1.

    Raises:
      TypeError: a leaf has no values (`jax.ShapeDtypeStruct`, a traced array), is no array or a
        number beyond JAX's, or the codec does not know `cast`.

    >>> weights = {"w": np.random.default_rng(0).standard_normal(1 << 20, np.float32)}
    >>> analysis = jax_uzip.analyze(weights)
    >>> round(analysis.total.ratio, 2), round(analysis.total.bound_ratio, 2)
    (1.2, 1.21)
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    named = [(jax.tree_util.keystr(p, simple=True, separator="/") or "array", x) for p, x in leaves]
    named = [(name, _array(name, x)) for name, x in named]
    return Analysis(tuple(analyze_one(name, x, cast=cast, progress=progress) for name, x in named))


def analyze_one(
    name: str,
    x: Any,
    *,
    cast: DTypeLike | None = None,
    progress: Callable[[int], None] | None = None,
) -> Row:
    """Returns the row of one array; see `analyze`."""
    dtype = _target(x.dtype, cast)
    if dtype is None:
        if progress:
            progress(x.nbytes)
        return Row(name, _name(x.dtype), x.shape, 0, x.nbytes, x.nbytes, float(x.nbytes), 0.0)

    finfo = ml_dtypes.finfo(dtype)
    counts = np.zeros(1 << finfo.nexp, np.int64)
    raw_bytes = encoded_bytes = 0
    for part in _parts(x):
        with np.errstate(over="ignore", invalid="ignore"):
            values = part.astype(dtype, copy=False)
        counts += _count_exponents(values, finfo)
        raw_bytes += values.nbytes
        encoded_bytes += native.encode_host(values).size
        if progress:
            progress(part.nbytes)

    values = int(counts.sum())
    exponent_bits = values * _entropy(counts)
    bound_bytes = (values * (finfo.bits - finfo.nexp) + exponent_bits) / 8
    return Row(
        name, dtype.name, x.shape, values, raw_bytes, encoded_bytes, bound_bytes, exponent_bits
    )


# ---- leaves and dtypes -------------------------------------------------------------------------


def _array(name: str, x: Any) -> Any:
    """The array that a leaf is, of Python scalars the one that JAX would make."""
    if isinstance(x, jax.ShapeDtypeStruct):
        raise TypeError(f"analyze needs values, and {name} is a jax.ShapeDtypeStruct without any")
    if isinstance(x, jax.core.Tracer):
        raise TypeError(f"analyze needs values, and {name} is traced: call it outside of jit")
    if not isinstance(x, jax.Array | np.ndarray | np.generic | bool | int | float | complex):
        raise TypeError(f"analyze takes NumPy and JAX arrays, and {name} is a {type(x).__name__}")
    if isinstance(x, np.ndarray) and x.dtype.hasobject:
        raise TypeError(f"analyze takes numbers, and {name} is a ndarray of Python objects")
    if hasattr(x, "dtype"):
        return x
    try:
        return np.asarray(x, jax.dtypes.result_type(x))
    except OverflowError:
        raise TypeError(
            f"analyze takes NumPy and JAX arrays, and {name} is an int too large for JAX"
        ) from None


def _target(dtype: Any, cast: DTypeLike | None) -> np.dtype[Any] | None:
    """The dtype to encode values of `dtype` as, if it is one of the codec's."""
    if not isinstance(dtype, np.dtype):  # JAX's extended dtypes, such as those of keys
        return None
    dtype = dtype.newbyteorder("=")
    if dtype not in native.dtypes():
        return None
    if cast is not None and dtype.kind != "c":
        dtype = dtype_of(cast)
        native.wire_code(dtype)
    return dtype


def _name(dtype: Any) -> str:
    if not isinstance(dtype, np.dtype):
        return str(dtype)
    return "struct" if dtype.names else dtype.name  # NumPy's name is that of bytes without fields


# ---- one part of a tensor ----------------------------------------------------------------------


def _parts(x: Any) -> Iterator[NDArray[Any]]:
    """The values of an array, as flat NumPy arrays of at most PART_BYTES."""
    if not isinstance(x, jax.Array) or (x.is_fully_addressable and x.nbytes <= PART_BYTES):
        yield from _parts_of_numpy(np.asarray(x))
    else:
        for shard in {str(shard.index): shard for shard in x.addressable_shards}.values():
            yield from _parts_of_numpy(np.asarray(shard.data))


def _parts_of_numpy(x: NDArray[Any]) -> Iterator[NDArray[Any]]:
    if x.size == 0:
        return
    if x.nbytes <= PART_BYTES or x.flags.c_contiguous:
        x, at_once = x.reshape(-1), max(1, PART_BYTES // x.itemsize)
        for start in range(0, x.size, at_once):
            yield x[start : start + at_once]
        return
    rows = PART_BYTES // (x.nbytes // x.shape[0])
    if rows:
        for start in range(0, x.shape[0], rows):
            yield x[start : start + rows].reshape(-1)
    else:
        for row in x:
            yield from _parts_of_numpy(row)


def _count_exponents(values: NDArray[Any], finfo: Any) -> NDArray[np.int64]:
    bits = np.ascontiguousarray(values).view(f"uint{finfo.bits}")
    counts = np.zeros(1 << finfo.nexp, np.int64)
    at_once = 1 << 18  # np.bincount makes int64 of them: stay within a cache
    for start in range(0, bits.size, at_once):
        exponents = bits[start : start + at_once] >> finfo.nmant & (1 << finfo.nexp) - 1
        counts += np.bincount(exponents.astype(np.int64), minlength=counts.size)
    return counts


def _entropy(counts: NDArray[np.int64]) -> float:
    """Shannon entropy of a histogram, in bits."""
    total = counts.sum()
    if total == 0:
        return 0.0
    p = counts[counts > 0] / total
    return max(0.0, float(-(p * np.log2(p)).sum()))


# ---- several rows, and how they look -----------------------------------------------------------


def _together(name: str, rows: Sequence[Row]) -> Row:
    def total(field):
        return sum(getattr(row, field) for row in rows)

    dtypes = {row.dtype for row in rows}
    return Row(
        name=name,
        dtype=dtypes.pop() if len(dtypes) == 1 else "",
        shape=None,
        values=total("values"),
        raw_bytes=total("raw_bytes"),
        encoded_bytes=total("encoded_bytes"),
        bound_bytes=float(total("bound_bytes")),
        exponent_bits=float(total("exponent_bits")),
    )


_NOTES: tuple[tuple[Callable[[Row], bool], str], ...] = (
    (
        lambda row: row.dtype in ("void8", "void16"),
        "void8, void16: not looked at. NumPy files do not name the dtypes of ml_dtypes; if these values "
        "are, say, bfloat16, pass --void-as bfloat16, or in Python x.view(ml_dtypes.bfloat16).",
    ),
    (
        lambda row: row.values > 0 and round(row.ratio, 3) > round(row.bound_ratio, 3),
        "A ratio above its bound: the mantissas repeat (zeros, constants), and the bound counts them "
        "as incompressible.",
    ),
    (
        lambda row: round(row.ratio, 3) < 1,
        "A ratio below 1: the headers and padding of a payload are more than what they save. "
        "Collectives pack small tensors together, and send raw what does not compress.",
    ),
)
"""Of which rows what is to be said."""

_HEADER = ("tensor", "type", "raw bytes", "encoded", "ratio", "bound", "exponent bits")


def printable(text: str) -> str:
    r"""The text with what would move a terminal's cursor, or cannot be printed, escaped.

    >>> print(printable("größe\n\x1b[2J"))
    größe\n\x1b[2J
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _cells(row: Row) -> tuple[str, ...]:
    compressed = row.exponent_entropy is not None
    return (
        printable(row.name),
        row.dtype if row.shape is None else tables.array(row.dtype, row.shape),
        f"{row.raw_bytes:,}",
        f"{row.encoded_bytes:,}",
        f"{row.ratio:.3f}",
        f"{row.bound_ratio:.3f}" if compressed else "-",
        f"{row.exponent_entropy:.2f}" if compressed else "-",
    )
