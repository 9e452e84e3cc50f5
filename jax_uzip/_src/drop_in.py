"""The drop-in flag: while it is on, `jax.lax`'s own collectives travel compressed.

JAX lowers each of its collective primitives through a rule of ours.  It reads the flag, asks the gate,
and lowers to the primitive of ours that does the same, or else goes through JAX's own rule, which
leaves nothing of ours in the program.  So calls that nobody wrote, in transposes, are compressed
too.  The flag is a context that JAX knows: programs of other flags are other entries of its caches.
"""

import contextlib
import os
from collections.abc import Iterator

import jax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jax_uzip._src import gate, jax_compat, record
from jax_uzip._src.collectives import (  # noqa: F401 - each adds its own to collectives()
    all_gather,
    all_to_all,
    pbroadcast,
    ppermute,
    psum,
    psum_scatter,
)
from jax_uzip._src.collectives.primitive import (
    Collective,
    collectives,
    decide_message,
    public_name,
)
from jax_uzip._src.options import Options, default, flag_from_env

# ---- public functions --------------------------------------------------------------------------


def enable(options: Options | None = None) -> None:
    """Compresses the collectives of `jax.lax` in every program lowered from now on, in all threads.

    Inside of `jax.shard_map` and `jax.pmap`, calls of `jax.lax` and those that JAX makes itself when it
    transposes become those of `jax_uzip`, where the gate lets them; all others stay as they are.
    ``JAX_UZIP=1`` in the environment does the same when jax_uzip is imported.

    What counts is the flag when a program is *lowered*, which is when a jitted function is first called
    with it: functions are traced anew when the flag changes, and no cache serves a program of another.

    Args:
      options: which messages to compress; ``None`` means the defaults of the process.

    >>> jax_uzip.enable()
    >>> jax_uzip.disable()
    """
    _flag.set_global(_value(options))


def disable() -> None:
    """Ends what `enable` and ``JAX_UZIP=1`` began; programs are again exactly those of JAX alone."""
    _flag.set_global(None)


@contextlib.contextmanager
def enabled(options: Options | None = None) -> Iterator[None]:
    """`enable`, for the calls inside of a `with` block of this thread.

    Other threads see what `enable` and `disable` chose.  The block must surround the *call* of a
    jitted function: inside of one it has no effect.  The backward pass of a `jax.vjp` taken inside
    and called outside is as the flag is there.

    Args:
      options: as in `enable`; ``Options(enabled=False)`` turns the flag off inside of the block.

    >>> mesh = jax.make_mesh((8,), ("x",))
    >>> @jax.jit
    ... @jax.shard_map(mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"))
    ... def gather(weights):
    ...     return jax.lax.all_gather(weights, "x", tiled=True)
    >>> with jax_uzip.enabled():
    ...     weights = gather(jnp.ones((8 << 15, 4)))
    """
    with _flag(_value(options)):
        yield


def _value(options: Options | None) -> Options | None:
    options = default() if options is None else options
    if not isinstance(options, Options):
        raise TypeError(f"options must be a jax_uzip.Options or None, got {options!r}")
    return options if options.enabled else None


# ---- the flag ----------------------------------------------------------------------------------

# Made when the module is imported, since making one is not thread-safe.  Options, or None: off.
_flag = jax.make_user_context(_value(None) if flag_from_env(os.environ) else None)


def current() -> Options | None:
    """The options of the flag where we stand, or `None` if it is off."""
    return _flag.value


# ---- lowering ----------------------------------------------------------------------------------


def _override(primitive: Primitive, collective: Collective) -> None:
    def lower(ctx, *operands, **params):
        options = current()
        if options is None or record.in_composed_form():
            return original(ctx, *operands, **params)
        (aval,) = ctx.avals_in
        decision = gate.decide_platform(jax_compat.platforms(ctx))
        if decision.compress:
            decision = decide_message(primitive, [aval], params, options)
        if not decision.compress:
            record.refuse(public_name(primitive), aval, params, decision.reason)
            return original(ctx, *operands, **params)
        ours = mlir.lower_fun(collective.primitive.bind, multiple_results=False)
        return ours(ctx, *operands, options=options, **params)

    original = jax_compat.override_lowering(primitive, lower)


for _primitive, _collective in collectives().items():
    _override(_primitive, _collective)
