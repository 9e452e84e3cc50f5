"""`jax_uzip.psum_scatter` against a serial sum in rank order, to the bit, and against `jax.lax`."""

import functools
import inspect

import data
import jax
import jax.numpy as jnp
import numpy as np
import programs
import pytest
from jax import lax
from programs import (
    MESHES,
    ORDERS,
    SMALL,
    assert_equal,
    assert_same_bits,
    checked,
    gaussian,
    integers,
    mesh_in_order,
    mesh_of,
    ours_in,
    sharded,
)

import jax_uzip
from jax_uzip import Options
from jax_uzip._src import native, tiers

ours = functools.partial(jax_uzip.psum_scatter, options=SMALL)


def on_last(g):
    """Keeps what comes before the last dimension, as the transformations want it."""
    return lambda x, axis="x": g(x, axis, scatter_dimension=x.ndim - 1, tiled=True)


def on_first(g):
    return lambda x, axis: g(x, axis, tiled=True)


def test_the_signature_is_that_of_jax_plus_options():
    *same, options = inspect.signature(jax_uzip.psum_scatter).parameters.values()
    theirs = inspect.signature(lax.psum_scatter).parameters.values()
    assert [(p.name, p.kind, p.default) for p in same] == [
        (p.name, p.kind, p.default) for p in theirs
    ]
    assert options.name == "options"


# ---- the bits of a serial sum in rank order ----------------------------------------------------


@pytest.mark.parametrize("dtype", native.dtypes(), ids=lambda d: d.name)
def test_every_dtype_and_special_value(dtype, x64_for):
    with x64_for(dtype):
        f = jax.jit(sharded(lambda x: ours(x[0], "x", tiled=True), mesh_of(x=4)))
        for kind in data.KINDS:
            rows = np.stack([data.make(kind, dtype, 4 * 257, rank) for rank in range(4)])
            assert_same_bits(f(rows), data.serial_sum(rows).view(dtype))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_any_order_of_devices_and_again(dtype):
    rows = np.stack([data.make("rows_of_own_scales", dtype, 2400, rank) for rank in range(8)])
    for order in ORDERS:
        ranks = len(order)
        f = jax.jit(sharded(lambda x: ours(x[0], "x", tiled=True), mesh_in_order(order)))
        want = data.serial_sum(rows[:ranks])
        for _ in range(2):
            assert_same_bits(f(rows[:ranks]), want)


# ---- as jax.lax ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("axes", "name"), MESHES, ids=str)
@checked
def test_meshes(axes, name, check_vma):
    mesh = mesh_of(**axes)
    names = name if isinstance(name, tuple) else (name,)
    size = int(np.prod([axes[n] for n in names]))
    x = integers(mesh.size * size, 2 * size, size)

    def on_all_axes(g):
        def f(x):
            tiled = [g(x, name, scatter_dimension=d, tiled=True) for d in (0, 1)]
            stacked = [g(x, name, scatter_dimension=d) for d in (0, 2, -1)]
            return jax.tree.map(lambda x: x[None], tiled + stacked)

        return sharded(f, mesh, check_vma=check_vma)

    assert ours_in(on_all_axes(ours), x) == ["uzip_psum_scatter"] * 5
    assert_equal(*(jax.jit(on_all_axes(g))(x) for g in (ours, lax.psum_scatter)))


@pytest.mark.parametrize("tiled", [True, False], ids=["tiled", "stacked"])
@checked
def test_leaves_of_one_dtype_travel_together(tiled, check_vma):
    tree = {
        "kernel": integers(64, 8, 6),
        "bias": integers(64),
        "half": [integers(64, 3, dtype="bfloat16"), integers(64, dtype="bfloat16")],
        "step": jnp.arange(64),
        "none": None,
    }
    f, reference = (
        sharded(
            lambda t, g=g: jax.tree.map(lambda x: x[None], g(t, "x", tiled=tiled)),
            mesh_of(x=8),
            check_vma=check_vma,
        )
        for g in (ours, lax.psum_scatter)
    )
    assert ours_in(f, tree) == ["uzip_psum_scatter"] * 2
    assert_equal(jax.jit(f)(tree), jax.jit(reference)(tree))


