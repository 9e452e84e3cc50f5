"""The only file that touches private or unsettled parts of JAX.

JAX moved something?  Change it here, and run the tests on the oldest and the newest supported version.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import JaxprEqn, Literal, Primitive
from jax.interpreters import ad, batching

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


def transpose(original: Primitive, cotangent: Any, *args: Any, **params: Any) -> Any:
    """The transpose rule of a linear primitive."""
    return ad.primitive_transposes[original](cotangent, *args, **params)


def batch(
    original: Primitive, bind: Callable, axis_data: Any, values: Any, dims: Any, **params: Any
) -> tuple[Any, Any]:
    """The batching rule of a collective, with `bind(*operands, **params)` where it binds `original`."""
    out_dim = None

    def rule(*values):
        nonlocal out_dim
        out, out_dim = batching.fancy_primitive_batchers[original](
            axis_data, values, dims, **params
        )
        return out

    def substitute(eqn, operands):
        if eqn.primitive is original:
            return bind(*operands, **eqn.params)
        return bind_equation(eqn, operands)

    (out,) = replay(trace(rule, *values), values, substitute)
    return out, out_dim


# ---- seeing what JAX would bind ----------------------------------------------------------------


def trace(fun: Callable, *args: Any) -> Any:
    """The equations of `fun`, traced where we stand: same mesh, same axis names, same types."""
    return jax.make_jaxpr(fun)(*args)


def replay(
    jaxpr: Any, args: Sequence[Any], bind: Callable[[JaxprEqn, list[Any]], Any]
) -> list[Any]:
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
