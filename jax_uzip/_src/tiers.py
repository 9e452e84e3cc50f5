"""The composed way to send what has no static size: in the smallest of a few static sizes.

XLA wants static shapes, and an encoded row has as many bytes as its values need.  So all devices first
agree, with a maximum over one number, on the smallest payload size on offer that fits everybody's rows,
and then take the branch of a `lax.switch` that moves payloads of that size.  The last branch moves the
values raw: what does not compress costs that one number more than it would have.
"""

import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core.primitives import bitcast_convert_type_p

from jax_uzip._src import codec, native, record
from jax_uzip._src.options import Options

# Encoded over raw bytes of large Gaussian messages, whatever their sigma: measured, and held against
# the codec by the tests.  Constants, since all processes of a program must offer the same sizes.
GAUSSIAN_FRACTION = {
    "bfloat16": 0.6685,
    "float16": 0.8555,
    "float32": 0.8345,
    "float64": 0.8715,
    "float8_e3m4": 0.941,
    "float8_e4m3": 0.8355,
    "float8_e4m3b11fnuz": 0.837,
    "float8_e4m3fn": 0.8355,
    "float8_e4m3fnuz": 0.8355,
    "float8_e5m2": 0.7125,
    "float8_e5m2fnuz": 0.7125,
    "float8_e8m0fnu": 0.4055,
}

# Up to this many values shorter blocks are coded, a little larger and less even, and less is to be won
# by another branch to compile.
SMALL_VALUES = 1 << 19

# Payload sizes are whole multiples of this many bytes: aligned for the copies of any transport.
ALIGNMENT = 128


