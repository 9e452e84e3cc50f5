"""`all_to_all`: every device sends a part to each, in exactly the bits of `jax.lax.all_to_all`."""

from collections.abc import Hashable, Sequence
from typing import Any

from jax import Array, lax
from jax.extend.core.primitives import all_to_all_p

from jax_uzip._src import tiers
from jax_uzip._src.axis import Group, join, split
from jax_uzip._src.collectives import messages
from jax_uzip._src.collectives.primitive import Collective, Params
from jax_uzip._src.options import Options

# ---- public function ---------------------------------------------------------------------------


def all_to_all(
    x: Any,
    axis_name: Hashable | tuple[Hashable, ...],
    split_axis: int,
    concat_axis: int,
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    tiled: bool = False,
    options: Options | None = None,
) -> Any:
    """`jax.lax.all_to_all`: the same bits, over fewer bytes.

    Leaves of one dtype travel packed together.  What is too small, of another dtype or out of the
    ordinary goes through `jax.lax.all_to_all` and leaves nothing of ours in the program.

    Args:
      x: as in `jax.lax.all_to_all`: an array or a pytree, inside `jax.shard_map`.
      axis_name: as in `jax.lax.all_to_all`.
      split_axis: as in `jax.lax.all_to_all`.
      concat_axis: as in `jax.lax.all_to_all`.
      axis_index_groups: as in `jax.lax.all_to_all`; compressed under ``check_vma=False``.
      tiled: as in `jax.lax.all_to_all`.
      options: which messages to compress; ``None`` means the defaults of the process.

    Returns:
      What `jax.lax.all_to_all` returns, to the bit.  Its gradient is a `jax_uzip.all_to_all`.

    >>> mesh = jax.make_mesh((8,), ("x",))
    >>> @jax.jit
    ... @jax.shard_map(mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P(None, "x"))
    ... def columns_of_rows(x):
    ...     return jax_uzip.all_to_all(x, "x", split_axis=1, concat_axis=0, tiled=True)
    """

    def through_lax(x):
        return lax.all_to_all(
            x,
            axis_name,
            split_axis,
            concat_axis,
            axis_index_groups=axis_index_groups,
            tiled=tiled,
        )

    return messages.send(through_lax, x, options)


# ---- composed form -----------------------------------------------------------------------------


def _send(rows: Array, group: Group, options: Options, params: Params) -> Array:
    """[K, n]: row k to device k, which receives them in the order of their senders."""
    del params
    if group.size == 2:
        own, others = (tiers.row(rows, rank) for rank in (group.rank, 1 - group.rank))
        (other,) = tiers.send(others[None], group.exchange, group.max, options)
        return tiers.in_order(own, other, group.rank)
    return tiers.send(rows, group.all_to_all, group.max, options)


def _flatten(x: Array, group: Group, params: Params) -> Array:
    return split(x, params["split_axis"], group.size)


def _restore(rows: Array, shape: tuple[int, ...], group: Group, params: Params) -> Array:
    dimension = params["split_axis"]
    part = (*shape[:dimension], shape[dimension] // group.size, *shape[dimension + 1 :])
    return join(rows, part, params["concat_axis"])


# ---- primitive: uzip_all_to_all ----------------------------------------------------------------

# The primitive pays no heed to `tiled`: what it means is done by the function of JAX around it.
Collective(
    name="uzip_all_to_all",
    original=all_to_all_p,
    send=_send,
    flatten=_flatten,
    restore=_restore,
    flat_params={"split_axis": 0, "concat_axis": 0, "tiled": True},
    rows=True,
)
