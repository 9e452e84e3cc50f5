"""`jax_uzip.pbroadcast` against its definition, bit for bit: JAX's own does not run on the CPU."""

import functools

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

ours = functools.partial(jax_uzip.pbroadcast, options=SMALL)
uncompressed = functools.partial(jax_uzip.pbroadcast, options=Options(enabled=False))


def definition(x, axis_name, source):
    """As the documentation of `jax.lax.pbroadcast` has it; a sum in which -0 becomes +0."""
    here = lax.axis_index(axis_name) == source
    return jax.tree.map(
        lambda x: lax.psum(jnp.where(here, x, jnp.zeros_like(x)), axis_name) + 0 * x, x
    )


@pytest.mark.parametrize("dtype", data.DTYPES)
def test_every_dtype_keeps_every_bit(dtype, x64_for):
    dtype = data.DTYPES[dtype]
    kinds = data.KINDS if dtype in native.dtypes() else ["uniform"]
    n = 8192 if dtype.itemsize == 2 else 1025
    with x64_for(dtype):
        f = jax.jit(sharded(lambda x: [g(x, "x", 5) for g in (ours, uncompressed)], mesh_of(x=8)))
        for kind in kinds:
            x = data.make(kind, dtype, 8 * n).reshape(8, n)
            want = np.broadcast_to(x[5], (8, n))
            assert_same_bits(f(x), [want, want])


@pytest.mark.parametrize(("axes", "name"), MESHES, ids=str)
@checked
def test_meshes(axes, name, check_vma):
    mesh = mesh_of(**axes)
    x = gaussian(mesh.size, 3, 5)
    for source in (0, 1, -1):
        f, reference = (
            sharded(lambda x, g=g, s=source: g(x, name, s), mesh, check_vma=check_vma)
            for g in (ours, lambda x, name, source: lax.all_gather(x, name)[source])
        )
        assert ours_in(f, x) == ["uzip_pbroadcast"]
        assert_same_bits(jax.jit(f)(x), jax.jit(reference)(x))


@pytest.mark.parametrize("order", ORDERS)
def test_permuted_and_partial_meshes(order):
    x = gaussian(len(order), 7)
    f = jax.jit(sharded(lambda x: ours(x, "x", 1), mesh_in_order(order)))
    assert_same_bits(f(x), jnp.broadcast_to(x[1], x.shape))


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
    f = sharded(lambda t: ours(t, "x", 2), mesh_of(x=8), check_vma=check_vma)
    want = jax.tree.map(lambda x: jnp.tile(jnp.split(x, 8)[2], (8,) + (1,) * (x.ndim - 1)), tree)
    assert (
        sorted(ours_in(f, tree)) == ["uzip_pbroadcast"] * 2 + ["uzip_pbroadcast_uncompressed"] * 2
    )
    assert_same_bits(jax.jit(f)(tree), want)


@programs.transformations()
@checked
def test_transformations(transformation, check_vma):
    f, reference = (lambda x, g=g: g(x, "x", 1) for g in (ours, definition))
    programs.assert_transforms_alike(transformation, f, reference, check_vma)


@programs.transformations([programs._vmap_inside, programs._grad_inside])
@checked
def test_transformations_uncompressed(transformation, check_vma):
    f, reference = (lambda x, g=g: g(x, "x", 1) for g in (uncompressed, definition))
    programs.assert_transforms_alike(transformation, f, reference, check_vma)


@programs.transformations(programs.EAGER)
@checked
def test_eager(transformation, check_vma):
    f, reference = (lambda x, g=g: g(x, "x", 1) for g in (ours, definition))
    programs.assert_transforms_alike(transformation, f, reference, check_vma, jit=lambda f: f)