def payload_sizes(n: int, dtype: np.dtype, options: Options) -> tuple[int, ...]:
    """The payload sizes on offer for rows of `n` values, rising; raw, always the last, is not in it."""
    raw = n * dtype.itemsize
    fractions = options.tiers
    if fractions is None:
        fractions = default_fractions(n, dtype)
    largest = min(raw, native.payload_capacity(n, dtype))
    sizes = {-(-int(fraction * raw) // ALIGNMENT) * ALIGNMENT for fraction in fractions}
    return tuple(sorted(size for size in sizes if 0 < size < largest))


def default_fractions(n: int, dtype: np.dtype) -> tuple[float, ...]:
    """Payload sizes worth offering, as fractions of the raw size.

    With g the fraction that Gaussian values of the dtype take, and in brackets what small messages
    are offered instead:

    ================== ===========================================================================
    0.04               constants: zeros of fresh optimizer states, masks, padding
    g / 2       [-]    half zeros in runs: padded batches, buffers of experts
    1.008 g     [-]    weights, gradients and activations that are near to Gaussian in every block
    1.022 g  [1.03 g]  ... with some exact zeros, ReLU
    1.065 g [1.085 g]  heavier tails: Laplace
    (1 + 1.065 g) / 2  what still compresses a little
    raw                what does not
    ================== ===========================================================================
    """
    part, values = (_part(dtype), 2 * n) if _is_complex(dtype) else (dtype, n)
    g = GAUSSIAN_FRACTION[part.name]
    if values <= SMALL_VALUES:
        return (0.04, 1.03 * g, 1.085 * g, (1 + 1.085 * g) / 2)
    return (0.04, g / 2, 1.008 * g, 1.022 * g, 1.065 * g, (1 + 1.065 * g) / 2)


Move = Callable[[Array], Array]


def send(
    rows: Array, move: Move, agree: Move, options: Options, received: Array | bool = True
) -> Array:
    """Moves rows to other devices in the smallest payload that holds all rows of all of them.

    Args:
      rows: [K, n] values; each row is encoded for itself.
      move: sends unsigned integers [K, w] and returns those received, [L, w]: a collective of `lax`.
      agree: the maximum of a uint32 over the devices that take part.
      options: which payload sizes are on offer.
      received: whether this device receives anything; if not, `move` gives zeros, and so do we.

    Returns:
      The rows received, [L, n].
    """
    n, dtype = rows.shape[1], rows.dtype

    def decode(payload):
        if received is True:
            return codec.decode_rows(payload, n, dtype)

        def zeros(payload):
            nothing = to_words(rows)
            return from_words(nothing ^ nothing, n, dtype)

        return lax.cond(received, lambda p: codec.decode_rows(p, n, dtype), zeros, payload)

    return _send(rows, move, agree, options, decode, lambda words: from_words(words, n, dtype))


def send_and_add(
    rows: Array, move: Move, agree: Move, options: Options, own: Array | None = None
) -> Array:
    """As `send`, and adds the rows received to `own`, [n], in their order; see `codec.decode_add_rows`."""
    n, dtype = rows.shape[1], rows.dtype
    first = rows[:0] if own is None else own[None]

    def decode(payload):
        return codec.decode_add_rows(first, payload)

    def raw(words):
        # One way to add, with one result: XLA's own addition would flush denormals.
        values = from_words(lax.concatenate([to_words(first), words], 0), n, dtype)
        return codec.decode_add_rows(values, jnp.zeros((0, 0), jnp.uint8))

    return _send(rows, move, agree, options, decode, raw)


def _send(
    rows: Array,
    move: Move,
    agree: Move,
    options: Options,
    decode: Callable[[Array], Array],
    raw: Callable[[Array], Array],
) -> Array:
    """Sends rows; payloads that arrive go through `decode`, and words of raw values through `raw`."""
    sizes = payload_sizes(rows.shape[1], rows.dtype, options)
    payload, nbytes = codec.encode_rows(rows)
    need = agree(jnp.max(nbytes))
    raw_bytes = rows.size * rows.dtype.itemsize
    sent = record.message(raw_bytes)

    def encoded(size: int) -> Callable[[Array, Array], Array]:
        def branch(_, payload):
            sent(rows.shape[0] * size)
            return decode(move(payload[:, :size]))

        return branch

    def unencoded(rows: Array, _) -> Array:
        sent(raw_bytes)
        return _receive_raw(raw, move(to_words(rows)))

    branches = [*map(encoded, sizes), unencoded]
    index = sum((need > size).astype(jnp.int32) for size in sizes) if sizes else 0
    return lax.switch(index, branches, rows, payload)


def _receive_raw(raw: Callable[[Array], Array], words: Array) -> Array:
    return raw(words)


def resize(x: Array, n: int) -> Array:
    """[m] values as [n], cut off or filled up with zero bits; XLA's own slices keep no NaN's payload."""
    if x.size == n:
        return x
    words = to_words(x[None])
    width = words.shape[1] // x.size * n
    padding = jnp.zeros((1, max(width - words.shape[1], 0)), words.dtype)
    return from_words(lax.concatenate([words[:, :width], padding], 1), n, x.dtype)[0]


def row(rows: Array, index: Array) -> Array:
    """One of the rows, [K, n], in its bits: [n]."""
    words = lax.dynamic_slice_in_dim(to_words(rows), index, 1)
    return from_words(words, rows.shape[1], rows.dtype)[0]


def in_order(own: Array, other: Array, rank: Array) -> Array:
    """Two rows, [n] each, by the ranks of their devices: [2, n], the own one at `rank`, in their bits."""
    words, others = to_words(own[None]), to_words(other[None])
    both = lax.broadcast_in_dim(words, (2, words.shape[1]), (0, 1))
    both = lax.dynamic_update_slice_in_dim(both, others, 1 - rank, 0)
    return from_words(both, own.size, own.dtype)


# Raw values travel as unsigned integers: nothing on the way may quieten a NaN or flush a denormal.


def to_words(rows: Array) -> Array:
    """[K, n] values as [K, w] unsigned integers of at most 32 bits (so that x64 does not matter)."""
    if _is_complex(rows.dtype):
        rows = jnp.stack([rows.real, rows.imag], axis=-1)
    words = lax.bitcast_convert_type(rows, _word(rows.dtype))
    return words.reshape(rows.shape[0], math.prod(words.shape[1:]))


def from_words(words: Array, n: int, dtype: np.dtype) -> Array:
    """The inverse of `to_words`: [L, w] words as [L, n] values."""
    part = _part(dtype)
    words_a_part = part.itemsize // _word(part).itemsize
    shape = [words.shape[0], n]
    shape += [2] if _is_complex(dtype) else []
    shape += [words_a_part] if words_a_part > 1 else []
    # The primitive itself: lax.bitcast_convert_type would make float64 float32 when a program that was
    # traced with 64-bit types is lowered without.
    rows = bitcast_convert_type_p.bind(lax.reshape(words, shape), new_dtype=part)
    return lax.complex(rows[..., 0], rows[..., 1]) if _is_complex(dtype) else rows


def _word(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"uint{min(dtype.itemsize, 4) * 8}")


def _is_complex(dtype: np.dtype) -> bool:
    return dtype.kind == "c"


def _part(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"float{dtype.itemsize * 4}") if _is_complex(dtype) else dtype
