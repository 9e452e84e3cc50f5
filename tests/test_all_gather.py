"""`jax_uzip.all_gather` against `jax.lax.all_gather`, bit for bit, on 8 virtual devices."""

import functools
import inspect

import data
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import programs
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P
from programs import (
    MESHES,
    SMALL,
    assert_same_bits,
    checked,
    gaussian,
    mesh_of,
    names_in,
    sharded,
)

import jax_uzip
from jax_uzip import Options
from jax_uzip._src import codec, native, tiers

ours = functools.partial(jax_uzip.all_gather, options=SMALL)


def count_ours(f, *args) -> int:
    return names_in(f, *args).count("uzip_all_gather")


# ---- the public function -------------------------------------------------------------------------


def test_the_signature_is_that_of_jax_plus_options():
    def arguments(f):
        return [(p.name, p.kind, p.default) for p in inspect.signature(f).parameters.values()]

    *same, options = arguments(jax_uzip.all_gather)
    assert same == arguments(lax.all_gather)
    assert options == ("options", inspect.Parameter.KEYWORD_ONLY, None)


def test_the_primitive_is_visible_in_the_jaxpr():
    f = sharded(lambda x: ours(x, "x"), mesh_of(x=8))
    assert count_ours(f, gaussian(64)) == 1
    assert "all_gather" not in names_in(f, gaussian(64))


# ---- every value of every dtype --------------------------------------------------------------


@pytest.mark.parametrize("dtype", data.DTYPES)
def test_every_dtype_keeps_every_bit(dtype, x64_for):
    """The reference is the input: XLA's own all-gather of bf16 loses NaN payloads on the CPU."""
    dtype = data.DTYPES[dtype]
    kinds = data.KINDS if dtype in native.dtypes() else ["uniform"]
    n = 8192 if dtype.itemsize == 2 else 1025  # a 16-bit dtype has 65536 patterns
    with x64_for(dtype):
        gather = jax.jit(sharded(lambda x: ours(x, "x")[None], mesh_of(x=8)))
        for kind in kinds:
            x = data.make(kind, dtype, 8 * n)
            assert_same_bits(gather(x), np.broadcast_to(x.reshape(8, n), (8, 8, n)))


@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 511, 513, 4097])
def test_every_size(n):
    gather = jax.jit(
        sharded(
            lambda x: jax_uzip.all_gather(x, "x", options=Options(min_bytes=0))[None], mesh_of(x=4)
        )
    )
    for kind in ("special", "zeros", "gaussian"):
        x = data.make(kind, "bfloat16", 4 * n)
        assert_same_bits(gather(x), np.broadcast_to(x.reshape(4, n), (4, 4, n)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "complex64", "float8_e5m2"])
def test_packed_leaves_keep_every_bit(dtype):
    shapes = [(), (3,), (5, 7), (2, 3, 4), (129,)]
    gather = jax.jit(
        sharded(
            lambda xs: jax.tree.map(lambda x: x[None], ours([x[0] for x in xs], "x")), mesh_of(x=8)
        )
    )
    for kind in data.KINDS:
        xs = [
            data.make(kind, dtype, 8 * int(np.prod(s)), i).reshape(8, *s)
            for i, s in enumerate(shapes)
        ]
        assert_same_bits(gather(xs), [np.broadcast_to(x, (8, *x.shape)) for x in xs])


# ---- meshes and axes ---------------------------------------------------------------------------


@pytest.mark.parametrize(("axes", "name"), MESHES, ids=str)
@pytest.mark.parametrize("tiled", [True, False], ids=["tiled", "stacked"])
@checked
def test_meshes(axes, name, tiled, check_vma):
    mesh = mesh_of(**axes)
    x = gaussian(2 * mesh.size, 3, 5)

    def gather_on_all_axes(all_gather):
        def f(x):
            dimensions = (0, 1, -1) if tiled else (0, 2, -1)
            return [all_gather(x, name, axis=d, tiled=tiled)[None] for d in dimensions]

        return sharded(f, mesh, check_vma=check_vma)

    assert count_ours(gather_on_all_axes(ours), x) == 3
    assert_same_bits(*(jax.jit(gather_on_all_axes(g))(x) for g in (ours, lax.all_gather)))


