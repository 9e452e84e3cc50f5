"""`psum_scatter`: every device receives its part of the sum of the values of all, added in rank order."""

from collections.abc import Hashable, Sequence
from typing import Any

from jax import Array, lax

from jax_uzip._src import tiers
from jax_uzip._src.axis import Group, split
from jax_uzip._src.collectives import messages
from jax_uzip._src.collectives.primitive import Collective, Params
from jax_uzip._src.jax_compat import reduce_scatter_p
from jax_uzip._src.options import Options

# ---- public function ---------------------------------------------------------------------------


def psum_scatter(
    x: Any,
    axis_name: Hashable | tuple[Hashable, ...],
    *,
    scatter_dimension: int = 0,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    tiled: bool = False,
    options: Options | None = None,
) -> Any:
    """`jax.lax.psum_scatter` over fewer bytes, with the bits of `jax_uzip.psum`.

    The values are added in the order of the devices along the axis: 8- and 16-bit floats in float32
    and rounded once, wider ones in their own precision, NaN as the one quiet NaN of the dtype.

    Leaves of one dtype travel packed together.  What is too small, of another dtype or out of the
    ordinary goes through `jax.lax.psum_scatter` and leaves nothing of ours in the program.

    Args:
      x: as in `jax.lax.psum_scatter`: an array or a pytree, inside `jax.shard_map`.
      axis_name: as in `jax.lax.psum_scatter`.
      scatter_dimension: as in `jax.lax.psum_scatter`.
      axis_index_groups: as in `jax.lax.psum_scatter`; compressed under ``check_vma=False``.
      tiled: as in `jax.lax.psum_scatter`.
      options: which messages to compress; ``None`` means the defaults of the process.

    Returns:
      A part of the sum, of the type that `jax.lax.psum_scatter` returns.  Its gradient is a
      `jax_uzip.all_gather`.

    >>> mesh = jax.make_mesh((8,), ("x",))
    >>> @jax.jit
    ... @jax.shard_map(mesh=mesh, in_specs=jax.P(None, "x"), out_specs=jax.P("x"))
    ... def part_of_total(gradients):
    ...     return jax_uzip.psum_scatter(gradients, "x", tiled=True)
    """

    def through_lax(x):
        return lax.psum_scatter(
            x,
            axis_name,
            scatter_dimension=scatter_dimension,
            axis_index_groups=axis_index_groups,
            tiled=tiled,
        )

    return messages.send(through_lax, x, options)


# ---- composed form -----------------------------------------------------------------------------


def _send(rows: Array, group: Group, options: Options, params: Params) -> Array:
    """[K, n] of every device, added over the devices: row k at device k."""
    del params
    if group.size == 2:  # the order of two addends does not matter
        own, others = (tiers.row(rows, rank) for rank in (group.rank, 1 - group.rank))
        return tiers.send_and_add(others[None], group.exchange, group.max, options, own)
    return tiers.send_and_add(rows, group.all_to_all, group.max, options)


def _flatten(x: Array, group: Group, params: Params) -> Array:
    return split(x, params["scatter_dimension"], group.size)


def _restore(row: Array, shape: tuple[int, ...], group: Group, params: Params) -> Array:
    dimension = params["scatter_dimension"]
    part = [shape[dimension] // group.size] if params["tiled"] else []
    return lax.reshape(row, (*shape[:dimension], *part, *shape[dimension + 1 :]))


# ---- primitive: uzip_psum_scatter --------------------------------------------------------------

Collective(
    name="uzip_psum_scatter",
    original=reduce_scatter_p,
    send=_send,
    flatten=_flatten,
    restore=_restore,
    flat_params={"scatter_dimension": 0, "tiled": False},
    rows=True,
)
