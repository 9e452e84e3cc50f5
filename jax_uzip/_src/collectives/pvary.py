"""`pvary`: marks parameters as different on every device, so that their gradients are summed by `psum`."""

from collections.abc import Hashable
from typing import Any

from jax import Array, lax

from jax_uzip._src.axis import Group
from jax_uzip._src.collectives import messages
from jax_uzip._src.collectives.primitive import Collective, Params
from jax_uzip._src.jax_compat import pvary_p
from jax_uzip._src.options import Options

# ---- public function ---------------------------------------------------------------------------


def pvary(
    x: Any,
    axis_name: Hashable | tuple[Hashable, ...],
    *,
    options: Options | None = None,
) -> Any:
    """``jax.lax.pcast(x, axis_name, to="varying")``, whose gradient is summed by `jax_uzip.psum`.

    In data-parallel training under ``check_vma=True`` the sum of the gradients over the devices is
    nowhere in your program.  Parameters that are the same on all devices meet a batch that is not;
    JAX marks them as varying there, and when it differentiates that mark it adds a sum of its own.  An
    explicit `psum` of the loss is before the mark, and one of the gradients would add what has been
    added already.  Mark the parameters with this function, before their use, and that sum is
    compressed, the leaves of one dtype packed together:

    >>> mesh = jax.make_mesh((8,), ("x",))
    >>> @jax.jit
    ... @jax.shard_map(mesh=mesh, in_specs=(jax.P(), jax.P("x")), out_specs=jax.P())
    ... def gradients(weights, batch):
    ...     def loss(weights):
    ...         weights = jax_uzip.pvary(weights, "x")
    ...         return jax_uzip.pmean(jnp.mean((batch @ weights) ** 2), "x")
    ...
    ...     return jax.grad(loss)(weights)

    Under ``check_vma=False`` there is no such mark and this function does nothing: there you sum the
    gradients yourself, with `jax_uzip.psum` or `jax_uzip.pmean`.

    Args:
      x: an array or a pytree, inside `jax.shard_map`, the same on all devices along the axis.
      axis_name: the mesh axis, or a tuple of such.
      options: which gradients to compress; ``None`` means the defaults of the process.

    Returns:
      `x`, typed as varying along the axis.
    """

    def through_lax(x):
        return lax.pcast(x, axis_name, to="varying")

    return messages.send(through_lax, x, options)


# ---- composed form -----------------------------------------------------------------------------


def _send(flat: Array, group: Group, options: Options, params: Params) -> Array:
    """Nothing moves; the type alone changes, and the transpose is the sum."""
    del group, options, params
    return flat


# ---- primitive: uzip_pvary ---------------------------------------------------------------------

Collective(name="uzip_pvary", original=pvary_p, send=_send, rows=True, moves=False)
