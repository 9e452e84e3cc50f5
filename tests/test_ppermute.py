"""`jax_uzip.ppermute` against `jax.lax.ppermute`, bit for bit."""

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

ours = functools.partial(jax_uzip.ppermute, options=SMALL)


def ring(size, step=1):
    return [(i, (i + step) % size) for i in range(size)]


def swap(g):
    """On two devices, as the transformations want it."""
    return lambda x, axis="x": g(x, axis, [(0, 1), (1, 0)])


def test_the_signature_is_that_of_jax_plus_options():
    *same, options = inspect.signature(jax_uzip.ppermute).parameters.values()
    theirs = inspect.signature(lax.ppermute).parameters.values()
    assert [(p.name, p.kind, p.default) for p in same] == [
        (p.name, p.kind, p.default) for p in theirs
    ]
    assert options.name == "options"


@pytest.mark.parametrize("dtype", data.DTYPES)
def test_every_dtype_keeps_every_bit(dtype, x64_for):
    """The reference is the input; the first receives nothing, which is zero bits."""
    dtype = data.DTYPES[dtype]
    kinds = data.KINDS if dtype in native.dtypes() else ["uniform"]
    n = 8192 if dtype.itemsize == 2 else 1025
    with x64_for(dtype):
        around = jax.jit(sharded(lambda x: ours(x, "x", ring(8)), mesh_of(x=8)))
        along = jax.jit(sharded(lambda x: ours(x, "x", ring(8)[:-1]), mesh_of(x=8)))
        for kind in kinds:
            x = data.make(kind, dtype, 8 * n).reshape(8, n)
            want = np.roll(x, 1, axis=0)
            assert_same_bits(around(x), want)
            if dtype in native.dtypes():
                want[0] = data.from_bits(np.zeros_like(data.bits(want[0])), dtype)
                assert_same_bits(along(x), want)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", "complex64"])
def test_leaves_of_a_tree_keep_every_bit(dtype):
    for kind in ("special", "random_bits"):
        xs = [data.make(kind, dtype, 8 * n).reshape(8, n) for n in (1, 3, 129)]
        f = jax.jit(sharded(lambda xs: ours(xs, "x", ring(8)), mesh_of(x=8)))
        assert_same_bits(f(xs), [np.roll(x, 1, axis=0) for x in xs])


PERMUTATIONS = {
    "ring": lambda size: ring(size),
    "reversed": lambda size: [(i, size - 1 - i) for i in range(size)],
    "open": lambda size: ring(size)[:-1],
    "one pair": lambda size: [(1, 0)],
    "to itself": lambda size: [(1, 1)],
    "nobody": lambda size: [],
    "negative": lambda size: [(-1, 0), (0, -1)],
}


@pytest.mark.parametrize(("axes", "name"), [m for m in MESHES if m[1][0] <= m[1][-1]], ids=str)
@checked
def test_meshes(axes, name, check_vma):
    mesh = mesh_of(**axes)
    names = name if isinstance(name, tuple) else (name,)
    K = int(np.prod([axes[n] for n in names]))
    x = gaussian(mesh.size, 3, 5)

    def all_permutations(g):
        f = lambda x: [g(x, name, perm(K)) for perm in PERMUTATIONS.values()]
        return sharded(f, mesh, check_vma=check_vma)

    assert ours_in(all_permutations(ours), x) == ["uzip_ppermute"] * len(PERMUTATIONS)
    assert_same_bits(*(jax.jit(all_permutations(g))(x) for g in (ours, lax.ppermute)))


@pytest.mark.parametrize("order", ORDERS)
def test_permuted_and_partial_meshes(order):
    K = len(order)
    x = gaussian(K, 7)
    f, reference = (
        sharded(lambda x, g=g: g(x, "x", ring(K)[1:]), mesh_in_order(order))
        for g in (ours, lax.ppermute)
    )
    assert_same_bits(jax.jit(f)(x), jax.jit(reference)(x))


@checked
def test_leaves_of_one_dtype_travel_together(check_vma):
    tree = {
        "kernel": gaussian(64, 6),
        "bias": gaussian(8),
        "half": [gaussian(16, 3, dtype="bfloat16"), gaussian(24, dtype="bfloat16")],
        "step": jnp.arange(16),
        "mask": jnp.arange(16) % 3 == 0,
        "none": None,
    }
    f, reference = (
        sharded(lambda t, g=g: g(t, "x", ring(8)), mesh_of(x=8), check_vma=check_vma)
        for g in (ours, lax.ppermute)
    )
    assert ours_in(f, tree) == ["uzip_ppermute"] * 2
    assert_same_bits(jax.jit(f)(tree), jax.jit(reference)(tree))


