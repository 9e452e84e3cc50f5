"""A call of `jax.lax` as few large messages: what it would bind is seen first, then packed and sent.

JAX itself checks the arguments, completes the types and says, traced, which collectives it would bind.
Those that fit go together through one of ours, if the gate lets that message pass.
"""

from collections.abc import Callable
from typing import Any, cast

import jax
from jax import lax
from jax.extend.core import JaxprEqn, Literal

from jax_uzip._src import gate, jax_compat, packing
from jax_uzip._src.axis import Group
from jax_uzip._src.collectives import primitive
from jax_uzip._src.options import Options, default

Message = list[JaxprEqn]


def send(call: Callable[[Any], Any], x: Any, options: Options | None) -> Any:
    """What `call(x)` returns, with ours in place of the collectives that it binds.

    Args:
      call: one function of `jax.lax` on a pytree of arrays, which returns such a pytree.  All that it
        binds of one collective has the same parameters, but for what depends on an array's shape.
      x: the pytree.
      options: which messages to compress; None means the defaults of the process.
    """
    options = default() if options is None else options
    if not isinstance(options, Options):
        raise TypeError(f"options must be a jax_uzip.Options or None, got {options!r}")
    leaves, treedef = jax.tree.flatten(x)
    if not _may_compress(leaves, options):
        return call(x)
    traced = jax_compat.trace(lambda *leaves: call(jax.tree.unflatten(treedef, leaves)), *leaves)
    messages = _plan(traced.jaxpr.eqns, options)
    if not messages:
        return call(x)
    return jax.tree.unflatten(treedef, _replay(traced, leaves, messages, options))


def _may_compress(leaves: list[Any], options: Options) -> bool:
    """False, cheaply, for most small calls: nothing in them can make a message worth compressing."""
    try:
        avals = [jax.typeof(leaf) for leaf in leaves]
    except TypeError:
        return False  # jax.lax says what is wrong
    avals = [aval for aval in avals if gate.supports(aval.dtype, options)]
    if not all(isinstance(aval.size, int) for aval in avals):
        return False  # symbolic shapes, which have no static size
    return bool(avals) and sum(map(_nbytes, avals)) >= options.min_bytes


def _plan(eqns: list[JaxprEqn], options: Options) -> list[Message]:
    """The collectives that go compressed, in messages: those of one type that fit are packed together."""
    by_type: dict[Any, list[JaxprEqn]] = {}
    for eqn in eqns:
        if primitive.replacement(eqn):
            aval: Any = eqn.invars[0].aval
            alone = aval.dtype.name in packing.UNSAFE and object()
            key = eqn.primitive, jax_compat.concatenable(aval), alone
            by_type.setdefault(key, []).append(eqn)
    messages = []
    for alike in by_type.values():
        sizes = [_nbytes(cast(Any, eqn.invars[0].aval)) for eqn in alike]
        for together in packing.plan(sizes, options.pack_bytes):
            messages.append([alike[i] for i in together])
    return [message for message in messages if primitive.decide(message, options).compress]


def _nbytes(aval: Any) -> int:
    return aval.size * aval.dtype.itemsize


def _replay(traced: Any, args: list[Any], messages: list[Message], options: Options) -> list[Any]:
    """Evaluates a traced call; a message leaves as soon as all of its operands are known."""
    jaxpr = traced.jaxpr
    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*traced.consts, *args], strict=True))
    message_of = {eqn.outvars[0]: message for message in messages for eqn in message}

    def known(atom):
        return isinstance(atom, Literal) or atom in env

    def read(atom):
        return atom.val if isinstance(atom, Literal) else env[atom]

    waiting = list(jaxpr.eqns)
    while waiting:
        postponed = []
        for eqn in waiting:
            message = message_of.get(eqn.outvars[0], [eqn])
            if eqn.outvars[0] in env:
                continue  # it went with a message
            if not all(known(v) for member in message for v in member.invars):
                postponed.append(eqn)
            elif eqn.outvars[0] in message_of:
                operands = [read(member.invars[0]) for member in message]
                results = _send_packed(message, operands, options)
                env.update(zip([m.outvars[0] for m in message], results, strict=True))
            else:
                out = jax_compat.bind_equation(eqn, [read(v) for v in eqn.invars])
                outs = out if eqn.primitive.multiple_results else [out]
                env.update(zip(eqn.outvars, outs, strict=True))
        assert len(postponed) < len(waiting), "messages that wait for each other"
        waiting = postponed
    return [read(v) for v in jaxpr.outvars]


def _send_packed(message: Message, operands: list[Any], options: Options) -> list[Any]:
    """The results of the equations of one message, through one collective of ours."""
    collective = primitive.replacement(message[0])
    assert collective is not None
    if len(message) == 1:
        return [primitive.bind_ours(message[0], operands, options)]

    group = Group.of(message[0].params)
    flat = [
        collective.flatten(x, group, eqn.params) for x, eqn in zip(operands, message, strict=True)
    ]
    together = lax.concatenate(flat, flat[0].ndim - 1)
    params = message[0].params | collective.flat_params
    results = collective.primitive.bind(together, options=options, **params)
    pieces = lax.split(results, [x.shape[-1] for x in flat], axis=results.ndim - 1)
    return [
        collective.restore(piece, x.shape, group, eqn.params)
        for piece, x, eqn in zip(pieces, operands, message, strict=True)
    ]
