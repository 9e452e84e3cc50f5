"""`jax_uzip.all_to_all` against `jax.lax.all_to_all`, bit for bit."""

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

ours = functools.partial(jax_uzip.all_to_all, options=SMALL)


def on_last(g):
    """Keeps the shape, as the transformations want it."""
    return lambda x, axis="x": g(x, axis, x.ndim - 1, x.ndim - 1, tiled=True)


def on_first(g):
    return lambda x, axis: g(x, axis, 0, 0, tiled=True)


def test_the_signature_is_that_of_jax_plus_options():
    *same, options = inspect.signature(jax_uzip.all_to_all).parameters.values()
    theirs = inspect.signature(lax.all_to_all).parameters.values()
    assert [(p.name, p.kind, p.default) for p in same] == [
        (p.name, p.kind, p.default) for p in theirs
    ]
    assert options.name == "options"


@pytest.mark.parametrize("dtype", data.DTYPES)
def test_every_dtype_keeps_every_bit(dtype, x64_for):
    """The reference is the input: XLA's own collectives lose NaN payloads on the CPU."""
    dtype = data.DTYPES[dtype]
    kinds = data.KINDS if dtype in native.dtypes() else ["uniform"]
    with x64_for(dtype):
        f = jax.jit(sharded(lambda x: ours(x, "x", 0, 1), mesh_of(x=8)))
        for kind in kinds:
            x = data.make(kind, dtype, 8 * 8 * 8192 // 8).reshape(8, 8, -1)
            got = np.asarray(f(x.reshape(64, -1))).reshape(8, -1, 8)
            assert_same_bits(got, np.moveaxis(x.transpose(1, 0, 2), 1, 2).copy())


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", "complex64"])
def test_leaves_of_a_tree_keep_every_bit(dtype):
    for kind in ("special", "random_bits"):
        xs = [data.make(kind, dtype, 64 * n).reshape(8, 8, n) for n in (1, 3, 129)]
        f = jax.jit(
            sharded(lambda xs: ours([x[0] for x in xs], "x", 0, 0, tiled=True), mesh_of(x=8))
        )
        assert_same_bits(f(xs), [x.transpose(1, 0, 2).reshape(64, -1).copy() for x in xs])


@pytest.mark.parametrize(("axes", "name"), MESHES, ids=str)
@checked
def test_meshes(axes, name, check_vma):
    mesh = mesh_of(**axes)
    names = name if isinstance(name, tuple) else (name,)
    K = int(np.prod([axes[n] for n in names]))
    x = gaussian(mesh.size * K, K, K)

    def on_all_axes(g):
        def f(x):
            out = [g(x, name, *axes, tiled=True) for axes in ((0, 2), (1, 0), (0, 0))]
            return [y[None] for y in [*out, *(g(x, name, *axes) for axes in ((2, 1), (0, 1)))]]

        return sharded(f, mesh, check_vma=check_vma)

    assert ours_in(on_all_axes(ours), x) == ["uzip_all_to_all"] * 5
    assert_same_bits(*(jax.jit(on_all_axes(g))(x) for g in (ours, lax.all_to_all)))


@pytest.mark.parametrize("order", ORDERS)
def test_permuted_and_partial_meshes(order):
    x = gaussian(len(order) ** 2, 3)
    f, reference = (
        sharded(functools.partial(on_first(g), axis="x"), mesh_in_order(order))
        for g in (ours, lax.all_to_all)
    )
    assert_same_bits(jax.jit(f)(x), jax.jit(reference)(x))


@checked
def test_leaves_of_one_dtype_travel_together(check_vma):
    tree = {
        "kernel": gaussian(64, 8, 8),
        "half": [gaussian(64, 8, dtype="bfloat16"), gaussian(128, 8, 2, dtype="bfloat16")],
        "square": gaussian(64, 8),
        "step": jnp.arange(512).reshape(64, 8),
        "none": None,
    }
    for tiled, split, concat in ((True, 0, 1), (False, 1, 0)):
        f, reference = (
            sharded(
                lambda t, g=g, s=split, c=concat, tiled=tiled: g(t, "x", s, c, tiled=tiled),
                mesh_of(x=8),
                check_vma=check_vma,
            )
            for g in (ours, lax.all_to_all)
        )
        assert ours_in(f, tree) == ["uzip_all_to_all"] * 2
        assert_same_bits(jax.jit(f)(tree), jax.jit(reference)(tree))


def test_axis_index_groups():
    groups = [[0, 3, 5, 6], [7, 1, 4, 2]]
    f, reference = (
        sharded(
            lambda x, g=g: g(x, "x", 0, 1, axis_index_groups=groups), mesh_of(x=8), check_vma=False
        )
        for g in (ours, lax.all_to_all)
    )
    x = gaussian(32, 3)
    assert ours_in(f, x) == ["uzip_all_to_all"]
    assert_same_bits(jax.jit(f)(x), jax.jit(reference)(x))


@programs.transformations()
@checked
def test_transformations(transformation, check_vma):
    programs.assert_transforms_alike(
        transformation, on_last(ours), on_last(lax.all_to_all), check_vma
    )


@programs.transformations(programs.EAGER)
@checked
def test_eager(transformation, check_vma):
    programs.assert_transforms_alike(
        transformation, on_last(ours), on_last(lax.all_to_all), check_vma, jit=lambda f: f
    )


@checked
def test_the_gradient_is_a_compressed_all_to_all(check_vma):
    f = jax.grad(lambda x: jnp.sum(ours(x, "x", 0, 1, tiled=True) ** 2))
    traced = jax.make_jaxpr(sharded(f, mesh_of(x=4), check_vma=check_vma))(integers(16, 6))
    names = programs.primitives(traced.jaxpr)
    assert names.count("uzip_all_to_all") == 2
    assert "all_to_all" not in names
    assert str(traced).count(str(SMALL)) == 2


def test_nested_and_pmap():
    programs.assert_nested_and_pmap_alike(on_first(ours), on_first(lax.all_to_all), integers(64, 8))


# ---- what goes to jax.lax untouched --------------------------------------------------------------


@programs.fallbacks()
def test_falls_back_to_lax(why):
    programs.assert_falls_back(why, on_first(ours), on_first(lax.all_to_all))


@programs.OPTIONS_THAT_REFUSE
def test_options_send_to_lax(options):
    g = functools.partial(jax_uzip.all_to_all, options=options)
    f, reference = (
        sharded(functools.partial(on_first(g), axis="x"), mesh_of(x=8)) for g in (g, lax.all_to_all)
    )
    programs.assert_same_program(f, reference, gaussian(8 * 64))


MISUSE = {
    "unknown axis": (lambda g, x: g(x, "nope", 0, 0), True),
    "dimension out of range": (lambda g, x: g(x, "x", 3, 0), True),
    "not divisible": (lambda g, x: g(x[:7], "x", 0, 0, tiled=True), True),
    "not the number of devices": (lambda g, x: g(x[:4], "x", 0, 0), True),
    "not an array": (lambda g, x: g(["text", x], "x", 0, 0), True),
    "scalar": (lambda g, x: g(x[0, 0], "x", 0, 0), True),
}


@pytest.mark.parametrize("misuse", MISUSE)
def test_errors_are_those_of_lax(misuse):
    call, check_vma = MISUSE[misuse]
    programs.assert_ends_alike(call, ours, lax.all_to_all, check_vma)


# ---- bytes moved -------------------------------------------------------------------------------


def test_the_smallest_payload_that_fits_all_parts_is_moved(sizes_taken):
    n = 1 << 16
    bfloat16 = np.dtype(data.DTYPES["bfloat16"])
    f = jax.jit(
        sharded(lambda x: jax_uzip.all_to_all(x[0], "x", 0, 0, tiled=True)[None], mesh_of(x=8))
    )
    sizes = [*tiers.payload_sizes(n, bfloat16, Options()), 2 * n]
    hlo = f.lower(jax.ShapeDtypeStruct((8, 8, n), bfloat16)).compile().as_text()
    assert programs.bytes_of(hlo, "all-to-all") == [8 * size for size in sizes]
    for kind, limit in (("gaussian", 0.69), ("zeros", 0.05), ("random_bits", 1.0)):
        x = data.make("zeros", bfloat16, 64 * n).reshape(8, 8, n)
        x[5, 3] = data.make(kind, bfloat16, n)  # one part of one device decides for all
        sizes_taken.clear()
        assert_same_bits(f(x), x.transpose(1, 0, 2).copy())
        jax.effects_barrier()
        (taken,) = set(sizes_taken)
        assert taken <= limit * 2 * n, kind