@programs.transformations()
@checked
def test_transformations(transformation, check_vma):
    programs.assert_transforms_alike(transformation, swap(ours), swap(lax.ppermute), check_vma)


@programs.transformations(programs.EAGER)
@checked
def test_eager(transformation, check_vma):
    programs.assert_transforms_alike(
        transformation, swap(ours), swap(lax.ppermute), check_vma, jit=lambda f: f
    )


@checked
def test_the_gradient_is_the_compressed_inverse(check_vma):
    f = jax.grad(lambda x: jnp.sum(ours(x, "x", ring(4)) ** 2))
    traced = jax.make_jaxpr(sharded(f, mesh_of(x=4), check_vma=check_vma))(integers(16, 6))
    names = programs.primitives(traced.jaxpr)
    assert names.count("uzip_ppermute") == 2
    assert "ppermute" not in names
    assert str(traced).count(str(SMALL)) == 2
    assert "perm=((1, 0), (2, 1), (3, 2), (0, 3))" in str(traced)


def test_nested_and_pmap():
    programs.assert_nested_and_pmap_alike(swap(ours), swap(lax.ppermute), integers(16, 8))


# ---- what goes to jax.lax untouched --------------------------------------------------------------


@programs.fallbacks()
def test_falls_back_to_lax(why):
    f, reference = (
        lambda x, axis, g=g: g(x, axis, ring(lax.axis_size(axis))) for g in (ours, lax.ppermute)
    )
    programs.assert_falls_back(why, f, reference)


@programs.OPTIONS_THAT_REFUSE
def test_options_send_to_lax(options):
    g = functools.partial(jax_uzip.ppermute, options=options)
    f, reference = (
        sharded(lambda x, g=g: g(x, "x", ring(8)), mesh_of(x=8)) for g in (g, lax.ppermute)
    )
    programs.assert_same_program(f, reference, gaussian(8 * 64))


MISUSE = {
    "unknown axis": lambda g, x: g(x, "nope", ring(8)),
    "no list": lambda g, x: g(x, "x", iter(ring(8))),
    "not an array": lambda g, x: g(["text", x], "x", ring(8)),
    "two to one": lambda g, x: g(x, "x", [(0, 1), (2, 1)]),
    "out of range": lambda g, x: g(x, "x", [(0, 8)]),
    "other order than the mesh's": lambda g, x: g(x, ("y", "x"), ring(8)),
}


@pytest.mark.parametrize("misuse", MISUSE)
def test_errors_are_those_of_lax(misuse):
    def outcome(g):
        f = sharded(
            lambda x: jax.tree.leaves(MISUSE[misuse](g, x)), mesh_of(x=4, y=2), check_vma=False
        )
        try:
            return jax.jit(f).lower(integers(64, 8)).out_info
        except Exception as e:
            return type(e), str(e).splitlines()[0].replace("jax_uzip", "jax.lax")

    assert outcome(ours) == outcome(lax.ppermute)


# ---- bytes moved -------------------------------------------------------------------------------


def test_only_devices_that_send_decide_on_the_size(sizes_taken):
    n = 1 << 18
    bfloat16 = np.dtype(data.DTYPES["bfloat16"])
    f = jax.jit(sharded(lambda x: jax_uzip.ppermute(x, "x", ring(8)[:-1]), mesh_of(x=8)))
    sizes = [*tiers.payload_sizes(n, bfloat16, Options()), 2 * n]
    hlo = f.lower(jax.ShapeDtypeStruct((8, n), bfloat16)).compile().as_text()
    assert programs.bytes_of(hlo, "collective-permute") == sizes
    for kind, limit in (("gaussian", 0.69), ("zeros", 0.05), ("random_bits", 1.0)):
        x = np.stack([data.make(kind, bfloat16, n, rank) for rank in range(8)])
        x[7] = data.make("random_bits", bfloat16, n)
        sizes_taken.clear()
        assert_same_bits(np.asarray(f(x))[1:], x[:-1])
        jax.effects_barrier()
        (taken,) = set(sizes_taken)
        assert taken <= limit * 2 * n, kind
