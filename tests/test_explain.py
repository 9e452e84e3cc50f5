"""What `explain` lists of a function, against what the function does."""

import functools
import html
import re

import data
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from programs import gaussian, mesh_of, sharded

import jax_uzip
from jax_uzip import Options
from jax_uzip._src import codec, tiers

MANY = 8 << 15  # float32 values: 128 KiB a device, over the threshold


def short(explanation):
    return [(e.name, e.times, e.times_known, e.compress) for e in explanation.entries]


def gather(x):
    return lax.all_gather(x, "x", tiled=True)


def shapes(*arrays):
    return [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]


# ---- one collective ----------------------------------------------------------------------------


@pytest.mark.parametrize("jitted", [True, False])
@pytest.mark.parametrize("kind", ["gaussian", "zeros", "random_bits"])
def test_name_axis_dtype_shape_bytes_and_reason(kind, jitted):
    mesh = mesh_of(x=4, y=2)
    f = sharded(gather, mesh, in_specs=P(("x", "y")), out_specs=P("y"), check_vma=False)
    x = data.make(kind, "bfloat16", 2 * MANY).reshape(-1, 4)
    (entry,) = jax_uzip.explain(jax.jit(f) if jitted else f, x).entries
    assert entry.name == "all_gather"
    assert entry.axis == ("x",)
    assert (entry.dtype, entry.shape) == ("bfloat16", (MANY // 16, 4))
    assert (entry.times, entry.times_known) == (1, True)
    assert (entry.compress, entry.reason) == (True, f"bfloat16, {MANY // 2} bytes")
    assert entry.bytes_before == MANY // 2

    parts = jnp.asarray(x.reshape(4, 2, -1).swapaxes(0, 1))
    need = [int(codec.encode_rows(part)[1].max()) for part in parts]  # of each group along "x"
    sizes = [*tiers.payload_sizes(MANY // 4, np.dtype("bfloat16"), Options()), MANY // 2]
    assert entry.bytes_after == np.mean(
        [min((s for s in sizes if s >= n), default=sizes[-1]) for n in need]
    )


def test_without_values_the_bytes_after_are_unknown():
    f = sharded(lambda x: gather(x) + gather(x[:1]).sum(), mesh_of(x=8))
    explanation = jax_uzip.explain(f, *shapes(gaussian(MANY)))
    assert [e.bytes_after for e in explanation.entries] == [None, 4]
    assert explanation.bytes_after is None
    assert explanation.bytes_before == MANY // 2 + 4


REFUSALS = {
    "4 bytes are under min_bytes=65536": lambda x: lax.psum(x.sum(), "x"),
    "int32 is not a dtype that the codec compresses": lambda x: lax.psum(x.astype(jnp.int32), "x"),
    "pmax has no compressed form": lambda x: lax.pmax(x, "x"),
    "all_gather_invariant has no compressed form": lambda x: lax.all_gather(x, "x", to="invarying"),
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals(reason):
    f = jax.jit(sharded(REFUSALS[reason], mesh_of(x=8), out_specs=P()))
    (entry,) = jax_uzip.explain(f, gaussian(MANY)).entries
    assert (entry.compress, entry.reason) == (False, reason)
    assert entry.bytes_after == entry.bytes_before


def test_partial_manual_and_groups():
    f = jax.shard_map(
        gather, mesh=mesh_of(x=4, y=2), in_specs=P("x"), out_specs=P("x"), axis_names={"x"}
    )
    (entry,) = jax_uzip.explain(jax.jit(f), *shapes(gaussian(MANY))).entries
    assert entry.reason == "the partitioner still owns mesh axis y (partial-manual shard_map)"
    uneven = sharded(
        lambda x: lax.psum(x, "x", axis_index_groups=[[0, 1, 2], [3, 4, 5, 6, 7]]),
        mesh_of(x=8),
        check_vma=False,
    )
    (entry,) = jax_uzip.explain(uneven, *shapes(gaussian(MANY))).entries
    assert entry.reason == "axis_index_groups are of different sizes"


def test_options_are_those_of_the_flag():
    f, x = sharded(gather, mesh_of(x=8)), gaussian(64)
    assert short(jax_uzip.explain(f, x)) == [("all_gather", 1, True, False)]
    with jax_uzip.enabled(Options(min_bytes=0)):
        assert short(jax_uzip.explain(f, x)) == [("all_gather", 1, True, True)]


# ---- inside of others --------------------------------------------------------------------------


def scan(x):
    return lax.scan(lambda c, _: (gather(c)[: c.size] * 2, None), x, length=5)[0]


def scan_of_scan(x):
    return lax.scan(lambda c, _: (scan(c), None), x, length=3)[0]


def cond(x):
    return lax.cond(x.sum() > 0, lambda x: gather(x)[: x.size], lambda x: x, x)


def while_loop(x):
    return lax.while_loop(
        lambda c: lax.pmax(c.sum(), "x") > 1e9, lambda c: gather(c)[: c.size] * 2, x
    )


@jax.custom_vjp
def custom(x):
    return gather(x)


custom.defvjp(lambda x: (gather(x), None), lambda _, ct: (lax.psum_scatter(ct, "x", tiled=True),))


def inner_jit(x):
    f = jax.jit(lambda x: gather(x)[: x.size])
    return f(f(x))


INSIDE = {
    "scan": (scan, [("all_gather", 5, True, True)]),
    "scan of scan": (scan_of_scan, [("all_gather", 15, True, True)]),
    "cond": (cond, [("all_gather", 1, False, True)]),
    "while": (while_loop, [("pmax", 1, False, False), ("all_gather", 1, False, True)]),
    "custom_vjp": (custom, [("all_gather", 1, True, True)]),
    "grad of custom_vjp": (
        lambda x: jax.grad(lambda x: (custom(x) ** 2).sum())(x),
        [("all_gather", 1, True, True), ("psum_scatter", 1, True, True)],
    ),
    "inner jit, twice": (inner_jit, [("all_gather", 2, True, True)]),
    "checkpoint": (
        lambda x: jax.grad(jax.checkpoint(lambda x: jnp.sin(gather(x)).sum()))(x),
        [("all_gather", 2, True, True), ("psum_scatter", 1, True, True)],
    ),
    "vmap": (
        lambda x: jax.vmap(gather)(x.reshape(4, -1)).reshape(-1),
        [("all_gather", 1, True, True)],
    ),
    "explicit": (
        lambda x: jax_uzip.all_gather(x, "x", tiled=True),
        [("all_gather", 1, True, True)],
    ),
    "pvary sends nothing": (
        lambda x: x + jax_uzip.pvary(jnp.ones(1 << 15), "x").sum() + lax.axis_index("x"),
        [],
    ),
}


@pytest.mark.parametrize("inside", INSIDE)
def test_inside_of(inside):
    f, expected = INSIDE[inside]
    explanation = jax_uzip.explain(jax.jit(sharded(f, mesh_of(x=8))), *shapes(gaussian(MANY)))
    assert short(explanation) == expected


@pytest.mark.parametrize("call", ["all_gather", "psum"])
def test_a_call_of_ours_went_through_the_gate_with_options_of_its_own(call):
    """It is in the program, so it is compressed: the gate of the defaults would refuse its size."""
    own = Options(min_bytes=0, tiers=[0.9])
    f = sharded(
        lambda x: getattr(jax_uzip, call)(x, "x", options=own), mesh_of(x=8), check_vma=False
    )
    (entry,) = jax_uzip.explain(f, gaussian(64, 8)).entries
    assert (entry.name, entry.compress, entry.reason) == (call, True, "float32, 256 bytes")


def test_the_gradients_that_jax_sums_are_listed():
    loss = sharded(
        lambda w, x: lax.pmean((x @ w).sum(), "x"),
        mesh_of(x=8),
        in_specs=(P(), P("x")),
        out_specs=P(),
    )
    explanation = jax_uzip.explain(jax.grad(loss), gaussian(256, 256), gaussian(64, 256))
    weights = [e for e in explanation.entries if e.compress]
    assert [(e.name, e.shape) for e in weights] == [("psum", (256, 256))]
    assert 0 < weights[0].bytes_after < 0.9 * weights[0].bytes_before


def test_pmap():
    f = jax.pmap(lambda x: lax.psum(x, "i"), axis_name="i")
    (entry,) = jax_uzip.explain(f, gaussian(8, 1 << 15)).entries
    assert (entry.name, entry.axis, entry.shape) == ("psum", ("i",), (1 << 15,))
    assert entry.compress


def test_a_collective_that_never_runs_has_no_bytes_after():
    f = jax.jit(
        sharded(lambda x: lax.cond(x[0] > 1e9, gather, lambda x: jnp.tile(x, 8), x), mesh_of(x=8))
    )
    (entry,) = jax_uzip.explain(f, gaussian(MANY)).entries
    assert entry.compress
    assert entry.bytes_after is None


# ---- how it calls the function -------------------------------------------------------------------


def test_arguments_that_are_donated_survive():
    f = jax.jit(sharded(lambda x: gather(x)[: x.size], mesh_of(x=8)), donate_argnums=0)
    x = gaussian(MANY)
    assert jax_uzip.explain(f, x).entries[0].bytes_after
    assert x.sum() == x.sum()  # not deleted


def test_static_and_keyword_arguments():
    @functools.partial(jax.jit, static_argnames="tiled")
    def f(x, tiled):
        return sharded(lambda x: lax.all_gather(x, "x", tiled=tiled).sum()[None], mesh_of(x=8))(x)

    for arguments, keywords in (((), {"tiled": True}), ((False,), {})):
        assert len(jax_uzip.explain(f, gaussian(MANY), *arguments, **keywords).entries) == 1
    of_a_tree = lambda tree, how: f(tree["x"], how == "tiled")
    assert len(jax_uzip.explain(of_a_tree, {"x": gaussian(MANY)}, "tiled").entries) == 1


def test_the_programs_of_a_function_stay_as_they_were():
    f = jax.jit(sharded(gather, mesh_of(x=8)))
    x = gaussian(MANY)
    before = f.lower(x).as_text()
    jax_uzip.explain(f, x)
    assert f.lower(x).as_text() == before
    assert "uzip" not in before


def test_errors_are_those_of_the_function():
    with pytest.raises(NameError, match="unbound axis name: x"):
        jax_uzip.explain(gather, gaussian(8))


# ---- how it looks ------------------------------------------------------------------------------


def test_as_text_and_html():
    f = jax.jit(sharded(lambda x: while_loop(x) + lax.psum(x.sum(), "x"), mesh_of(x=8)))
    explanation = jax_uzip.explain(f, *shapes(gaussian(MANY)))
    header, rule, *rows = str(explanation).splitlines()
    assert header == "collective  axis  operand         times    bytes  after  saved  why"
    assert set(rule) == {"-"}
    assert [" ".join(row.split()) for row in rows[:2]] == [
        "pmax x float32[] ~1 4 - - jax.lax: pmax has no compressed form",
        "all_gather x float32[32768] ~1 131,072 ? ? compressed",
    ]
    assert "a device sends 131,080 bytes in a call" in rows
    assert "~ in a while_loop or a branch of a cond: each counted as run once" in rows
    page = explanation._repr_html_()
    assert [html.unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", page)][:3] == [
        *("pmax", "x", "float32[]")
    ]
    assert page.count("<tr>") == 4


def test_the_total_says_what_is_saved():
    explanation = jax_uzip.explain(sharded(gather, mesh_of(x=8)), jnp.zeros(MANY))
    after = explanation.bytes_after
    assert after is not None
    assert after < 0.05 * explanation.bytes_before == 0.05 * 131072
    line = f"a device sends 131,072 bytes in a call, compressed {after:,.0f}: {1 - after / 131072:.1%} less"
    assert line in str(explanation)
    assert line in explanation._repr_html_()


def test_nothing_to_explain():
    explanation = jax_uzip.explain(lambda x: x + 1, 1)
    assert explanation.entries == ()
    assert str(explanation).startswith("no collectives of jax.lax or jax_uzip")
    assert explanation._repr_html_().startswith("<p>no collectives")
