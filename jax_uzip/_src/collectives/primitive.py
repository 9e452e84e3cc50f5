"""A primitive of ours in place of one of JAX's: it moves bytes differently, all else is JAX's.

Types, batching and derivatives call the rules of the original.  Where such a rule would bind one of
JAX's collectives, ours is bound with the same options, if the gate lets that message pass: the
backward pass of a compressed collective is compressed too.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from jax import Array, lax
from jax.extend.core import JaxprEqn, Primitive
from jax.interpreters import ad, batching, mlir

from jax_uzip._src import gate, jax_compat, native, record
from jax_uzip._src.axis import Group
from jax_uzip._src.options import Options

Params = dict[str, Any]


def _flatten(x: Array, group: Group, params: Params) -> Array:
    del group, params
    return lax.reshape(x, (x.size,))


def _restore(flat: Array, shape: tuple[int, ...], group: Group, params: Params) -> Array:
    del group, params
    return lax.reshape(flat, shape)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Collective:
    """One of JAX's collectives, and what ours does in its place.

    How bytes move is written for a flat operand alone: of two dimensions where parts go different
    ways, else of one.  The last dimension of flat operands may be concatenated, and that of their
    results split: so leaves are packed.

    Attributes:
      name: of our primitive.
      original: JAX's primitive.
      send: ``(flat, group, options, params)`` to the flat result: the composed form.
      flatten: ``(x, group, params)`` to the flat operand; the default is for a collective that
        leaves every value at its place.
      restore: ``(flat result, shape of x, group, params)`` to the result.
      flat_params: the parameters that make a flat result of a flat operand.
      rows: whether the operand travels in as many parts as there are devices.
      moves: whether it moves values at all; one that does not is there for its transpose.
      primitive: ours.
    """

    name: str
    original: Primitive
    send: Callable[[Array, Group, Options, Params], Array]
    flatten: Callable[[Array, Group, Params], Array] = _flatten
    restore: Callable[[Array, tuple[int, ...], Group, Params], Array] = _restore
    flat_params: Params = dataclasses.field(default_factory=dict)
    rows: bool = False
    moves: bool = True
    primitive: Primitive = dataclasses.field(init=False)

    def __post_init__(self):
        """Makes the primitive, its rules and lowerings, and lets other rules find it."""
        object.__setattr__(self, "primitive", Primitive(self.name))
        ours = self.primitive
        ours.def_effectful_abstract_eval(self._abstract_eval)
        mlir.register_lowering(ours, mlir.lower_fun(self._original, multiple_results=False))
        for platform in native.PLATFORMS:
            composed = record.lowering(public_name(ours), self._composed)
            mlir.register_lowering(ours, composed, platform=platform)
        ad.deflinear2(ours, self._transpose)
        batching.fancy_primitive_batchers[ours] = self._batch
        _OURS[self.original] = self

    def _composed(self, x, *, options, **params):
        group = Group.of(params)
        flat = self.send(self.flatten(x, group, params), group, options, params)
        return self.restore(flat, x.shape, group, params)

    def _original(self, x, *, options, **params):
        """For platforms that have no codec yet."""
        del options
        return self.original.bind(x, **params)

    def _abstract_eval(self, x, *, options, **params):
        del options
        return jax_compat.abstract_eval(self.original, x, **params)

    def _transpose(self, cotangent, x, *, options, **params):
        def bind(eqn, operands):
            return bind_ours(eqn, operands, options)

        return jax_compat.transpose(self.original, bind, cotangent, x, **params)

    def _batch(self, axis_data, values, dims, *, options, **params):
        def bind(eqn, operands):
            return bind_ours(eqn, operands, options)

        return jax_compat.batch(self.original, bind, axis_data, values, dims, **params)


_OURS: dict[Primitive, Collective] = {}


def collectives() -> dict[Primitive, Collective]:
    """Ours that move values, by the primitive that each stands in for."""
    return {original: ours for original, ours in _OURS.items() if ours.moves}


def replacement(eqn: JaxprEqn) -> Collective | None:
    """What we have in place of the primitive of an equation."""
    return _OURS.get(eqn.primitive)


def public_name(primitive: Primitive) -> str:
    """The function of `jax.lax`, and of ours, that binds a primitive of either."""
    name = primitive.name.removeprefix("uzip_").removesuffix("_uncompressed")
    return {"psum_invariant": "psum", "reduce_scatter": "psum_scatter"}.get(name, name)


def decide(eqns: Sequence[JaxprEqn], options: Options) -> gate.Decision:
    """Whether equations of one of JAX's collectives, as one message, are worth one of ours."""
    avals = [eqn.invars[0].aval for eqn in eqns]
    return decide_message(eqns[0].primitive, avals, eqns[0].params, options)


def decide_message(
    primitive: Primitive, avals: Sequence[Any], params: Params, options: Options
) -> gate.Decision:
    """`decide`, of operands of one of JAX's primitives with the same parameters."""
    if not all(isinstance(aval.size, int) for aval in avals):
        return gate.Decision(False, "the shape is symbolic")
    group = Group.of(params)
    grouped = group.index_groups is not None
    usual = not group.positional and not group.uneven
    size = group.size if usual else 0
    collective = _OURS.get(primitive)
    return gate.decide(
        gate.Message(
            avals[0].dtype,
            sum(aval.size for aval in avals),
            rows=size if collective and collective.rows else 1,
        ),
        gate.Axis(
            size=size,
            partitioned_axes=jax_compat.partitioned_axes(),
            checked_groups=grouped and bool(jax_compat.varying_axes(avals[0])),
            uneven_groups=group.uneven,
            positional=group.positional,
        ),
        options,
    )


def bind_ours(eqn: JaxprEqn, operands: list[Any], options: Options) -> Any:
    """Binds an equation: ours in its place, if it has one and the gate lets the message pass."""
    collective = replacement(eqn)
    if collective and decide([eqn], options).compress:
        return collective.primitive.bind(*operands, options=options, **eqn.params)
    return jax_compat.bind_equation(eqn, operands)
