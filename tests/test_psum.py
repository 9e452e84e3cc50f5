"""`jax_uzip.psum` and `pmean` against a serial sum in rank order, to the bit, and against `jax.lax`."""

import functools
import inspect

import data
import jax
import jax.numpy as jnp
import numpy as np
import programs
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
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

psum = functools.partial(jax_uzip.psum, options=SMALL)
pmean = functools.partial(jax_uzip.pmean, options=SMALL)

PRIMITIVE = {True: "uzip_psum_invariant", False: "uzip_psum"}


@pytest.mark.parametrize("name", ["psum", "pmean"])
def test_the_signature_is_that_of_jax_plus_options(name):
    *same, options = inspect.signature(getattr(jax_uzip, name)).parameters.values()
    theirs = inspect.signature(getattr(lax, name)).parameters.values()
    assert [(p.name, p.kind, p.default) for p in same] == [
        (p.name, p.kind, p.default) for p in theirs
    ]
    assert options.name == "options"


# ---- the bits of a serial sum in rank order ----------------------------------------------------


@pytest.mark.parametrize("dtype", native.dtypes(), ids=lambda d: d.name)
def test_every_dtype_and_special_value(dtype, x64_for):
    """Sums in chunks that devices share unevenly, and smaller than the number of devices."""
    with x64_for(dtype):
        f = jax.jit(sharded(lambda x: psum(x[0], "x")[None], mesh_of(x=4)))
        for n in (1027, 3):
            for kind in data.KINDS if n > 3 else ["special"]:
                rows = np.stack([data.make(kind, dtype, n, rank) for rank in range(4)])
                want = data.serial_sum(rows).view(dtype)
                assert_same_bits(f(rows), np.broadcast_to(want, (4, n)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("ranks", range(2, 9))
def test_any_number_of_ranks_in_any_order_of_devices_and_again(dtype, ranks):
    rows = np.stack([data.make("rows_of_own_scales", dtype, 2001, rank) for rank in range(ranks)])
    want = data.serial_sum(rows)
    for order in (range(ranks), next(order for order in ORDERS[::-1] if len(order) >= ranks)):
        f = jax.jit(sharded(lambda x: psum(x[0], "x")[None], mesh_in_order(order[:ranks])))
        for _ in range(2):
            assert_same_bits(f(rows), np.broadcast_to(want, (ranks, 2001)))


def test_the_order_of_names_is_the_order_of_ranks():
    rows = np.stack([data.make("laplace", "float32", 999, rank) for rank in range(8)])
    for name, order in ((("x", "y"), range(8)), (("y", "x"), (0, 2, 4, 6, 1, 3, 5, 7))):
        f = sharded(lambda x: psum(x[0], name)[None], mesh_of(x=4, y=2))  # noqa: B023
        want = data.serial_sum(rows[list(order)])
        assert_same_bits(jax.jit(f)(rows), np.broadcast_to(want, (8, 999)))


def test_a_message_that_does_not_compress_gives_the_same_bits(sizes_taken):
    """Random bits, and all without a payload size on offer."""
    for kind in ("random_bits", "gaussian"):
        rows = np.stack([data.make(kind, "bfloat16", 8192, rank) for rank in range(8)])
        for options in (SMALL, Options(min_bytes=0, tiers=[0.001])):
            f = sharded(lambda x: jax_uzip.psum(x[0], "x", options=options)[None], mesh_of(x=8))  # noqa: B023
            want = np.broadcast_to(data.serial_sum(rows), (8, 8192))
            assert_same_bits(jax.jit(f)(rows), want)
    jax.effects_barrier()
    assert 2 * 1024 in sizes_taken


def test_32_independent_sums_in_one_program():
    rows = [
        np.stack([data.make("gaussian", "float32", 1001 + i, r) for r in range(8)])
        for i in range(32)
    ]
    f = jax.jit(sharded(lambda xs: [psum(x[0], "x")[None] for x in xs], mesh_of(x=8)))
    assert ours_in(f, rows) == ["uzip_psum_invariant"] * 32
    running = [f(rows) for _ in range(3)]  # several in flight
    for sums in running:
        for got, x in zip(sums, rows, strict=True):
            assert_same_bits(got, np.broadcast_to(data.serial_sum(x), x.shape))


# ---- as jax.lax ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("axes", "name"), MESHES, ids=str)
@checked
def test_meshes(axes, name, check_vma):
    mesh = mesh_of(**axes)
    x = integers(mesh.size, 3, 5)
    f, reference = (
        sharded(lambda x, g=g: g(x, name) + 0 * x, mesh, check_vma=check_vma)
        for g in (psum, lax.psum)
    )
    assert ours_in(f, x) == [PRIMITIVE[check_vma]]
    assert_same_bits(*(jax.jit(g)(x) for g in (f, reference)))


@checked
def test_pmean(check_vma):
    x = {"a": integers(8, 7), "b": integers(8, dtype="bfloat16"), "n": jnp.arange(8)}
    f, reference = (
        sharded(lambda x, g=g: g(x, "x"), mesh_of(x=8), out_specs=P() if check_vma else P("x"),
                check_vma=check_vma)
        for g in (pmean, lax.pmean)
    )  # fmt: skip
    assert ours_in(f, x) == [PRIMITIVE[check_vma]] * 2
    assert_same_bits(jax.jit(f)(x), jax.jit(reference)(x))


def test_the_type_says_that_the_sum_is_the_same_everywhere():
    f = jax.jit(sharded(lambda x: psum(x, "x"), mesh_of(x=8), out_specs=P()))
    assert_same_bits(f(integers(8, 40)), jnp.sum(integers(8, 40), axis=0, keepdims=True))


def test_constants_stay_constants():
    def f(x):
        n = psum(1, "x")
        assert isinstance(n, int)
        sums = psum({"np": np.ones(3, np.float32), "x": x, "two": 2.0}, "x")
        assert sums["two"] == 16
        return {"np": sums["np"] + 0 * x, "x": sums["x"], "n": jnp.ones((1, n))}

    got = jax.jit(sharded(f, mesh_of(x=8), check_vma=False))(jnp.ones((8, 3)))
    assert got["np"].shape == (8, 3)
    assert (got["np"] == 8).all()
    assert (got["x"] == 8).all()
    assert got["n"].shape == (8, 8)


@checked
def test_leaves_of_one_dtype_travel_together(check_vma):
    tree = {
        "kernel": integers(64, 6),
        "bias": integers(8),
        "half": [integers(16, 3, dtype="bfloat16"), integers(24, dtype="bfloat16")],
        "complex": integers(8, 4) + 1j * integers(8, 4),
        "step": jnp.arange(16),
        "mask": jnp.arange(16) % 3 == 0,
        "none": None,
    }
    f, reference = (
        sharded(lambda x, g=g: g(x, "x"), mesh_of(x=8), check_vma=check_vma)
        for g in (psum, lax.psum)
    )
    assert ours_in(f, tree) == [PRIMITIVE[check_vma]] * 3
    assert_same_bits(jax.jit(f)(tree), jax.jit(reference)(tree))


def test_an_invariant_value_is_marked_as_varying_first():
    f, reference = (
        sharded(lambda x, g=g: g(x, "x"), mesh_of(x=8), P(), P()) for g in (psum, lax.psum)
    )
    x = integers(8, 8)
    assert "uzip_pvary" in programs.names_in(f, x)
    assert_same_bits(jax.jit(f)(x), jax.jit(reference)(x))


def test_axis_index_groups():
    rows = np.stack([data.make("gaussian", "float32", 100, rank) for rank in range(8)])
    groups = [[0, 3, 5, 6], [7, 1, 4, 2]]
    f = lambda x: psum(x[0], "x", axis_index_groups=groups)[None]
    got = jax.jit(sharded(f, mesh_of(x=8), check_vma=False))(rows)
    for group in groups:
        assert_same_bits(got[jnp.array(group)], np.stack([data.serial_sum(rows[group])] * 4))


@programs.transformations()
@checked
def test_transformations(transformation, check_vma):
    ours, theirs = (lambda x, g=g: g(x, "x") for g in (psum, lax.psum))
    programs.assert_transforms_alike(transformation, ours, theirs, check_vma)


@programs.transformations(programs.EAGER)
@checked
def test_eager(transformation, check_vma):
    ours, theirs = (lambda x, g=g: g(x, "x") for g in (psum, lax.psum))
    programs.assert_transforms_alike(transformation, ours, theirs, check_vma, jit=lambda f: f)


def test_the_gradient_is_what_jax_says_it_is():
    """Marked as varying under check_vma=True; summed again, compressed, without."""
    for check_vma, name in ((True, "uzip_pvary"), (False, "uzip_psum")):
        f = jax.grad(lambda x: jnp.sum(psum(x, "x") ** 2))
        f = sharded(f, mesh_of(x=4), check_vma=check_vma)
        traced = jax.make_jaxpr(f)(integers(16, 6))
        names = programs.primitives(traced.jaxpr)
        assert sorted(n for n in names if "uzip" in n) == sorted([PRIMITIVE[check_vma], name])
        assert not {"psum", "psum_invariant"} & set(names)
        assert str(traced).count(str(SMALL)) == 2


def test_the_gate_looks_at_the_cotangent():
    def f(x):
        x = x.astype(jnp.float32)
        return jax.grad(lambda x: jnp.sum(jax_uzip.psum(x, "x", options=Options()) ** 2))(x)

    names = ours_in(sharded(jax.vmap(f), mesh_of(x=2), check_vma=False), gaussian(2, 16384))
    assert names == ["uzip_psum"] * 2
    assert not ours_in(sharded(jax.vmap(f), mesh_of(x=2), check_vma=False), gaussian(2, 16383))


def test_nested_and_pmap():
    ours, theirs = (lambda x, axis, g=g: g(x, axis) + 0 * x for g in (psum, lax.psum))
    programs.assert_nested_and_pmap_alike(ours, theirs, integers(16, 8))


def test_explicit_mesh():
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    x = jax.device_put(integers(16, 6), jax.NamedSharding(mesh, P("x", "y")))
    with jax.set_mesh(mesh):
        f, reference = (
            jax.shard_map(lambda x, g=g: g(x, "x"), in_specs=P("x", "y"), out_specs=P(None, "y"))
            for g in (psum, lax.psum)
        )
        assert ours_in(f, x)
        a, b = jax.jit(f)(x), jax.jit(reference)(x)
    assert a.sharding == b.sharding
    assert_same_bits(a, b)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_traced_with_64_bit_types_and_lowered_without(dtype, x64_for):
    rows = np.stack([data.make("gaussian", dtype, 99, rank) for rank in range(8)])
    with x64_for(dtype):
        f = sharded(lambda x: psum(x[0], "x")[None], mesh_of(x=8))
        traced = jax.jit(f).trace(rows)
    compiled = traced.lower().compile()
    with x64_for(dtype):
        want = data.serial_sum(rows).view(dtype)
        assert_same_bits(compiled(rows), np.broadcast_to(want, (8, 99)))


# ---- what goes to jax.lax untouched --------------------------------------------------------------


@programs.fallbacks()
def test_falls_back_to_lax(why):
    programs.assert_falls_back(why, psum, lax.psum)


@programs.OPTIONS_THAT_REFUSE
def test_options_send_to_lax(options):
    ours = sharded(lambda x: jax_uzip.psum(x, "x", options=options), mesh_of(x=8), out_specs=P())
    theirs = sharded(lambda x: lax.psum(x, "x"), mesh_of(x=8), out_specs=P())
    programs.assert_same_program(ours, theirs, gaussian(8 * 64))


def test_uneven_groups_and_positional_axes_are_left_to_jax():
    groups = [[0, 1, 2], [3, 4, 5, 6, 7]]
    ours, theirs = (
        sharded(lambda x, g=g: g(x, "x", axis_index_groups=groups), mesh_of(x=8), check_vma=False)
        for g in (psum, lax.psum)
    )
    programs.assert_same_program(ours, theirs, integers(64))
    assert_same_bits(jax.jit(ours)(integers(64)), jax.jit(theirs)(integers(64)))
    ours, theirs = (
        sharded(jax.vmap(lambda x, g=g: g(x, ("x", "i")), axis_name="i"), mesh_of(x=8),
                check_vma=False, out_specs=P())
        for g in (psum, lax.psum)
    )  # fmt: skip
    programs.assert_same_program(ours, theirs, integers(64, 3))


MISUSE = {
    "unknown axis": (lambda g, x: g(x, "nope"), True),
    "unknown axis among known": (lambda g, x: g(x, ("x", "nope")), True),
    "checked groups": (
        lambda g, x: g(x, "x", axis_index_groups=[[0, 1, 2, 3], [4, 5, 6, 7]]),
        True,
    ),
    "missing indices": (lambda g, x: g(x, "x", axis_index_groups=[[0, 1], [2, 4]]), False),
    "not an array": (lambda g, x: g(["text", x], "x"), True),
    "axis repeated": (lambda g, x: g(x, ("x", "x")), False),
}


@pytest.mark.parametrize("misuse", MISUSE)
def test_errors_are_those_of_lax(misuse):
    call, check_vma = MISUSE[misuse]
    programs.assert_ends_alike(call, psum, lax.psum, check_vma)


# ---- bytes moved -------------------------------------------------------------------------------


def test_every_payload_size_is_there_twice_and_raw_is_the_largest(sizes_taken):
    n = 1 << 19
    f = jax.jit(sharded(lambda x: jax_uzip.psum(x[0], "x")[None, :8], mesh_of(x=8)))
    part = n // 8
    bfloat16 = np.dtype(data.DTYPES["bfloat16"])
    sizes = [*tiers.payload_sizes(part, bfloat16, Options()), 2 * part]
    hlo = f.lower(jax.ShapeDtypeStruct((8, n), bfloat16)).compile().as_text()
    assert programs.bytes_of(hlo, "all-to-all") == [8 * size for size in sizes]
    assert programs.bytes_of(hlo, "all-gather") == [8 * size for size in sizes]
    for kind, limit in (("gaussian", 0.69), ("zeros", 0.05), ("random_bits", 1.01)):
        sizes_taken.clear()
        rows = np.stack([data.make(kind, bfloat16, n, rank) for rank in range(8)])
        jax.block_until_ready(f(rows))
        jax.effects_barrier()
        assert max(sizes_taken) <= limit * 2 * part, kind


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_a_platform_without_the_codec_gets_jaxs_own_collective(platform):
    f = jax.jit(sharded(lambda x: jax_uzip.psum(x, "x"), mesh_of(x=8), out_specs=P()))
    shard = jax.ShapeDtypeStruct((8 * 40_000,), jnp.bfloat16)
    text = f.trace(shard).lower(lowering_platforms=(platform,)).as_text()
    assert "uzip_encode" not in text
    assert text.count("stablehlo.all_reduce") == 1
