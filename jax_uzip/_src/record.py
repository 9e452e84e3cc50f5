"""Counts what collectives really send, while somebody wants to know.

A program lowered while a recorder listens calls it back whenever a device has sent a message: it costs a
call into Python each time.  No other program holds anything of this.
"""

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.interpreters import mlir

from jax_uzip._src import jax_compat
from jax_uzip._src.axis import Group


class Collective(NamedTuple):
    """What collectives have in common that are counted together.  Shapes are those of one device."""

    name: str
    axis: tuple[Hashable, ...]
    dtype: str
    shape: tuple[int, ...]


def describe(name: str, aval: Any, params: Any) -> Collective:
    """The description of an equation, from its operand's type and its parameters."""
    return Collective(name, Group.of(params).axes, aval.dtype.name, tuple(aval.shape))


@dataclasses.dataclass
class Sent:
    """What the devices of this process sent, together.

    Attributes:
      calls: how often a device took part.
      raw_bytes: what went out, before compression.
      sent_bytes: the payloads that travelled instead.
    """

    calls: int = 0
    raw_bytes: int = 0
    sent_bytes: int = 0


class Recorder:
    """What was heard so far.

    Attributes:
      sent: by compressed collective; empty ones were lowered and have not run.
      refused: the gate's reason, by collective left to `jax.lax`.
    """

    def __init__(self):
        self.sent: dict[Collective, Sent] = {}
        self.refused: dict[Collective, str] = {}
        self._lock = threading.Lock()

    def count(self, collective: Collective, calls: int, raw_bytes: int, sent_bytes: int) -> None:
        """Adds one message of one device."""
        with self._lock:
            sent = self.sent[collective]
            sent.calls += calls
            sent.raw_bytes += raw_bytes
            sent.sent_bytes += sent_bytes


# Made when the module is imported, since making one is not thread-safe.
_listening = jax.make_user_context(None)


@contextlib.contextmanager
def listen(recorder: Recorder) -> Iterator[None]:
    """Programs lowered inside of the block, by this thread, report to `recorder`."""
    with _listening(recorder):
        yield


def listen_everywhere(recorder: Recorder | None) -> None:
    """Programs lowered from now on, by any thread, report to `recorder`, or to nobody."""
    _listening.set_global(recorder)


def refuse(name: str, aval: Any, params: Any, reason: str) -> None:
    """Says that a collective is left to `jax.lax`."""
    if (recorder := _listening.value) is not None:
        recorder.refused.setdefault(describe(name, aval, params), reason)


# ---- while a program is lowered -----------------------------------------------------------------


@dataclasses.dataclass
class _Lowering:
    """A collective that is lowered in its composed form.

    Attributes:
      counted: what it is counted as, or None.
      messages: how many of its messages were seen so far.
    """

    counted: Collective | None = None
    messages: int = 0


class _Thread(threading.local):
    lowering: _Lowering | None = None


_thread = _Thread()


def in_composed_form() -> bool:
    """Whether this thread lowers a collective of ours, whose bytes JAX's own carry."""
    return _thread.lowering is not None


def lowering(name: str, composed: Callable) -> Callable:
    """The lowering rule of a collective in its composed form, whose messages are counted."""
    lower = mlir.lower_fun(composed, multiple_results=False)

    def rule(ctx, *operands, **params):
        lowering, outer = _Lowering(), _thread.lowering
        recorder = _listening.value
        if recorder is not None and jax_compat.may_call_back(ctx):
            lowering.counted = describe(name, ctx.avals_in[0], params)
        _thread.lowering = lowering
        try:
            return lower(ctx, *operands, **params)
        finally:
            _thread.lowering = outer

    return rule


def message(raw_bytes: int) -> Callable[[int], None]:
    """Begins a message of `raw_bytes`; where its payload's size is known, call the result with it."""
    recorder, lowering = _listening.value, _thread.lowering
    if recorder is None or lowering is None or lowering.counted is None:
        return lambda sent_bytes: None
    recorder.sent.setdefault(lowering.counted, Sent())
    calls = 1 if lowering.messages == 0 else 0  # a collective may send several
    lowering.messages += 1
    count = functools.partial(recorder.count, lowering.counted, calls, raw_bytes)
    return lambda sent_bytes: jax.debug.callback(functools.partial(count, sent_bytes))


# ---- waiting -----------------------------------------------------------------------------------


def wait() -> None:
    """Returns when all programs started before have run, so that nothing is left to be heard.

    `jax.effects_barrier` knows nothing of these: the effect is ours, not the traced function's.  But
    programs with collectives run one after another, so that one of our own comes last.
    """
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # of a program that failed, already told
        jax.effects_barrier()
        jax.block_until_ready(jax.live_arrays())
    devices = jax.local_devices()
    mesh = jax.sharding.Mesh(devices, ("all",), axis_types=(jax.sharding.AxisType.Auto,))
    last = jax.shard_map(
        lambda x: jax.lax.pmax(x, "all"), mesh=mesh, in_specs=jax.P("all"), out_specs=jax.P()
    )
    jax.block_until_ready(jax.jit(last)(np.zeros(len(devices), np.int32)))
