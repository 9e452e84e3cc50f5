"""`encode` and `decode`: the codec as JAX primitives, and as functions of whole arrays."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from numpy.typing import DTypeLike, NDArray

from jax_uzip._src import jax_compat, native

# ---- public functions --------------------------------------------------------------------------


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("payload", "nbytes"),
    meta_fields=("dtype", "shape", "format_version"),
)
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Encoded:
    """An array in encoded form: a pytree that passes through jit, vmap, scan and `jax.tree` functions.

    To keep one, keep its fields, the dtype by its name: `np.savez(file, payload=e.payload[:e.nbytes],
    dtype=e.dtype.name, shape=e.shape)`, and add a checksum where bytes may change: the format has none.

    Attributes:
      payload: uint8.  The encoding, and zeros up to a size that is static under a transformation: the
        most that an array of this shape can take, 0.5 % more than the array (and 64 bytes, which tell
        in small ones).  Outside of transformations it is cut near the bytes used.
      nbytes: how many bytes of the payload are used; a uint32 scalar, an int where a NumPy array was
        encoded.
      dtype: of the array (static).
      shape: of the array (static).
      format_version: of the payload (static); see docs/wire-format.md.
    """

    payload: Any
    nbytes: Any
    dtype: np.dtype
    shape: tuple[int, ...]
    format_version: int = native.FORMAT_VERSION


def encode(x: Array | NDArray[Any]) -> Encoded:
    """Encodes an array without loss: every bit of it comes back, NaN payloads and signed zeros too.

    The bytes are canonical: equal arrays give equal payloads on every machine.  Exponents are coded
    (about 2.7 bits each for Gaussian data), signs and mantissas stay; the idea is that of UCCL-Zip
    (arXiv 2604.17172), the code our own.

    Args:
      x: array of any shape, scalar and empty included, of a dtype that the codec knows: bfloat16,
        float16, float32, float64, the 8-bit floats, complex64, complex128.  A NumPy array is encoded
        on the host without JAX.

    Returns:
      `Encoded`.  Its payload has the bytes used for a NumPy array, at most 1/64 of its capacity more
      for a JAX array, and its capacity where `x` is traced.  It has no derivative.

    Raises:
      TypeError: the dtype is not one of them, `x` is not an array, or its shape is not static.
      ValueError: `x` is too large for one payload, which must have less than 4 GiB.

    >>> weights = jax.random.normal(jax.random.key(0), (1024, 1024), jnp.bfloat16)
    >>> encoded = jax_uzip.encode(weights)
    >>> bool(encoded.nbytes < 0.69 * weights.nbytes)
    True
    >>> bool((jax_uzip.decode(encoded) == weights).all())
    True
    """
    if isinstance(x, np.ma.MaskedArray) or not isinstance(x, Array | np.ndarray | np.generic):
        raise TypeError(f"encode takes a JAX or NumPy array, got {type(x).__name__}")
    capacity = _capacity(x.size, x.dtype)
    if isinstance(x, np.ndarray | np.generic):
        x = np.asarray(x)
        payload = native.encode_host(x)
        return Encoded(payload=payload, nbytes=payload.size, dtype=x.dtype, shape=x.shape)
    rows = jax_compat.replicated(x).reshape(1, x.size)
    payload, nbytes = (result[0] for result in encode_rows(rows, fill=True))
    if not isinstance(nbytes, Tracer):
        # Every size is a program to compile: few sizes, each close enough.
        step = -(-capacity // 64)
        payload = lax.slice(payload, (0,), (min(capacity, -(-int(nbytes) // step) * step),))
    return Encoded(payload=payload, nbytes=nbytes, dtype=np.dtype(x.dtype), shape=x.shape)


def decode(encoded: Encoded) -> Array | NDArray[Any]:
    """Decodes what `encode` made.

    Args:
      encoded: an `Encoded`; its payload may have been cut to any length of at least `nbytes`.

    Returns:
      The array, with the same bits, shape and dtype; a NumPy array if the payload is one.

    Raises:
      TypeError: `encoded` is not an `Encoded`, or its payload is not uint8 of one dimension.
      ValueError: the payload is malformed, of another format version, or not of this dtype and
        shape.  A payload on a JAX device is looked at only when it is decoded there: what is wrong
        with it is then told by a `jax.errors.JaxRuntimeError` when the result is used.  Changed
        mantissas cannot be told from other values: the format has no checksum.

    >>> x = np.array([1.5, -0.0, np.nan], np.float32)
    >>> jax_uzip.decode(jax_uzip.encode(x))
    array([ 1.5, -0. ,  nan], dtype=float32)
    """
    if not isinstance(encoded, Encoded):
        raise TypeError(f"decode takes an Encoded, got {type(encoded).__name__}")
    payload, dtype, shape = encoded.payload, encoded.dtype, encoded.shape
    if encoded.format_version != native.FORMAT_VERSION:
        raise ValueError(
            f"encoded.format_version is {encoded.format_version}, this library reads "
            f"{native.FORMAT_VERSION}: decode with the version of jax_uzip that encoded it"
        )
    if getattr(payload, "dtype", None) != np.uint8 or payload.ndim == 0:
        raise TypeError("encoded.payload must be a uint8 array of one dimension")
    if payload.ndim > 1:
        raise TypeError(
            f"encoded.payload has {payload.ndim} dimensions: decode a batch with "
            "jax.vmap(jax_uzip.decode)"
        )
    if dtype is None or not all(isinstance(d, int | np.integer) and d >= 0 for d in shape):
        raise ValueError(f"encoded is of no array: dtype {dtype}, shape {shape}")
    n = math.prod(int(d) for d in shape)
    _capacity(n, dtype)
    if isinstance(payload, np.ndarray):
        return native.decode_host(payload, n, dtype).reshape(shape)
    return decode_rows(jax_compat.replicated(payload)[None], n, dtype).reshape(shape)


def _capacity(n: int, dtype: DTypeLike) -> int:
    native.wire_code(dtype)
    if not isinstance(n, int):
        raise TypeError(f"the codec needs a static shape, got one of {n} items")
    if n <= MAX_PAYLOAD_BYTES:  # else its bytes might be beyond what the native module takes
        capacity = native.payload_capacity(n, dtype)
        if capacity <= MAX_PAYLOAD_BYTES:
            return capacity
    raise ValueError(
        f"an array of {n} items of {np.dtype(dtype)} is too large for one payload, which must have "
        "less than 4 GiB: encode it in parts"
    )


MAX_PAYLOAD_BYTES = 2**32 - 1
"""The number of bytes used is a uint32."""

# ---- rows: what collectives use ----------------------------------------------------------------


def encode_rows(x: Array, *, fill: bool = False) -> tuple[Array, Array]:
    """Encodes each row for itself.

    Args:
      x: [K, n] of a dtype that the codec knows.
      fill: whether to write zeros after the bytes used; else they may be anything.

    Returns:
      uint8[K, capacity] payloads and uint32[K] bytes used of each.
    """
    return tuple(encode_p.bind(x, fill=fill))


def decode_rows(payload: Array, n: int, dtype: DTypeLike) -> Array:
    """Decodes rows of at least the bytes used, uint8[K, P], to [K, n] of `dtype`."""
    return decode_p.bind(payload, n=n, dtype=np.dtype(dtype))


def decode_add_rows(rows: Array, payload: Array) -> Array:
    """Adds rows of values, [R, n], and then those of payloads, uint8[K, P], in their order: [n].

    8- and 16-bit floats are added in float32 and rounded once, others in their own precision.
    Denormals are kept, and every NaN is the one canonical quiet NaN of the dtype.
    """
    return decode_add_p.bind(rows, payload)


# ---- primitives --------------------------------------------------------------------------------


def _encode_type(x, *, fill):
    del fill
    k, n = x.shape
    capacity = native.payload_capacity(n, x.dtype)
    return [
        jax_compat.like(x, (k, capacity), np.dtype(np.uint8)),
        jax_compat.like(x, (k,), np.dtype(np.uint32)),
    ]


def _encode_batch(args, dims, *, fill):
    (x,), (dim,) = args, dims
    x = jnp.moveaxis(x, dim, 0)
    batch, k, n = x.shape
    payload, nbytes = encode_rows(x.reshape(batch * k, n), fill=fill)
    return [payload.reshape(batch, k, payload.shape[1]), nbytes.reshape(batch, k)], [0, 0]


def _decode_type(payload, *, n, dtype):
    return jax_compat.like(payload, (payload.shape[0], n), dtype)


def _decode_batch(args, dims, *, n, dtype):
    (payload,), (dim,) = args, dims
    payload = jnp.moveaxis(payload, dim, 0)
    batch, k, size = payload.shape
    rows = decode_rows(payload.reshape(batch * k, size), n, dtype)
    return rows.reshape(batch, k, n), 0


def _decode_add_type(rows, payload):
    del payload
    return jax_compat.like(rows, (rows.shape[1],), rows.dtype)


def _decode_add_batch(args, dims):
    (size,) = {x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None}
    rows, payload = (
        jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(args, dims, strict=True)
    )
    return lax.map(lambda each: decode_add_rows(*each), (rows, payload)), 0


def _primitive(
    name: str, target: str, rule, batch, *, attributes=(), results: int = 1
) -> Primitive:
    primitive = Primitive(name)
    primitive.multiple_results = results > 1
    primitive.def_abstract_eval(rule)

    @functools.cache
    def compiled(**params):
        return jax.jit(functools.partial(primitive.bind, **params))

    def run(*operands, **params):
        with jax.disable_jit(False):  # there is no other way to run it
            return compiled(**params)(*operands)

    primitive.def_impl(run)
    batching.primitive_batchers[primitive] = batch

    def lower(ctx, *operands, **params):
        return jax.ffi.ffi_lowering(target)(ctx, *operands, **{k: params[k] for k in attributes})

    for platform in native.PLATFORMS:
        mlir.register_lowering(primitive, lower, platform=platform)
    return primitive


encode_p = _primitive(
    "uzip_encode",
    "uzip_encode.v1",
    _encode_type,
    _encode_batch,
    attributes=("fill",),
    results=2,
)
decode_p = _primitive("uzip_decode", "uzip_decode.v1", _decode_type, _decode_batch)
decode_add_p = _primitive(
    "uzip_decode_add", "uzip_decode_add.v1", _decode_add_type, _decode_add_batch
)
