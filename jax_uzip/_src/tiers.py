"""The composed way to send what has no static size: in the smallest of a few static sizes.

XLA wants static shapes, and an encoded row has as many bytes as its values need.  So all devices first
agree, with a maximum over one number, on the smallest payload size on offer that fits everybody's rows,
and then take the branch of a `lax.switch` that moves payloads of that size.  The last branch moves the
values raw: what does not compress costs that one number more than it would have.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jax_uzip._src import codec, native
from jax_uzip._src.options import Options

# Bits that an exponent of Gaussian data takes in the encoding, whatever its sigma: 2.54 of entropy, the
# rest is headers and what a fast code loses.  Sign and mantissa travel as they are.
GAUSSIAN_EXPONENT_BITS = 2.72

# Payload sizes are whole multiples of this many bytes: aligned for the copies of any transport.
ALIGNMENT = 128

# Under this size fewer branches are on offer: a few per cent of little is not worth compiling them.
SMALL_BYTES = 1 << 20


def payload_sizes(n: int, dtype: np.dtype, options: Options) -> tuple[int, ...]:
    """The payload sizes on offer for rows of `n` values, rising; raw, always the last, is not in it."""
    raw = n * dtype.itemsize
    fractions = options.tiers
    if fractions is None:
        fractions = default_fractions(raw, dtype)
    largest = min(raw, native.payload_capacity(n, dtype))
    sizes = {-(-int(fraction * raw) // ALIGNMENT) * ALIGNMENT for fraction in fractions}
    return tuple(sorted(size for size in sizes if 0 < size < largest))


def default_fractions(raw: int, dtype: np.dtype) -> tuple[float, ...]:
    """Payload sizes worth offering, as fractions of the raw size.

    With g the fraction that Gaussian data of the dtype takes:

    ==========  =====================================================================================
    0.04        all zeros, constants: masks, fresh optimizer states, padding
    g / 2       mostly zeros: embeddings' gradients, masked or padded batches
    1.015 g     weights, most activations and gradients; 1.5 % are spare for data less even than
                Gaussian, and keep the payload within 3 % of the encoded size
    1.05 g      heavier tails (Laplace), ReLU, rows that each have their own scale
    (1+1.05g)/2 what still compresses a little
    raw         what does not
    ==========  =====================================================================================
    """
    g = gaussian_fraction(dtype)
    if raw < SMALL_BYTES:
        return (0.04, 1.03 * g, (1 + 1.03 * g) / 2)
    return (0.04, g / 2, 1.015 * g, 1.05 * g, (1 + 1.05 * g) / 2)


def gaussian_fraction(dtype: np.dtype) -> float:
    """Encoded over raw bytes of Gaussian data."""
    part = np.dtype(f"float{dtype.itemsize * 4}") if dtype.kind == "c" else dtype
    bits = part.itemsize * 8
    exponent_bits = jnp.finfo(part).iexp or bits  # 0 of fp8 without a mantissa
    return (bits - exponent_bits + min(exponent_bits, GAUSSIAN_EXPONENT_BITS)) / bits


def send(
    rows: Array,
    move: Callable[[Array], Array],
    agree: Callable[[Array], Array],
    options: Options,
) -> Array:
    """Moves rows to other devices in the smallest payload that holds all rows of all of them.

    Args:
      rows: [K, n] values; each row is encoded for itself.
      move: sends unsigned integers [K, w] and returns those received, [L, w]: a collective of `lax`.
      agree: the maximum of a uint32 over the devices that take part.
      options: which payload sizes are on offer.

    Returns:
      The rows received, [L, n].
    """
    n, dtype = rows.shape[1], rows.dtype
    sizes = payload_sizes(n, dtype, options)
    payload, nbytes = codec.encode_rows(rows)
    need = agree(jnp.max(nbytes))

    def encoded(size: int) -> Callable[[Array, Array], Array]:
        return lambda _, payload: codec.decode_rows(move(payload[:, :size]), n, dtype)

    def raw(rows: Array, _) -> Array:
        return from_words(move(to_words(rows)), n, dtype)

    branches = [*map(encoded, sizes), raw]
    index = sum((need > size).astype(jnp.int32) for size in sizes) if sizes else 0
    return lax.switch(index, branches, rows, payload)


# Raw values travel as unsigned integers: nothing on the way may quieten a NaN or flush a denormal.


def to_words(rows: Array) -> Array:
    """[K, n] values as [K, w] unsigned integers of at most 32 bits (so that x64 does not matter)."""
    if jnp.issubdtype(rows.dtype, jnp.complexfloating):
        rows = jnp.stack([rows.real, rows.imag], axis=-1)
    words = lax.bitcast_convert_type(rows, _word(rows.dtype))
    return words.reshape(rows.shape[0], -1)


def from_words(words: Array, n: int, dtype: np.dtype) -> Array:
    """The inverse of `to_words`."""
    is_complex = jnp.issubdtype(dtype, jnp.complexfloating)
    part = np.dtype(f"float{dtype.itemsize * 4}") if is_complex else dtype
    pieces = part.itemsize // _word(part).itemsize
    shape = (words.shape[0], n) + (2,) * is_complex + (pieces,) * (pieces > 1)
    rows = lax.bitcast_convert_type(words.reshape(shape), part)
    return lax.complex(rows[..., 0], rows[..., 1]) if is_complex else rows


def _word(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"uint{min(dtype.itemsize, 4) * 8}")