def test_axis_index_groups():
    rows = np.stack([data.make("gaussian", "float32", 100, rank) for rank in range(8)])
    groups = [[0, 3, 5, 6], [7, 1, 4, 2]]
    f = lambda x: ours(x[0], "x", axis_index_groups=groups, tiled=True)[None]
    got = np.asarray(jax.jit(sharded(f, mesh_of(x=8), check_vma=False))(rows))
    for group in groups:
        assert_same_bits(got[group].reshape(-1), data.serial_sum(rows[group]))


@programs.transformations()
@checked
def test_transformations(transformation, check_vma):
    programs.assert_transforms_alike(
        transformation, on_last(ours), on_last(lax.psum_scatter), check_vma
    )


@programs.transformations(programs.EAGER)
@checked
def test_eager(transformation, check_vma):
    programs.assert_transforms_alike(
        transformation, on_last(ours), on_last(lax.psum_scatter), check_vma, jit=lambda f: f
    )


@checked
def test_the_gradient_is_a_compressed_all_gather(check_vma):
    f = jax.grad(lambda x: jnp.sum(ours(x, "x", tiled=True) ** 2))
    traced = jax.make_jaxpr(sharded(f, mesh_of(x=4), check_vma=check_vma))(integers(16, 6))
    names = programs.primitives(traced.jaxpr)
    assert names.count("uzip_all_gather") == 1
    assert "all_gather" not in names
    assert str(traced).count(str(SMALL)) == 2


def test_the_gradient_of_a_large_message_may_be_too_small():
    """The cotangent of each device is an eighth of what it sent."""

    def f(x):
        return jax.grad(lambda x: jnp.sum(jax_uzip.psum_scatter(x, "x", tiled=True) ** 2))(x)

    assert ours_in(sharded(f, mesh_of(x=8)), gaussian(8 * 16384)) == ["uzip_psum_scatter"]
    assert ours_in(sharded(f, mesh_of(x=8)), gaussian(64 * 16384)) == [
        "uzip_psum_scatter",
        "uzip_all_gather",
    ]


def test_pmap():
    x = integers(8, 8)
    assert_equal(
        *(
            jax.pmap(lambda x, g=g: g(x, "i"), axis_name="i")(x)
            for g in (on_first(ours), on_first(lax.psum_scatter))
        )
    )


# ---- what goes to jax.lax untouched --------------------------------------------------------------


@programs.fallbacks("bool")
def test_falls_back_to_lax(why):
    programs.assert_falls_back(why, on_first(ours), on_first(lax.psum_scatter))


@programs.OPTIONS_THAT_REFUSE
def test_options_send_to_lax(options):
    g = functools.partial(jax_uzip.psum_scatter, options=options)
    f, reference = (
        sharded(lambda x, g=g: g(x, "x", tiled=True), mesh_of(x=8)) for g in (g, lax.psum_scatter)
    )
    programs.assert_same_program(f, reference, gaussian(8 * 64))


MISUSE = {
    "unknown axis": (lambda g, x: g(x, "nope"), True),
    "dimension out of range": (lambda g, x: g(x, "x", scatter_dimension=3), True),
    "not divisible": (lambda g, x: g(x[:7], "x", tiled=True), True),
    "not the number of devices": (lambda g, x: g(x[:4], "x"), True),
    "not an array": (lambda g, x: g(["text", x], "x"), True),
}


@pytest.mark.parametrize("misuse", MISUSE)
def test_errors_are_those_of_lax(misuse):
    call, check_vma = MISUSE[misuse]
    programs.assert_ends_alike(call, ours, lax.psum_scatter, check_vma)


# ---- bytes moved -------------------------------------------------------------------------------


def test_every_payload_size_is_there_once_and_raw_is_the_largest(sizes_taken):
    n = 1 << 19
    f = jax.jit(sharded(lambda x: jax_uzip.psum_scatter(x[0], "x", tiled=True), mesh_of(x=8)))
    part = n // 8
    float32 = np.dtype("float32")
    sizes = [*tiers.payload_sizes(part, float32, Options()), 4 * part]
    hlo = f.lower(jax.ShapeDtypeStruct((8, n), float32)).compile().as_text()
    assert programs.bytes_of(hlo, "all-to-all") == [8 * size for size in sizes]
    for kind, limit in (("gaussian", 0.86), ("zeros", 0.05), ("random_bits", 1.01)):
        sizes_taken.clear()
        rows = np.stack([data.make(kind, float32, n, rank) for rank in range(8)])
        jax.block_until_ready(f(rows))
        jax.effects_barrier()
        assert max(sizes_taken) <= limit * 4 * part, kind