@pytest.mark.parametrize(
    "order", [(7, 6, 5, 4, 3, 2, 1, 0), (3, 0, 6, 1, 7, 2, 5, 4), (6, 2, 5, 1)]
)
def test_permuted_and_partial_meshes(order):
    devices = np.array(jax.devices())[list(order)].reshape(2, -1)
    mesh = Mesh(devices, ("x", "y"), (AxisType.Auto,) * 2)
    x = gaussian(2 * mesh.size, 3)
    for name in ("x", ("y", "x")):
        a, b = (
            jax.jit(sharded(lambda x, g=g: g(x, name, tiled=True)[None], mesh))(x)  # noqa: B023
            for g in (ours, lax.all_gather)
        )
        assert_same_bits(a, b)


def test_explicit_mesh():
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    x = gaussian(16, 6)
    with jax.set_mesh(mesh):
        x = jax.device_put(x, jax.NamedSharding(mesh, P("x", "y")))

        def gather(all_gather):
            f = lambda x: all_gather(x, "x", axis=1, tiled=True)
            return jax.shard_map(f, in_specs=P("x", "y"), out_specs=P("x", "y"))

        assert count_ours(gather(ours), x) == 1
        a, b = (jax.jit(gather(g))(x) for g in (ours, lax.all_gather))
        assert a.sharding == b.sharding
        assert_same_bits(a, b)
        # A batch dimension that is itself sharded.
        batch = jnp.stack([x, 2 * x])
        assert_same_bits(*(jax.jit(jax.vmap(gather(g)))(batch) for g in (ours, lax.all_gather)))


def test_axis_index_groups():
    groups = [[0, 3, 5, 6], [7, 1, 4, 2]]

    def gather(all_gather):
        f = lambda x: all_gather(x, "x", axis_index_groups=groups, axis=1)[None]
        return sharded(f, mesh_of(x=8), check_vma=False)

    x = gaussian(16, 3)
    assert count_ours(gather(ours), x) == 1
    assert_same_bits(*(jax.jit(gather(g))(x) for g in (ours, lax.all_gather)))


# ---- pytrees -----------------------------------------------------------------------------------


def tree_of_leaves():
    return {
        "kernel": gaussian(64, 6),
        "bias": gaussian(8),
        "half": [gaussian(16, 3, dtype="bfloat16"), gaussian(24, dtype="bfloat16")],
        "step": jnp.arange(16),
        "mask": jnp.arange(16) % 3 == 0,
        "none": None,
    }


@pytest.mark.parametrize("tiled", [True, False], ids=["tiled", "stacked"])
@checked
def test_pytree_leaves_of_one_dtype_travel_together(tiled, check_vma):
    tree = tree_of_leaves()

    def gather(all_gather):
        f = lambda tree: jax.tree.map(lambda x: x[None], all_gather(tree, "x", tiled=tiled))
        return sharded(f, mesh_of(x=8), check_vma=check_vma)

    assert count_ours(gather(ours), tree) == 2  # float32 and bfloat16
    assert_same_bits(*(jax.jit(gather(g))(tree) for g in (ours, lax.all_gather)))


def test_an_empty_leaf_is_packed_with_the_others():
    """Made inside, and not compared with lax: jaxlib 0.11.2 crashes on empty arguments and gathers."""
    f = sharded(lambda x: ours([x, jnp.zeros((2, 0)), x[0]], "x"), mesh_of(x=8))
    x = gaussian(8, 3)
    assert count_ours(f, x) == 1
    assert [out.shape for out in jax.jit(f)(x)] == [(64, 1, 3), (64, 2, 0), (64, 3)]


def test_pytree_along_a_later_axis():
    leaves = [gaussian(8, 3, 4), gaussian(8, 5), gaussian(8, 2, 2, 2)]

    def gather(all_gather):
        return sharded(lambda xs: all_gather(xs, "x", axis=1, tiled=True), mesh_of(x=8))

    assert count_ours(gather(ours), leaves) == 1
    assert_same_bits(*(jax.jit(gather(g))(leaves) for g in (ours, lax.all_gather)))


