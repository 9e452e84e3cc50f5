"""`explain`: every collective of a function, what becomes of it, and what that saves."""

import dataclasses
import html
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.core import Tracer
from jax.extend.core import JaxprEqn, jaxprs_in_params

from jax_uzip._src import drop_in, gate, jax_compat, record, tables
from jax_uzip._src.collectives.primitive import collectives, decide_message, public_name
from jax_uzip._src.options import Options, default

# ---- public ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Entry:
    """Collectives of one kind: of the same name, axis, dtype and shape, with the same fate.

    Attributes:
      name: of the function of `jax.lax`.
      axis: the mesh axes that it communicates along.
      dtype: of the operand.
      shape: of the operand, on one device.
      times: how often a call of the function runs it; what is in the body of a `while_loop` counts
        once, and so does what is in a branch of a `cond`.
      times_known: whether `times` is that number, and not a guess because of a `while_loop` or `cond`.
      compress: whether it goes compressed.
      reason: why, or why not.
      bytes_before: of one operand.
      bytes_after: what travels instead for the given values, on average over its runs; equal to
        `bytes_before` if it is not compressed, and `None` if there were no values, or it never ran.
    """

    name: str
    axis: tuple[Any, ...]
    dtype: str
    shape: tuple[int, ...]
    times: int
    times_known: bool
    compress: bool
    reason: str
    bytes_before: int
    bytes_after: float | None


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What `explain` found; `print` shows it as a table, and a notebook as an HTML one."""

    entries: tuple[Entry, ...]

    @property
    def bytes_before(self) -> int:
        """What one device sends in a call of the function, uncompressed."""
        return sum(entry.times * entry.bytes_before for entry in self.entries)

    @property
    def bytes_after(self) -> float | None:
        """What it sends compressed, for the given values; `None` where that is not known of all."""
        after = [
            None if entry.bytes_after is None else entry.times * entry.bytes_after
            for entry in self.entries
        ]
        return None if None in after else sum(filter(None, after))

    def __str__(self) -> str:
        if not self.entries:
            return "\n".join(self._notes())
        table = tables.text(_HEADER, [*map(_cells, self.entries)], left=_LEFT)
        return "\n".join([table, "", *self._notes()])

    def _repr_html_(self) -> str:
        def row(cells, tag):
            return "".join(
                f'<{tag} style="text-align:{"left" if column in _LEFT else "right"}">'
                f"{html.escape(cell)}</{tag}>"
                for column, cell in enumerate(cells)
            )

        body = "".join(f"<tr>{row(_cells(entry), 'td')}</tr>" for entry in self.entries)
        table = f"<table><thead><tr>{row(_HEADER, 'th')}</tr></thead><tbody>{body}</tbody></table>"
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self._notes())
        return table + notes if self.entries else notes

    def _notes(self) -> list[str]:
        if not self.entries:
            return ["no collectives of jax.lax or jax_uzip; those of the partitioner are not seen"]
        before, after = self.bytes_before, self.bytes_after
        total = f"a device sends {before:,} bytes in a call"
        if after is not None:
            total += f", compressed {after:,.0f}"
            total += f": {1 - after / before:.1%} less" if before else ""
        notes = [total]
        if not all(entry.times_known for entry in self.entries):
            notes.append("~ in a while_loop or a branch of a cond: each counted as run once")
        return notes


def explain(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Lists every collective of a function, whether it goes compressed under `enable`, and why.

    The function is traced for the arguments.  If they are all values, and none a `jax.ShapeDtypeStruct`,
    it is also called once with copies of them, to see what its messages compress to.  Options are those
    of the drop-in flag where it is on, else the defaults of the process.

    Seen are the collectives of `jax.lax` and of `jax_uzip`, with those that JAX adds when it transposes
    (explain the gradient of a function to see those of its backward pass); not seen are those that the
    partitioner of XLA puts into a program whose mesh axes are not manual.

    Args:
      fun: a function, jitted or not.
      *args: positional arguments.
      **kwargs: keyword arguments.

    Returns:
      `Explanation`.

    >>> mesh = jax.make_mesh((8,), ("x",))
    >>> gather = jax.shard_map(
    ...     lambda weights: jax.lax.all_gather(weights, "x", tiled=True),
    ...     mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"),
    ... )
    >>> explanation = jax_uzip.explain(gather, jnp.zeros((8 << 15, 4)))
    >>> [(entry.name, entry.compress) for entry in explanation.entries]
    [('all_gather', True)]
    """
    options = drop_in.current() or default()
    jaxpr = _trace(fun, args, kwargs)
    sent = _run(fun, args, kwargs, options) if _has_values((args, kwargs)) else {}
    entries: dict[Any, Entry] = {}
    for found in _walk(jaxpr, options, times=1, known=True):
        entry = _with_bytes_after(found, sent)
        kind = dataclasses.replace(entry, times=0)
        times = entry.times + (entries[kind].times if kind in entries else 0)
        entries[kind] = dataclasses.replace(entry, times=times)
    return Explanation(tuple(entries.values()))


