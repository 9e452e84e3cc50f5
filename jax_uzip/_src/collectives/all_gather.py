"""`all_gather`: every device receives the values of all, in exactly the bits of `jax.lax.all_gather`."""

from collections.abc import Hashable, Sequence
from typing import Any

from jax import Array, lax
from jax.extend.core.primitives import all_gather_p

from jax_uzip._src import tiers
from jax_uzip._src.axis import Group, join
from jax_uzip._src.collectives import messages
from jax_uzip._src.collectives.primitive import Collective, Params
from jax_uzip._src.options import Options

# ---- public function ---------------------------------------------------------------------------


def all_gather(
    x: Any,
    axis_name: Hashable | tuple[Hashable, ...],
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    axis: int = 0,
    tiled: bool = False,
    to: str = "varying",
    options: Options | None = None,
) -> Any:
    """`jax.lax.all_gather`: the same bits, over fewer bytes.

    Leaves of one dtype travel packed together.  What is too small, of another dtype or out of the
    ordinary goes through `jax.lax.all_gather` and leaves nothing of ours in the program.

    Args:
      x: as in `jax.lax.all_gather`: an array or a pytree, inside `jax.shard_map`.
      axis_name: as in `jax.lax.all_gather`.
      axis_index_groups: as in `jax.lax.all_gather`; compressed under ``check_vma=False``.
      axis: as in `jax.lax.all_gather`.
      tiled: as in `jax.lax.all_gather`.
      to: as in `jax.lax.all_gather`; compressed where the result is ``'varying'``.
      options: which messages to compress; ``None`` means the defaults of the process.

    Returns:
      What `jax.lax.all_gather` returns, to the bit.  Its gradient is a `jax_uzip.psum_scatter`.

    >>> mesh = jax.make_mesh((8,), ("x",))
    >>> @jax.jit
    ... @jax.shard_map(mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"))
    ... def gather(weights):
    ...     return jax_uzip.all_gather(weights, "x", tiled=True)
    """

    def through_lax(x):
        return lax.all_gather(
            x,
            axis_name,
            axis_index_groups=axis_index_groups,
            axis=axis,
            tiled=tiled,
            to=to,
        )

    return messages.send(through_lax, x, options)


# ---- composed form -----------------------------------------------------------------------------


def _send(flat: Array, group: Group, options: Options, params: Params) -> Array:
    """[n] of every device as [K, n]."""
    del params
    if group.size == 2:
        (other,) = tiers.send(flat[None], group.exchange, group.max, options)
        return tiers.in_order(flat, other, group.rank)
    return tiers.send(flat[None], group.all_gather, group.max, options)


def _restore(rows: Array, shape: tuple[int, ...], group: Group, params: Params) -> Array:
    """The flat shards of all devices, [K, n], as the result of gathering shards of `shape`."""
    del group
    dimension = params["all_gather_dimension"]
    if params["tiled"]:
        return join(rows, shape, dimension)
    return join(rows, (*shape[:dimension], 1, *shape[dimension:]), dimension)


# ---- primitive: uzip_all_gather ----------------------------------------------------------------

Collective(
    name="uzip_all_gather",
    original=all_gather_p,
    send=_send,
    restore=_restore,
    flat_params={"all_gather_dimension": 0, "tiled": False},
)