def test_the_gate_sees_the_packed_message():
    leaves = [gaussian(8, 100) for _ in range(10)]

    def count(**options):
        gather = functools.partial(jax_uzip.all_gather, options=Options(**options))
        return count_ours(sharded(lambda xs: gather(xs, "x"), mesh_of(x=8)), leaves)

    assert count(min_bytes=4000) == 1  # ten leaves of 400 bytes
    assert count(min_bytes=4001) == 0
    assert count(min_bytes=400, pack_bytes=0) == 10
    assert count(min_bytes=401, pack_bytes=0) == 0
    assert count(min_bytes=0, pack_bytes=1000) == 5
    assert (
        count(min_bytes=1000, pack_bytes=1200) == 3
    )  # three leaves thrice, the last one goes to lax


def test_leaves_of_different_types_are_not_packed():
    """Same dtype, but one varies along y as well: packing would make the other vary too."""

    def gather(all_gather):
        def f(x, y):
            a, b = all_gather([x, y], "x")
            return a[None], b[None]

        return sharded(f, mesh_of(x=4, y=2), (P("x"), P(("x", "y"))), (P("x"), P(("x", "y"))))

    x, y = gaussian(8), gaussian(8)
    assert count_ours(gather(ours), x, y) == 2
    assert_same_bits(*(jax.jit(gather(g))(x, y) for g in (ours, lax.all_gather)))


def test_weak_types_stay_weak():
    def types(all_gather):
        f = lambda x: all_gather([jnp.full((4,), 1.0), 2.0, x], "x")
        out = jax.eval_shape(sharded(f, mesh_of(x=8), out_specs=P()), gaussian(8))
        return [(leaf.dtype, leaf.weak_type) for leaf in out]

    with pytest.raises(
        ValueError, match="out_specs"
    ):  # gathered values vary: the types are checked
        types(ours)
    f = lambda g: sharded(lambda x: g([jnp.full((4,), 1.0), 2.0, x], "x"), mesh_of(x=8))
    a, b = (jax.eval_shape(f(g), gaussian(8)) for g in (ours, lax.all_gather))
    assert [x.weak_type for x in a] == [x.weak_type for x in b]
    assert_same_bits(*(jax.jit(f(g))(gaussian(8)) for g in (ours, lax.all_gather)))


# ---- transformations -----------------------------------------------------------------------------
# Each takes an all_gather, and returns a function of one array.  `wrap` is shard_map on 8 devices.


def _loss(g, x):
    return jnp.sum(jnp.sin(g(x, "x", tiled=True)) ** 2)


def _vmap_inside(g, wrap):
    return wrap(jax.vmap(lambda row: g(row, "x", axis=0, tiled=True), in_axes=1, out_axes=1))


def _vmap_inside_stacked(g, wrap):
    return wrap(jax.vmap(lambda row: g(row, "x", axis=1), in_axes=0, out_axes=1))


def _vmap_of_an_unmapped_value(g, wrap):
    return wrap(lambda x: jax.vmap(lambda row: row + g(x, "x")[0], in_axes=0)(x))


def _vmap_outside(g, wrap):
    return lambda x: jax.vmap(wrap(lambda x: g(x, "x", axis=1)))(jnp.stack([x, x + 1]))


def _vmap_twice(g, wrap):
    return wrap(jax.vmap(jax.vmap(lambda v: g(v, "x"))))


def _vmap_spmd_axis_name(g, wrap):
    del wrap
    inner = jax.shard_map(
        lambda x: g(x, "x", tiled=True), mesh=mesh_of(x=4, y=2), in_specs=P("x"), out_specs=P("x")
    )
    return lambda x: jax.vmap(inner, spmd_axis_name="y")(x.reshape(4, 4, 6))


def _vmap_of_a_tree(g, wrap):
    return wrap(lambda x: jax.vmap(lambda a, b: g((a, b), "x"), in_axes=(0, 1), out_axes=1)(x, x.T))


def _grad_inside(g, wrap):
    return wrap(jax.grad(lambda x: _loss(g, x)))


def _grad_outside(g, wrap):
    return jax.grad(lambda x: jnp.sum(wrap(lambda x: jnp.sin(g(x, "x")))(x)))


def _grad_of_a_tree(g, wrap):
    def loss(x):
        a, b = g((jnp.sin(x), x[0] * 2), "x")
        return jnp.sum(a**2) + jnp.sum(jnp.cos(b))

    return wrap(jax.grad(loss))