@checked
def test_the_gradient_is_the_compressed_sum_at_the_source(check_vma):
    f = jax.grad(lambda x: jnp.sum(ours(x, "x", 2) * jnp.arange(6.0)))
    f = sharded(f, mesh_of(x=4), check_vma=check_vma)
    x = integers(4, 6)
    names = programs.names_in(f, x)
    assert names.count("uzip_psum_invariant" if check_vma else "uzip_psum") == 1
    assert not {"psum", "psum_invariant"} & set(names)
    want = np.zeros((4, 6), np.float32)
    want[2] = 4 * np.arange(6)
    np.testing.assert_array_equal(jax.jit(f)(x), want)


def test_nested_and_partial_manual():
    x = integers(32, 8)
    for program in (programs.nested, programs.partial_manual):
        f, reference = (program(lambda x, a, g=g: g(x, a, 1)) for g in (ours, definition))
        assert ours_in(f, x)
        programs.assert_equal(jax.jit(f)(x), jax.jit(reference)(x))


def test_one_device():
    x = integers(8, 8)
    f = sharded(lambda x: ours(x, "x", 0), mesh_of(x=1))
    assert ours_in(f, x) == ["uzip_pbroadcast_uncompressed"]
    assert_same_bits(jax.jit(f)(x), x)


def test_default_options_have_a_threshold():
    f = sharded(lambda x: jax_uzip.pbroadcast(x, "x", 0), mesh_of(x=8))
    assert ours_in(f, gaussian(8 * 16383)) == ["uzip_pbroadcast_uncompressed"]
    assert ours_in(f, gaussian(8 * 16384)) == ["uzip_pbroadcast"]


def test_on_a_gpu_a_small_message_is_the_program_of_lax():
    def lowered(g):
        f = jax.jit(sharded(lambda x: g(x, "x", 3), mesh_of(x=8)))
        return f.trace(gaussian(64)).lower(lowering_platforms=("cuda",)).as_text()

    assert lowered(jax_uzip.pbroadcast).count("collective_broadcast") == 1
    assert lowered(ours).count("collective_broadcast") == 1  # there is no codec yet
    assert lowered(lax.pbroadcast).count("collective_broadcast") == 1


MISUSE = {
    "unknown axis": lambda g, x: g(x, "nope", 0),
    "the same everywhere": lambda g, x: g(lax.psum(x, "x"), "x", 0),
}


@pytest.mark.parametrize("misuse", MISUSE)
def test_errors_are_those_of_lax(misuse):
    programs.assert_ends_alike(MISUSE[misuse], ours, lax.pbroadcast)


def test_what_is_not_an_array_is_an_error():
    with pytest.raises(TypeError, match="type <class 'str'>"):
        jax.eval_shape(sharded(lambda x: ours(["text", x], "x", 0), mesh_of(x=8)), integers(64, 8))


def test_a_source_out_of_range_is_an_error():
    for g in (ours, uncompressed):
        with pytest.raises(IndexError):
            jax.jit(sharded(lambda x, g=g: g(x, "x", 8), mesh_of(x=8))).lower(gaussian(64))


def test_only_the_source_decides_on_the_size(sizes_taken):
    n = 1 << 18
    bfloat16 = np.dtype(data.DTYPES["bfloat16"])
    f = jax.jit(sharded(lambda x: jax_uzip.pbroadcast(x, "x", 6), mesh_of(x=8)))
    sizes = [*tiers.payload_sizes(n, bfloat16, Options()), 2 * n]
    hlo = f.lower(jax.ShapeDtypeStruct((8, n), bfloat16)).compile().as_text()
    assert [s for s in programs.bytes_of(hlo, "all-reduce") if s > 4] == sizes
    for kind, limit in (("gaussian", 0.69), ("zeros", 0.05), ("random_bits", 1.0)):
        x = data.make("random_bits", bfloat16, 8 * n).reshape(8, n)
        x[6] = data.make(kind, bfloat16, n)
        sizes_taken.clear()
        assert_same_bits(f(x), np.broadcast_to(x[6], x.shape))
        jax.effects_barrier()
        (taken,) = set(sizes_taken)
        assert taken <= limit * 2 * n, kind
