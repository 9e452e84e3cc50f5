"""`ppermute`: devices send to each other in pairs, in exactly the bits of `jax.lax.ppermute`."""

from collections.abc import Hashable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core.primitives import ppermute_p

from jax_uzip._src import tiers
from jax_uzip._src.axis import Group
from jax_uzip._src.collectives import messages
from jax_uzip._src.collectives.primitive import Collective, Params
from jax_uzip._src.options import Options

# ---- public function ---------------------------------------------------------------------------


def ppermute(
    x: Any,
    axis_name: Hashable | tuple[Hashable, ...],
    perm: Sequence[tuple[int, int]],
    *,
    options: Options | None = None,
) -> Any:
    """`jax.lax.ppermute`: the same bits, over fewer bytes.

    Leaves of one dtype travel packed together.  What is too small, of another dtype or out of the
    ordinary goes through `jax.lax.ppermute` and leaves nothing of ours in the program.

    All devices along the axis move payloads of the same size, that of the least compressible.

    Args:
      x: as in `jax.lax.ppermute`: an array or a pytree, inside `jax.shard_map`.
      axis_name: as in `jax.lax.ppermute`.
      perm: as in `jax.lax.ppermute`: pairs of source and destination.
      options: which messages to compress; ``None`` means the defaults of the process.

    Returns:
      What `jax.lax.ppermute` returns, to the bit: zeros where nothing was sent.  Its gradient is the
      inverse `jax_uzip.ppermute`.

    >>> mesh = jax.make_mesh((8,), ("x",))
    >>> @jax.jit
    ... @jax.shard_map(mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"))
    ... def to_the_next(activations):
    ...     return jax_uzip.ppermute(activations, "x", [(i, (i + 1) % 8) for i in range(8)])
    """

    def through_lax(x):
        return lax.ppermute(x, axis_name, perm)

    return messages.send(through_lax, x, options)


# ---- composed form -----------------------------------------------------------------------------


def _send(flat: Array, group: Group, options: Options, params: Params) -> Array:
    """[n] of the device that sends to this one; zeros if there is none."""
    perm = params["perm"]
    if group.size == 2 and sorted(perm) == [(0, 1), (1, 0)]:
        return tiers.send(flat[None], group.exchange, group.max, options)[0]

    def move(words):
        return lax.ppermute(words, group.axes, perm)

    def agree(need):
        return group.max(jnp.where(_among(group, [source for source, _ in perm]), need, 0))

    received = _among(group, [destination for _, destination in perm])
    return tiers.send(flat[None], move, agree, options, received=received)[0]


def _among(group: Group, ranks: Sequence[int]) -> Array | bool:
    """Whether this device is one of `ranks`; True if all are."""
    listed = [rank in {r % group.size for r in ranks} for rank in range(group.size)]
    return all(listed) or jnp.asarray(listed)[lax.axis_index(group.axes)]


# ---- primitive: uzip_ppermute ------------------------------------------------------------------

Collective(name="uzip_ppermute", original=ppermute_p, send=_send)
