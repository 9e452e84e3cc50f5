"""The only file that touches private or unsettled parts of JAX.

JAX moved something?  Change it here, and run the tests on the oldest and the newest supported version.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax import lax
from jax._src.core import extend_axis_env_nd
from jax.extend.core import JaxprEqn, Literal, Primitive
from jax.interpreters import ad, batching, mlir

Bind = Callable[[JaxprEqn, list[Any]], Any]

# ---- facts about where we stand ----------------------------------------------------------------


def varying_axes(aval: Any) -> frozenset[str]:
    """The manual mesh axes along which a value may differ; empty under check_vma=False."""
    return aval.manual_axis_type.varying


def concatenable(aval: Any) -> Any:
    """Values of equal keys may be concatenated and split again without a change of type."""
    alone = object() if aval.weak_type else None  # concatenation would make it strong
    return aval.dtype, aval.manual_axis_type, alone


def partitioned_axes() -> tuple[str, ...]:
    """The mesh axes of more than one device that the partitioner still owns where we stand."""
    mesh = jax.sharding.get_abstract_mesh()
    return tuple(a for a, size in mesh.shape.items() if size > 1 and a not in mesh.manual_axes)


def like(aval: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """A type that varies over the mesh as `aval` does, and is not sharded by the partitioner."""
    unsharded = aval.sharding.update(spec=jax.P(*[None] * len(shape)))
    return aval.update(shape=shape, dtype=dtype, weak_type=False, sharding=unsharded)


def replicated(x: Any) -> Any:
    """`x`, gathered if its type says that it is sharded (a mesh with Explicit axes)."""
    if any(jax.typeof(x).sharding.spec):
        return jax.sharding.reshard(x, jax.P(*[None] * x.ndim))
    return x


# ---- the rules of JAX's own primitives ---------------------------------------------------------


def abstract_eval(original: Primitive, *avals: Any, **params: Any) -> Any:
    """The output type and the effects."""
    return original.abstract_eval(*avals, **params)


def transpose(
    original: Primitive, bind: Bind, cotangent: Any, *args: Any, **params: Any
) -> list[Any]:
    """The transpose rule of a linear primitive; what it would bind goes through `bind`."""

    def rule(cotangent):
        return ad.primitive_transposes[original](cotangent, *args, **params)

    return replay(trace(rule, cotangent), [cotangent], bind)


def batch(
    original: Primitive, bind: Bind, axis_data: Any, values: Any, dims: Any, **params: Any
) -> tuple[Any, Any]:
    """The batching rule of a collective; what it would bind goes through `bind`."""
    out_dim = None

    def rule(*values):
        nonlocal out_dim
        batcher = batching.fancy_primitive_batchers[original]
        out, out_dim = batcher(axis_data, values, dims, **params)
        return out

    (out,) = replay(trace(rule, *values), values, bind)
    return out, out_dim


# ---- equations ---------------------------------------------------------------------------------


def communicates(eqn: JaxprEqn) -> bool:
    """Whether an equation is a collective: it moves values between devices itself."""
    named = any(type(effect).__name__ == "NamedAxisEffect" for effect in eqn.effects)
    local = ("axis_index", "pvary", "preduced", "vary_unreduced_cast", "reduced_vary_cast")
    return named and eqn.primitive.name.removeprefix("uzip_") not in local


@contextlib.contextmanager
def standing_at(eqn: JaxprEqn) -> Iterator[None]:
    """A context in which the mesh and its manual axes are those of an equation's place."""
    with eqn.ctx.manager:
        mesh = jax.sharding.get_abstract_mesh()
        with extend_axis_env_nd([(name, mesh.shape[name]) for name in mesh.manual_axes]):
            yield


# ---- lowering -----------------------------------------------------------------------------------


def override_lowering(primitive: Primitive, rule: Callable) -> Callable:
    """Makes `rule` the one that lowers a primitive wherever no platform has its own; returns the old."""
    entry = mlir._lowerings[primitive]
    mlir.register_lowering(primitive, rule, inline=entry.inline)
    return entry.rule


def platforms(ctx: mlir.LoweringRuleContext) -> Sequence[str]:
    """The platforms of XLA that a rule lowers for."""
    return ctx.platforms or ctx.module_context.platforms


def may_call_back(ctx: mlir.LoweringRuleContext) -> bool:
    """Whether what a rule lowers runs here, once on each device, and may call Python."""
    module = ctx.module_context
    axes = module.axis_context
    return (
        isinstance(axes, mlir.SPMDAxisContext)
        and set(axes.manual_axes) >= set(axes.mesh.axis_names)
        and len(module.platforms) == 1
        and not module.lowering_parameters.for_export
    )


# ---- seeing what JAX would bind ----------------------------------------------------------------


def trace(fun: Callable, *args: Any) -> Any:
    """The equations of `fun`, traced where we stand: same mesh, same axis names, same types."""
    return jax.make_jaxpr(fun)(*args)


def replay(jaxpr: Any, args: Sequence[Any], bind: Bind) -> list[Any]:
    """Evaluates a traced function equation by equation, each through `bind(equation, operands)`."""
    jaxpr, consts = jaxpr.jaxpr, jaxpr.consts
    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

    def read(atom):
        return atom.val if isinstance(atom, Literal) else env[atom]

    for eqn in jaxpr.eqns:
        out = bind(eqn, [read(v) for v in eqn.invars])
        outs = out if eqn.primitive.multiple_results else [out]
        env.update(zip(eqn.outvars, outs, strict=True))
    return [read(v) for v in jaxpr.outvars]


def bind_equation(eqn: JaxprEqn, operands: list[Any]) -> Any:
    """Binds an equation as it stands."""
    return eqn.primitive.bind(*operands, **eqn.params)


def _unlisted_primitives() -> dict[str, Primitive]:
    """The collectives that jax.extend.core.primitives does not list, by name: seen in a traced function."""
    mesh = jax.sharding.AbstractMesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))

    def bind_all(x):
        total = lax.psum(x, "i")
        return [
            lax.pcast(total, "i", to="varying"),
            lax.psum_scatter(x, "i", tiled=True),
            lax.pbroadcast(x, "i", 0),
        ]

    mapped = jax.shard_map(bind_all, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
    (eqn,) = trace(mapped, jax.ShapeDtypeStruct((4,), "float32")).jaxpr.eqns
    return {inner.primitive.name: inner.primitive for inner in eqn.params["jaxpr"].eqns}


_UNLISTED = _unlisted_primitives()

psum_invariant_p = _UNLISTED["psum_invariant"]
"""What `lax.psum` binds under check_vma=True."""

reduce_scatter_p = _UNLISTED["reduce_scatter"]
"""What `lax.psum_scatter` binds."""

pbroadcast_p = _UNLISTED["pbroadcast"]
"""What `lax.pbroadcast` binds."""

pvary_p = _UNLISTED["pvary"]
"""What marks a value as varying along an axis under check_vma=True."""