def _grad_of_vmap(g, wrap):
    return wrap(jax.grad(lambda x: jnp.sum(jax.vmap(lambda row: g(row, "x"))(x) ** 2)))


def _jvp(g, wrap):
    return wrap(lambda x: jax.jvp(lambda x: g(jnp.sin(x), "x", tiled=True), (x,), (x + 1,)))


def _linearize(g, wrap):
    return wrap(lambda x: jax.linearize(lambda x: g(jnp.sin(x), "x", tiled=True), x)[1](x))


def _hessian(g, wrap):
    return wrap(lambda x: jax.hessian(lambda v: _loss(g, v))(x[0, :3])[None])


def _checkpoint(g, wrap):
    return wrap(jax.grad(jax.checkpoint(lambda x: _loss(g, x))))


def _checkpoint_policy(g, wrap):
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    f = lambda x: jnp.sum(jnp.sin(g(x, "x", tiled=True) @ x.T))
    return wrap(jax.grad(jax.checkpoint(f, policy=policy)))


def _scan(g, wrap):
    def step(carry, row):
        return carry + g(carry, "x")[3], g(row, "x")

    return wrap(lambda x: lax.scan(step, x[0], x)[1])


def _grad_of_scan_of_checkpoint(g, wrap):
    @jax.checkpoint
    def step(carry, row):
        return jnp.sin(g(carry, "x")[3] * row), None

    return wrap(jax.grad(lambda x: jnp.sum(lax.scan(step, x[0], x)[0])))


def _cond(g, wrap):
    def f(x):
        return lax.cond(lax.psum(x[0, 0], "x") > 0, lambda x: g(x, "x")[1], lambda x: 2 * x, x)

    return wrap(f)


def _while(g, wrap):
    def f(x):
        body = lambda state: (state[0] + 1, g(state[1], "x")[2] + 1)
        return lax.while_loop(lambda state: state[0] < 3, body, (0, x))[1]

    return wrap(f)


def _custom_vjp(g, wrap):
    @jax.custom_vjp
    def f(x):
        return g(x, "x", tiled=True)

    f.defvjp(lambda x: (f(x), None), lambda _, ct: (lax.psum_scatter(ct, "x", tiled=True) * 2,))
    return wrap(jax.grad(lambda x: jnp.sum(f(x) ** 2)))


def _inner_jit_called_twice(g, wrap):
    f = jax.jit(lambda x: g(x, "x", tiled=True))
    return wrap(lambda x: f(x) + f(x + 1))


def _of_numpy_and_python_scalars(g, wrap):
    return wrap(
        lambda x: g(np.ones((2, 3), np.float32), "x", tiled=True) + x[0, 0] + g(1.5, "x")[0]
    )


TRANSFORMATIONS = [
    _vmap_inside,
    _vmap_inside_stacked,
    _vmap_of_an_unmapped_value,
    _vmap_outside,
    _vmap_twice,
    _vmap_spmd_axis_name,
    _vmap_of_a_tree,
    _grad_inside,
    _grad_outside,
    _grad_of_a_tree,
    _grad_of_vmap,
    _jvp,
    _linearize,
    _hessian,
    _checkpoint,
    _checkpoint_policy,
    _scan,
    _grad_of_scan_of_checkpoint,
    _cond,
    _while,
    _custom_vjp,
    _inner_jit_called_twice,
    _of_numpy_and_python_scalars,
]


@pytest.mark.parametrize("transformation", TRANSFORMATIONS, ids=lambda f: f.__name__.strip("_"))
@checked
def test_transformations(transformation, check_vma):
    wrap = lambda f: sharded(f, mesh_of(x=4), check_vma=check_vma)
    x = gaussian(16, 6) * 50
    f = transformation(ours, wrap)
    assert count_ours(f, x) > 0
    assert_same_bits(jax.jit(f)(x), jax.jit(transformation(lax.all_gather, wrap))(x))


def test_vmap_stays_compressed_and_becomes_one_message():
    f = sharded(jax.vmap(lambda row: ours(row, "x")), mesh_of(x=4))
    traced = jax.make_jaxpr(f)(gaussian(16, 6))
    names = programs.primitives(traced.jaxpr)
    assert names.count("uzip_all_gather") == 1
    assert "all_gather" not in names
    assert str(SMALL) in str(traced)