# ---- tracing -----------------------------------------------------------------------------------


def _trace(fun: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    if trace := getattr(fun, "trace", None):  # jitted: it knows which of its arguments are static
        return trace(*args, **kwargs).jaxpr.jaxpr
    leaves, treedef = jax.tree.flatten((args, kwargs))
    traced = [i for i, leaf in enumerate(leaves) if _is_typed(leaf)]

    def of_arrays(*arrays):
        merged = list(leaves)
        for i, array in zip(traced, arrays, strict=True):
            merged[i] = array
        args, kwargs = jax.tree.unflatten(treedef, merged)
        return fun(*args, **kwargs)

    return jax.make_jaxpr(of_arrays)(*(leaves[i] for i in traced)).jaxpr


def _is_typed(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and hasattr(leaf, "shape")


def _walk(jaxpr: Any, options: Options, times: int, known: bool) -> Iterator[Entry]:
    """The collectives of a traced function, in its order, those inside of others included."""
    for eqn in jaxpr.eqns:
        inner = list(jaxprs_in_params(eqn.params))
        if inner:
            repeats = eqn.params["length"] if eqn.primitive.name == "scan" else 1
            surely = eqn.primitive.name not in ("while", "cond")
            for sub in inner:
                yield from _walk(
                    getattr(sub, "jaxpr", sub), options, times * repeats, known and surely
                )
        elif jax_compat.communicates(eqn):
            with jax_compat.standing_at(eqn):
                yield _entry(eqn, options, times, known)


def _entry(eqn: JaxprEqn, options: Options, times: int, known: bool) -> Entry:
    aval: Any = eqn.invars[0].aval
    kind = record.describe(public_name(eqn.primitive), aval, eqn.params)
    decision = _decide(eqn, aval, options)
    nbytes = aval.size * aval.dtype.itemsize
    return Entry(*kind, times, known, *decision, bytes_before=nbytes, bytes_after=None)


def _decide(eqn: JaxprEqn, aval: Any, options: Options) -> gate.Decision:
    ours = {collective.primitive for collective in collectives().values()}
    if eqn.primitive not in ours | collectives().keys():
        return gate.Decision(False, f"{eqn.primitive.name} has no compressed form")
    on_platform = gate.decide_platform([jax.default_backend()])
    if not on_platform.compress:
        return on_platform
    if eqn.primitive in ours:  # the gate has let it pass already
        return gate.accept(gate.Message(aval.dtype, aval.size))
    return decide_message(eqn.primitive, [aval], eqn.params, options)


# ---- running -----------------------------------------------------------------------------------


def _has_values(tree: Any) -> bool:
    return not any(
        isinstance(leaf, jax.ShapeDtypeStruct | Tracer) for leaf in jax.tree.leaves(tree)
    )


def _run(fun: Callable[..., Any], args: Any, kwargs: Any, options: Options):
    """Calls the function with copies, which it may keep, and returns what was sent."""
    copy = lambda leaf: leaf.copy() if isinstance(leaf, jax.Array) else leaf
    args, kwargs = jax.tree.map(copy, (args, kwargs))
    recorder = record.Recorder()
    with drop_in.enabled(options), record.listen(recorder):
        jax.block_until_ready(fun(*args, **kwargs))
        record.wait()
    return recorder.sent


def _with_bytes_after(entry: Entry, sent: dict[record.Collective, record.Sent]) -> Entry:
    if not entry.compress:
        return dataclasses.replace(entry, bytes_after=float(entry.bytes_before))
    found = sent.get(record.Collective(entry.name, entry.axis, entry.dtype, entry.shape))
    if not found or not found.raw_bytes:
        return entry
    after = entry.bytes_before * found.sent_bytes / found.raw_bytes
    return dataclasses.replace(entry, bytes_after=after)


# ---- how it looks ------------------------------------------------------------------------------

_HEADER = ("collective", "axis", "operand", "times", "bytes", "after", "saved", "why")
_LEFT = (0, 1, 2, 7)


def _cells(entry: Entry) -> tuple[str, ...]:
    after = saved = "-"
    if entry.compress and entry.bytes_after is not None:
        after = f"{entry.bytes_after:,.0f}"
        saved = f"{1 - entry.bytes_after / entry.bytes_before:.1%}"
    elif entry.compress:
        after = saved = "?"
    return (
        entry.name,
        ",".join(map(str, entry.axis)),
        tables.array(entry.dtype, entry.shape),
        f"{entry.times}" if entry.times_known else f"~{entry.times}",
        f"{entry.bytes_before:,}",
        after,
        saved,
        "compressed" if entry.compress else f"jax.lax: {entry.reason}",
    )
