"""`all_gather`: every device receives the values of all, in exactly the bits of `jax.lax.all_gather`."""

from collections.abc import Hashable, Sequence
from typing import Any, cast

import jax
from jax import Array, lax
from jax.extend.core import JaxprEqn, Primitive, Var
from jax.extend.core.primitives import all_gather_p
from jax.interpreters import ad, batching, mlir

from jax_uzip._src import gate, jax_compat, native, packing, tiers
from jax_uzip._src.options import Options, default

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
      What `jax.lax.all_gather` returns, to the bit.

    >>> mesh = jax.make_mesh((8,), ("x",))
    >>> @jax.jit
    ... @jax.shard_map(mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"))
    ... def gather(weights):
    ...     return jax_uzip.all_gather(weights, "x", tiled=True)
    """
    options = default() if options is None else options
    leaves, treedef = jax.tree.flatten(x)

    def through_lax(*leaves):
        return lax.all_gather(
            jax.tree.unflatten(treedef, leaves),
            axis_name,
            axis_index_groups=axis_index_groups,
            axis=axis,
            tiled=tiled,
            to=to,
        )

    if not _may_compress(leaves, options):
        return through_lax(*leaves)

    # JAX checks the arguments, completes the types and says what it would bind.
    traced = jax_compat.trace(through_lax, *leaves)
    messages = _plan(traced.jaxpr.eqns, options)
    if not messages:
        return through_lax(*leaves)

    # Bind that, but for the gathers of our messages, whose results are outstanding at first.
    ours = {_result(gather) for message in messages for gather in message}
    operands: dict[Var, Any] = {}

    def bind(eqn, values):
        if _result(eqn) not in ours:
            return jax_compat.bind_equation(eqn, values)
        (operands[_result(eqn)],) = values
        return _result(eqn)

    outs = jax_compat.replay(traced, leaves, bind)
    results: dict[Var, Array] = {}
    for message in messages:
        results |= _gather(message, operands, options)
    return jax.tree.unflatten(treedef, [results[o] if isinstance(o, Var) else o for o in outs])


def _may_compress(leaves: list[Any], options: Options) -> bool:
    """False, cheaply, for most small calls: nothing in them can make a message worth compressing."""
    avals = [jax.typeof(leaf) for leaf in leaves]
    nbytes = [_nbytes(aval) for aval in avals if gate.supports(aval.dtype, options)]
    return bool(nbytes) and sum(nbytes) >= options.min_bytes


def _plan(eqns: list[JaxprEqn], options: Options) -> list[list[JaxprEqn]]:
    """The gathers that go compressed, in messages: those of one type that fit are packed together."""
    by_type: dict[Any, list[JaxprEqn]] = {}
    for eqn in eqns:
        if eqn.primitive is all_gather_p:
            by_type.setdefault(jax_compat.concatenable(eqn.invars[0].aval), []).append(eqn)
    messages = []
    for gathers in by_type.values():
        sizes = [_nbytes(gather.invars[0].aval) for gather in gathers]
        for together in packing.plan(sizes, options.pack_bytes):
            messages.append([gathers[i] for i in together])
    return [message for message in messages if _decide(message, options).compress]


def _decide(message: list[JaxprEqn], options: Options) -> gate.Decision:
    params = message[0].params
    aval: Any = message[0].invars[0].aval
    grouped = params["axis_index_groups"] is not None
    return gate.decide(
        gate.Message(aval.dtype, sum(_size(gather) for gather in message)),
        gate.Axis(
            size=params["axis_size"],
            partitioned_axes=jax_compat.partitioned_axes(),
            checked_groups=grouped and bool(jax_compat.varying_axes(aval)),
        ),
        options,
    )


def _gather(
    message: list[JaxprEqn], operands: dict[Var, Any], options: Options
) -> dict[Var, Array]:
    """Gathers a message, and says which result is whose."""
    if len(message) == 1:
        (eqn,) = message
        operand = operands[_result(eqn)]
        return {_result(eqn): uzip_all_gather_p.bind(operand, options=options, **eqn.params)}

    shards = [operands[_result(eqn)] for eqn in message]
    flat = lax.concatenate([lax.reshape(shard, (shard.size,)) for shard in shards], 0)
    params = message[0].params | {"all_gather_dimension": 0, "tiled": False}
    rows = uzip_all_gather_p.bind(flat, options=options, **params)
    pieces = lax.split(rows, [shard.size for shard in shards], axis=1)
    return {
        _result(eqn): _arrange(
            piece, shard.shape, eqn.params["all_gather_dimension"], eqn.params["tiled"]
        )
        for eqn, shard, piece in zip(message, shards, pieces, strict=True)
    }


def _size(gather: JaxprEqn) -> int:
    return cast(Any, gather.invars[0].aval).size


def _nbytes(aval: Any) -> int:
    return aval.size * aval.dtype.itemsize


def _result(eqn: JaxprEqn) -> Var:
    return eqn.outvars[0]


def _arrange(rows: Array, shape: tuple[int, ...], dimension: int, tiled: bool) -> Array:
    """The flat shards of all devices, [K, n], as the result of gathering shards of `shape`."""
    stacked = lax.reshape(rows, (rows.shape[0], *shape))
    order = [*range(1, dimension + 1), 0, *range(dimension + 1, stacked.ndim)]
    stacked = lax.transpose(stacked, order)
    if not tiled:
        return stacked
    merged = rows.shape[0] * shape[dimension]
    return lax.reshape(stacked, (*shape[:dimension], merged, *shape[dimension + 1 :]))


# ---- composed form -----------------------------------------------------------------------------


def _composed(
    x: Array,
    *,
    all_gather_dimension: int,
    axis_name: tuple[Hashable, ...],
    axis_index_groups: Sequence[Sequence[int]] | None,
    axis_size: int,
    tiled: bool,
    options: Options,
) -> Array:
    del axis_size
    rows = tiers.send(
        lax.reshape(x, (1, x.size)),
        move=lambda words: lax.all_gather(
            words, axis_name, axis_index_groups=axis_index_groups, tiled=True
        ),
        agree=lambda need: lax.pmax(need, axis_name, axis_index_groups=axis_index_groups),
        options=options,
    )
    return _arrange(rows, x.shape, all_gather_dimension, tiled)


def _through_lax(x: Array, *, axis_size: int, options: Options, **params: Any) -> Array:
    """For platforms that have no codec yet."""
    del axis_size, options
    params["axis"] = params.pop("all_gather_dimension")
    return lax.all_gather(x, **params)


# ---- primitive: the types and derivatives are those of JAX's all_gather ------------------------


def _abstract_eval(x, *, options, **params):
    del options
    return jax_compat.abstract_eval(all_gather_p, x, **params)


def _transpose(cotangent, x, *, options, **params):
    del options
    return jax_compat.transpose(all_gather_p, cotangent, x, **params)


def _batch(axis_data, values, dims, *, options, **params):
    def bind(x, **params):
        return uzip_all_gather_p.bind(x, options=options, **params)

    return jax_compat.batch(all_gather_p, bind, axis_data, values, dims, **params)


uzip_all_gather_p = Primitive("uzip_all_gather")
uzip_all_gather_p.def_effectful_abstract_eval(_abstract_eval)
mlir.register_lowering(uzip_all_gather_p, mlir.lower_fun(_through_lax, multiple_results=False))
for platform in native.PLATFORMS:
    mlir.register_lowering(
        uzip_all_gather_p, mlir.lower_fun(_composed, multiple_results=False), platform=platform
    )
ad.deflinear2(uzip_all_gather_p, _transpose)
batching.fancy_primitive_batchers[uzip_all_gather_p] = _batch