def test_derivatives_stay_compressed_where_jax_gathers():
    f = sharded(lambda x: jax.jvp(lambda x: ours(x, "x"), (x,), (x,)), mesh_of(x=4))
    names = names_in(f, gaussian(16, 6))
    assert names.count("uzip_all_gather") == 2
    assert "all_gather" not in names


@checked
def test_the_gradient_is_a_compressed_psum_scatter(check_vma):
    f = sharded(jax.grad(lambda x: jnp.sum(ours(x, "x") ** 2)), mesh_of(x=4), check_vma=check_vma)
    traced = jax.make_jaxpr(f)(gaussian(16, 6))
    names = programs.primitives(traced.jaxpr)
    assert names.count("uzip_psum_scatter") == 1
    assert "reduce_scatter" not in names
    assert str(traced).count(str(SMALL)) == 2


@checked
def test_eager(check_vma):
    x = gaussian(8, 6)
    for transformation in (_jvp, _vmap_inside, _grad_of_a_tree):
        wrap = lambda f: sharded(f, mesh_of(x=4), check_vma=check_vma)
        eager = (transformation(g, wrap)(x) for g in (ours, lax.all_gather))
        assert_same_bits(*eager)


def test_nested_shard_map():
    def gather(g):
        def outer(x):
            inner = jax.shard_map(
                lambda x: g(g(x, "y", tiled=True), "x", axis=1),
                in_specs=P("y"),
                out_specs=P("y"),
                axis_names={"y"},
            )
            return inner(x)

        return jax.shard_map(
            outer, mesh=mesh_of(x=4, y=2), in_specs=P("x"), out_specs=P("x"), axis_names={"x"}
        )

    x = gaussian(16, 6)
    assert count_ours(gather(ours), x) == 2
    assert_same_bits(*(jax.jit(gather(g))(x) for g in (ours, lax.all_gather)))


def test_pmap():
    x = gaussian(8, 6)
    assert_same_bits(
        *(jax.pmap(lambda x, g=g: g(x, "i"), axis_name="i")(x) for g in (ours, lax.all_gather))
    )


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_traced_with_64_bit_types_and_lowered_without(dtype, x64_for):
    x = data.make("random_bits", dtype, 8 * 100)
    with x64_for(dtype):
        traced = jax.jit(sharded(lambda x: ours(x, "x")[None], mesh_of(x=8))).trace(x)
    gather = traced.lower().compile()
    with x64_for(dtype):
        assert_same_bits(gather(x), np.broadcast_to(x.reshape(8, 100), (8, 8, 100)))


# ---- what goes to jax.lax untouched --------------------------------------------------------------


def _unshared(f):
    return sharded(f, mesh_of(x=8))


FALLBACKS = {
    "one device on the axis": lambda g: (
        sharded(lambda x: g(x, "y"), mesh_of(x=8, y=1)),
        gaussian(64),
    ),
    "one device": lambda g: (sharded(lambda x: g(x, "x"), mesh_of(x=1)), gaussian(64)),
    "no axis": lambda g: (_unshared(lambda x: g(x, ())), gaussian(64)),
    "empty": lambda g: (_unshared(lambda x: g(x, "x")), jnp.zeros((8, 0))),
    "no leaves": lambda g: (_unshared(lambda x: (g({}, "x"), x)), gaussian(8)),
    "int": lambda g: (_unshared(lambda x: g(x, "x")), jnp.arange(64)),
    "bool": lambda g: (_unshared(lambda x: g(x, "x")), jnp.arange(64) > 7),
    "to=invarying": lambda g: (
        sharded(lambda x: g(x, "x", to="invarying"), mesh_of(x=8), out_specs=P()),
        gaussian(64),
    ),
    "vmap axis": lambda g: (
        jax.vmap(lambda x: g(x, "i", tiled=True), axis_name="i"),
        gaussian(4, 6),
    ),
    "vmap axis, unmapped": lambda g: (
        jax.vmap(lambda x: x + g(jnp.ones(6), "i")[0], axis_name="i"),
        gaussian(4, 6),
    ),
    "vmap axis inside shard_map": lambda g: (
        sharded(
            jax.vmap(lambda x: g(x, "i"), axis_name="i", out_axes=1), mesh_of(x=8), check_vma=False
        ),
        gaussian(16, 6),
    ),
    "partial-manual": lambda g: (
        jax.shard_map(
            lambda x: g(x, "x", tiled=True),
            mesh=mesh_of(x=4, y=2),
            in_specs=P("x"),
            out_specs=P("x"),
            axis_names={"x"},
        ),
        gaussian(16, 6),
    ),
}


