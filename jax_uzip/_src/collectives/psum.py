"""`psum` and `pmean`: every device receives the sum of the values of all, added in rank order."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
from jax import Array, lax
from jax.core import Tracer
from jax.extend.core.primitives import psum_p

from jax_uzip._src import tiers
from jax_uzip._src.axis import Group
from jax_uzip._src.collectives import messages
from jax_uzip._src.collectives.primitive import Collective, Params
from jax_uzip._src.jax_compat import psum_invariant_p
from jax_uzip._src.options import Options

# ---- public functions --------------------------------------------------------------------------


def psum(
    x: Any,
    axis_name: Hashable | tuple[Hashable, ...],
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    options: Options | None = None,
) -> Any:
    """`jax.lax.psum` over fewer bytes, and with the same bits on every device and in every run.

    The values are added in the order of the devices along the axis: 8- and 16-bit floats in float32
    and rounded once, wider ones in their own precision, NaN as the one quiet NaN of the dtype.
    `jax.lax.psum` leaves the order open.

    Leaves of one dtype travel packed together.  What is too small, of another dtype or out of the
    ordinary goes through `jax.lax.psum` and leaves nothing of ours in the program.

    The gradients of parameters that are the same on all devices are summed by JAX itself, under
    ``check_vma=True`` at a place that no `psum` of yours reaches: see `jax_uzip.pvary`.

    Args:
      x: as in `jax.lax.psum`: an array or a pytree, inside `jax.shard_map`.
      axis_name: as in `jax.lax.psum`.
      axis_index_groups: as in `jax.lax.psum`; compressed if the groups are of one size.
      options: which messages to compress; ``None`` means the defaults of the process.

    Returns:
      The sum, of the type that `jax.lax.psum` returns.

    >>> mesh = jax.make_mesh((8,), ("x",))
    >>> @jax.jit
    ... @jax.shard_map(mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P())
    ... def total(gradients):
    ...     return jax_uzip.psum(gradients, "x")
    """

    def through_lax(x):
        return lax.psum(x, axis_name, axis_index_groups=axis_index_groups)

    return _sum(through_lax, x, options)


def pmean(
    x: Any,
    axis_name: Hashable | tuple[Hashable, ...],
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    options: Options | None = None,
) -> Any:
    """`jax.lax.pmean`: `jax_uzip.psum`, divided by the number of devices.

    Args:
      x: as in `jax.lax.pmean`: an array or a pytree, inside `jax.shard_map`.
      axis_name: as in `jax.lax.pmean`.
      axis_index_groups: as in `jax.lax.pmean`; compressed if the groups are of one size.
      options: which messages to compress; ``None`` means the defaults of the process.

    Returns:
      The mean, of the type that `jax.lax.pmean` returns.

    >>> mesh = jax.make_mesh((8,), ("x",))
    >>> @jax.jit
    ... @jax.shard_map(mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P())
    ... def mean(gradients):
    ...     return jax_uzip.pmean(gradients, "x")
    """

    def through_lax(x):
        return lax.pmean(x, axis_name, axis_index_groups=axis_index_groups)

    return _sum(through_lax, x, options)


def _sum(through_lax: Callable[[Any], Any], x: Any, options: Options | None) -> Any:
    """JAX adds constants up without communication, and ``psum(1, axis)`` stays a Python number."""
    leaves, treedef = jax.tree.flatten(x)
    traced = [leaf for leaf in leaves if isinstance(leaf, Tracer)]
    sums = iter(messages.send(through_lax, traced, options))
    return jax.tree.unflatten(
        treedef,
        [next(sums) if isinstance(leaf, Tracer) else through_lax(leaf) for leaf in leaves],
    )


# ---- composed form -----------------------------------------------------------------------------


def _send(flat: Array, group: Group, options: Options, params: Params) -> Array:
    """[n] of every device, added: each device adds one part for all, and hands it to all.

    Two devices send each other all: no more bytes than in parts, once, and their order does not matter.
    """
    del params
    K = group.size
    if K == 2:
        return tiers.send_and_add(flat[None], group.exchange, group.max, options, flat)
    n = -(-flat.size // K)
    parts = tiers.resize(flat, K * n).reshape(K, n)
    part = tiers.send_and_add(parts, group.all_to_all, group.max, options)
    whole = tiers.send(part[None], group.all_gather, group.max, options)
    return tiers.resize(whole.reshape(K * n), flat.size)


# ---- primitives: uzip_psum under check_vma=False, uzip_psum_invariant under check_vma=True --------

Collective(name="uzip_psum", original=psum_p, send=_send, rows=True)
Collective(name="uzip_psum_invariant", original=psum_invariant_p, send=_send, rows=True)
