"""`pbroadcast`: every device receives the values of one, to the bit.

`jax.lax.pbroadcast` cannot be differentiated and exists on GPUs alone.  So here are two primitives: one
that is JAX's where that exists, uncompressed, and elsewhere a sum to which all but one device add zeros;
and one in its place that compresses.
"""

from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jax_uzip._src import jax_compat, native, tiers
from jax_uzip._src.axis import Group
from jax_uzip._src.collectives import messages
from jax_uzip._src.collectives.primitive import Collective, Params
from jax_uzip._src.jax_compat import pbroadcast_p
from jax_uzip._src.options import Options

# ---- public function ---------------------------------------------------------------------------


def pbroadcast(
    x: Any,
    axis_name: Hashable | tuple[Hashable, ...],
    source: int,
    *,
    options: Options | None = None,
) -> Any:
    """`jax.lax.pbroadcast`, on every platform, with a gradient, and over fewer bytes.

    Leaves of one dtype travel packed together.  What is too small, of another dtype or out of the
    ordinary travels as `jax.lax.pbroadcast` would send it on a GPU, and uncompressed elsewhere.

    Args:
      x: as in `jax.lax.pbroadcast`: an array or a pytree, inside `jax.shard_map`.
      axis_name: as in `jax.lax.pbroadcast`.
      source: as in `jax.lax.pbroadcast`: the rank whose values all receive.  A JAX array, where the
        installed JAX takes one, is left to `jax.lax.pbroadcast`.
      options: which messages to compress; ``None`` means the defaults of the process.

    Returns:
      The values of `source`, to the bit.  The gradient is a `jax_uzip.psum` at the source, and zero
      elsewhere.

    >>> mesh = jax.make_mesh((8,), ("x",))
    >>> @jax.jit
    ... @jax.shard_map(mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"))
    ... def from_the_first(weights):
    ...     return jax_uzip.pbroadcast(weights, "x", 0)
    """
    if not isinstance(source, int | np.integer):
        return lax.pbroadcast(x, axis_name, source)

    def uncompressed(x):
        return jax.tree.map(
            lambda leaf: uncompressed_p.bind(leaf, axis_name=axis_name, source=int(source)), x
        )

    return messages.send(uncompressed, x, options)


# ---- composed form -----------------------------------------------------------------------------


def _send(flat: Array, group: Group, options: Options, params: Params) -> Array:
    """[n] of the source."""
    at_source = _at_source(group, params["source"])

    def move(words):
        return _sum_of_octets(jnp.where(at_source, words, 0), group)

    def agree(need):
        return group.max(jnp.where(at_source, need, 0))

    return tiers.send(flat[None], move, agree, options)[0]


def _at_source(group: Group, source: int) -> Array:
    return lax.axis_index(group.axes) == range(group.size)[source]


def _sum_of_octets(words: Array, group: Group) -> Array:
    """Of words that are zero everywhere but at the source: every transport can add octets."""
    octets = lax.psum(lax.bitcast_convert_type(words, jnp.uint8), group.axes)
    return lax.bitcast_convert_type(octets, words.dtype)


def _uncompressed(x: Array, **params: Any) -> Array:
    group = Group.of(params)
    at_source = _at_source(group, params["source"])
    if x.dtype not in native.dtypes():
        return lax.psum(jnp.where(at_source, x, jnp.zeros_like(x)), group.axes).astype(x.dtype)
    words = tiers.to_words(x.reshape(1, x.size))
    words = _sum_of_octets(jnp.where(at_source, words, 0), group)
    return tiers.from_words(words, x.size, x.dtype).reshape(x.shape)


# ---- primitives: uzip_pbroadcast, and uzip_pbroadcast_uncompressed in its place ------------------


def _abstract_eval(x, **params):
    return jax_compat.abstract_eval(pbroadcast_p, x, **params)


def _transpose(cotangent, x, *, axis_name, source):
    """JAX's own rule fails on anything but a scalar."""
    del x
    total = lax.psum(cotangent, axis_name)
    at_source = _at_source(Group.of({"axis_name": axis_name}), source)
    return [jnp.where(at_source, total, jnp.zeros_like(total))]


def _batch(axis_data, values, dims, **params):
    def bind(eqn, operands):
        if eqn.primitive is pbroadcast_p:
            return uncompressed_p.bind(*operands, **eqn.params)
        return jax_compat.bind_equation(eqn, operands)

    return jax_compat.batch(pbroadcast_p, bind, axis_data, values, dims, **params)


uncompressed_p = Primitive("uzip_pbroadcast_uncompressed")
uncompressed_p.def_effectful_abstract_eval(_abstract_eval)
mlir.register_lowering(uncompressed_p, mlir.lower_fun(_uncompressed, multiple_results=False))
mlir.register_lowering(
    uncompressed_p, mlir.lower_fun(pbroadcast_p.bind, multiple_results=False), platform="gpu"
)
ad.deflinear2(uncompressed_p, _transpose)
batching.fancy_primitive_batchers[uncompressed_p] = _batch

Collective(name="uzip_pbroadcast", original=uncompressed_p, send=_send)