@pytest.mark.parametrize("why", FALLBACKS)
def test_falls_back_to_lax(why):
    (f, x), (reference, _) = FALLBACKS[why](ours), FALLBACKS[why](lax.all_gather)
    assert str(jax.make_jaxpr(f)(x)) == str(jax.make_jaxpr(reference)(x))
    assert_same_bits(jax.jit(f)(x), jax.jit(reference)(x))


@programs.OPTIONS_THAT_REFUSE
def test_options_send_to_lax(options):
    f = sharded(lambda x: jax_uzip.all_gather(x, "x", options=options), mesh_of(x=8))
    reference = sharded(lambda x: lax.all_gather(x, "x"), mesh_of(x=8))
    programs.assert_same_program(f, reference, gaussian(8 * 64))


def test_default_options_have_a_threshold():
    f = sharded(lambda x: jax_uzip.all_gather(x, "x"), mesh_of(x=8))
    assert count_ours(f, gaussian(8 * 16383)) == 0
    assert count_ours(f, gaussian(8 * 16384)) == 1


def test_to_reduced_is_left_to_jax():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Explicit,))
    x = jax.device_put(gaussian(64), jax.NamedSharding(mesh, P("x")))
    f = lambda g: sharded(lambda x: g(x, "x", to="reduced"), mesh, out_specs=P(reduced={"x"}))
    assert str(jax.make_jaxpr(f(ours))(x)) == str(jax.make_jaxpr(f(lax.all_gather))(x))


def test_checked_axis_index_groups_are_left_to_jax():
    groups = [[0, 1, 2, 3], [4, 5, 6, 7]]
    f = lambda g: sharded(lambda x: g(x, "x", axis_index_groups=groups), mesh_of(x=8))
    assert str(jax.make_jaxpr(f(ours))(gaussian(64))) == str(
        jax.make_jaxpr(f(lax.all_gather))(gaussian(64))
    )
    assert_same_bits(*(jax.jit(f(g))(gaussian(64)) for g in (ours, lax.all_gather)))


# ---- errors ----------------------------------------------------------------------------------------

MISUSE = {
    "unknown axis": (lambda g, x: g(x, "nope"), {}),
    "unknown axis among known": (lambda g, x: g(x, ("x", "nope")), {}),
    "axis out of range": (lambda g, x: g(x, "x", axis=3), {}),
    "axis out of range for one leaf": (lambda g, x: g([x, x[0]], "x", axis=1, tiled=True), {}),
    "tiled scalar": (lambda g, x: g(x[0, 0], "x", tiled=True), {}),
    "unknown to": (lambda g, x: g(x, "x", to="nowhere"), {}),
    "uneven groups": (
        lambda g, x: g(x, "x", axis_index_groups=[[0, 1, 2], [3, 4, 5, 6, 7]]),
        {"check_vma": False},
    ),
    "not an array": (lambda g, x: g(["text", x], "x"), {}),
    "axis repeated": (lambda g, x: g(x, ("x", "x")), {}),
}


@pytest.mark.parametrize("misuse", MISUSE)
def test_errors_are_those_of_lax(misuse):
    call, kwargs = MISUSE[misuse]
    programs.assert_ends_alike(call, ours, lax.all_gather, **kwargs)


def test_outside_of_shard_map():
    with pytest.raises(NameError, match="unbound axis name: x"):
        ours(gaussian(64), "x")


# ---- bytes moved -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float8_e4m3fn"])
def test_the_smallest_payload_that_fits_is_moved(dtype, sizes_taken):
    dtype = np.dtype(data.DTYPES[dtype])
    n = (2 << 20) // dtype.itemsize
    raw = n * dtype.itemsize
    f = jax.jit(sharded(lambda x: jax_uzip.all_gather(x, "x")[None, :, :8], mesh_of(x=8)))
    x = data.make("gaussian", dtype, 8 * n)

    # The program holds one all-gather for every payload size and one of raw values, and no other.
    sizes = [*tiers.payload_sizes(n, dtype, Options()), raw]
    hlo = f.lower(x).compile().as_text()
    assert [size // 8 for size in programs.bytes_of(hlo, "all-gather")] == sizes

    for kind, limit in (
        ("gaussian", 1.03),
        ("zeros", 0.05),
        ("random_bits", 1.01),
        ("one_percent_zeros", 1.055),
        ("relu", 1.055),
        ("laplace", 1.055),
    ):
        x = data.make(kind, dtype, 8 * n)
        encoded = int(codec.encode_rows(jnp.asarray(x.reshape(8, n)))[1].max())
        sizes_taken.clear()
        jax.block_until_ready(f(x))
        jax.effects_barrier()
        (taken,) = set(sizes_taken)
        assert len(sizes_taken) == 8
        assert taken == min(size for size in sizes if size >= min(encoded, raw)), kind
        assert taken <= limit * (raw if kind in ("zeros", "random_bits") else encoded), kind


def test_one_device_with_hard_data_decides_for_all(sizes_taken):
    x = data.make("zeros", "bfloat16", 8 << 15).reshape(8, -1)
    x[5] = data.make("random_bits", "bfloat16", 1 << 15)
    f = jax.jit(sharded(lambda x: jax_uzip.all_gather(x, "x")[None], mesh_of(x=8)))
    got = f(x.reshape(-1))
    jax.effects_barrier()
    assert sizes_taken == [2 << 15] * 8
    assert_same_bits(got, np.broadcast_to(x, (8, *x.shape)))


def test_groups_choose_payload_sizes_for_themselves(sizes_taken):
    """One group has only zeros and the other only random bits: along a mesh axis, and in groups."""
    n = 4096
    x = np.stack([data.make(kind, "float32", n) for kind in ("zeros", "random_bits") * 4])
    expected = np.stack([np.broadcast_to(x[i % 2 :: 2], (4, 4, n))[0] for i in range(8)])
    groups = [[0, 2, 4, 6], [1, 3, 5, 7]]
    for name, kwargs in (("x", {}), (("x", "y"), {"axis_index_groups": groups})):
        f = lambda x: jax_uzip.all_gather(x[0], name, options=SMALL, **kwargs)[None]  # noqa: B023
        got = jax.jit(sharded(f, mesh_of(x=4, y=2), check_vma=False))(x)
        assert_same_bits(got, expected)
        jax.effects_barrier()
        (encoded,) = tiers.payload_sizes(n, np.dtype("float32"), SMALL)
        assert sorted(sizes_taken) == [encoded] * 4 + [4 * n] * 4
        sizes_taken.clear()


@pytest.mark.parametrize("platform", ["cuda", "rocm", "tpu"])
def test_a_platform_without_the_codec_gets_jaxs_own_collective(platform):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    shard = jax.ShapeDtypeStruct((8 * 40_000, 3), jnp.bfloat16)

    def lowered(all_gather):
        gather = jax.shard_map(
            lambda x: all_gather(x, "x", axis=1, tiled=True),
            mesh=mesh,
            in_specs=jax.P("x"),
            out_specs=jax.P("x"),
        )
        return jax.jit(gather).trace(shard).lower(lowering_platforms=(platform,)).as_text()

    ours, theirs = lowered(jax_uzip.all_gather), lowered(jax.lax.all_gather)
    assert "all_gather" in ours
    assert "uzip_encode" not in ours
    assert ours.count("stablehlo.all_gather") == theirs.count("stablehlo.all_gather") == 1


def test_a_symbolic_shape_goes_to_jax():
    (b,) = jax.export.symbolic_shape("b")
    shape = jax.ShapeDtypeStruct((4, b), jnp.float32)

    def traced(all_gather):
        return jax.jit(jax.vmap(lambda x: all_gather(x, "v"), axis_name="v")).trace(shape).jaxpr

    assert str(traced(jax_uzip.all_gather)) == str(traced(jax.lax.all_gather))


@pytest.mark.parametrize("options", [{"enabled": False}, "off", False, 5])
def test_options_that_are_none_are_refused(options):
    with pytest.raises(TypeError, match=r"options must be a jax_uzip.Options or None"):
        jax_uzip.all_gather(jnp.zeros(3), "x", options=options)
