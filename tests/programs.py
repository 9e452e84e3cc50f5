"""Programs to put a collective into, on eight virtual CPU devices, and ways to look at them.

A test of a collective gives a function of one array and gets the programs that use it: on meshes, under
every transformation, in the corners that are left to `jax.lax`.

    @pytest.mark.parametrize("transformation", programs.TRANSFORMATIONS, ids=programs.name)
    def test_transformations(transformation):
        f = transformation(lambda x: ours(x, "x"), wrap)
"""

import functools
import re

import data
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from jax_uzip import Options

# Everything is compressed, in one payload size or raw: few branches compile fast.
SMALL = Options(min_bytes=0, tiers=[0.9])

checked = pytest.mark.parametrize("check_vma", [True, False], ids=["checked", "unchecked"])


# ---- meshes and values -------------------------------------------------------------------------


def mesh_of(**axes) -> Mesh:
    """A mesh of the first devices; of Auto axes, which jax.make_mesh does not give unasked."""
    n = int(np.prod(list(axes.values())))
    kinds = (AxisType.Auto,) * len(axes)
    return Mesh(np.array(jax.devices()[:n]).reshape(tuple(axes.values())), tuple(axes), kinds)


def sharded(f, mesh, in_specs=None, out_specs=None, check_vma=True, **kwargs):
    """shard_map over all axes of the mesh, along the first dimension."""
    everything = P(mesh.axis_names)
    return jax.shard_map(
        f,
        mesh=mesh,
        in_specs=everything if in_specs is None else in_specs,
        out_specs=everything if out_specs is None else out_specs,
        check_vma=check_vma,
        **kwargs,
    )


def gaussian(*shape, dtype="float32") -> jax.Array:
    return jnp.asarray(data.make("gaussian", dtype, int(np.prod(shape))).reshape(shape))


def integers(*shape, dtype="float32") -> jax.Array:
    """Small ones: every order of adding them gives the same bits."""
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.integers(-8, 9, shape).astype(data.DTYPES[dtype]))


# Axes of a mesh, and names to send along; the axes are of Auto type.
MESHES = [
    ({"x": 8}, "x"),
    ({"x": 8}, ("x",)),
    ({"x": 4, "y": 2}, "x"),
    ({"x": 4, "y": 2}, "y"),
    ({"x": 4, "y": 2}, ("x", "y")),
    ({"x": 4, "y": 2}, ("y", "x")),
    ({"x": 2, "y": 2, "z": 2}, ("z", "x")),
    ({"x": 2, "y": 1, "z": 3}, ("x", "y", "z")),
]

# Devices, in the order of a mesh: reversed, permuted, half of them, three.
ORDERS = [(7, 6, 5, 4, 3, 2, 1, 0), (3, 0, 6, 1, 7, 2, 5, 4), (6, 2, 5, 1), (4, 7, 2)]


def mesh_in_order(order) -> Mesh:
    return Mesh(np.array(jax.devices())[list(order)], ("x",), (AxisType.Auto,))


# ---- looking at results and programs -----------------------------------------------------------


def assert_same_bits(a, b):
    jax.tree.map(_assert_same_bits, a, b)


def _assert_same_bits(a, b):
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    np.testing.assert_array_equal(data.bits(a), data.bits(b))


def assert_equal(a, b):
    """As values: lax adds to +0, so that two -0 make +0 there."""
    jax.tree.map(_assert_equal, a, b)


def _assert_equal(a, b):
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    np.testing.assert_array_equal(a, b)


def primitives(jaxpr) -> list[str]:
    """The names of all primitives of a traced function, those inside others included."""
    names = []
    for eqn in jaxpr.eqns:
        names.append(eqn.primitive.name)
        for inner in jax.extend.core.jaxprs_in_params(eqn.params):
            names += primitives(getattr(inner, "jaxpr", inner))
    return names


def names_in(f, *args) -> list[str]:
    return primitives(jax.make_jaxpr(f)(*args).jaxpr)


def ours_in(f, *args) -> list[str]:
    """Our primitives in a function, but for pvary, which sends nothing."""
    return [name for name in names_in(f, *args) if "uzip" in name and name != "uzip_pvary"]


def assert_same_program(ours, theirs, *args):
    """To the letter: nothing of ours is in it, before nor after lowering."""
    assert str(jax.make_jaxpr(ours)(*args)) == str(jax.make_jaxpr(theirs)(*args))
    assert jax.jit(ours).lower(*args).as_text() == jax.jit(theirs).lower(*args).as_text()


def bytes_of(hlo: str, opcode: str) -> list[int]:
    """The bytes of the result of each instruction of a compiled program, rising."""
    found = re.findall(rf"^.* = (.*?) {opcode}(?:-start)?\(", hlo, re.MULTILINE)
    return sorted(sum(map(_nbytes, re.findall(r"[a-z]+(\d+)\[([\d,]*)\]", r))) for r in found)


def _nbytes(match) -> int:
    width, dims = match
    return int(width) // 8 * int(np.prod([int(d) for d in dims.split(",") if d], dtype=np.int64))


# ---- transformations ---------------------------------------------------------------------------
# Each takes a collective as a function of an array with 8 values in its last dimension, and `wrap`,
# which is shard_map; it returns a function of one array, [rows, 8].


def _vmap_inside(f, wrap):
    return wrap(jax.vmap(f))


def _vmap_along_another_axis(f, wrap):
    return wrap(jax.vmap(lambda v: f(jnp.tile(v, 2)), in_axes=1, out_axes=1))


def _vmap_of_an_unmapped_value(f, wrap):
    return wrap(lambda x: jax.vmap(lambda row: row[0] + f(x[0]))(x))


def _vmap_outside(f, wrap):
    return lambda x: jax.vmap(wrap(f))(jnp.stack([x, x + 1]))


def _vmap_twice(f, wrap):
    return wrap(lambda x: jax.vmap(jax.vmap(f))(x.reshape(2, 2, 8)).reshape(4, -1))


def _vmap_spmd_axis_name(f, wrap):
    del wrap
    inner = jax.shard_map(f, mesh=mesh_of(x=2, y=2), in_specs=P("x"), out_specs=P("x"))
    return lambda x: jax.vmap(inner, spmd_axis_name="y")(x.reshape(2, -1, 8))


def _grad_inside(f, wrap):
    return wrap(jax.grad(lambda x: jnp.sum(f(x) ** 2)))


def _grad_outside(f, wrap):
    return jax.grad(lambda x: jnp.sum(wrap(lambda x: f(2 * x) ** 2)(x)))


def _grad_of_vmap(f, wrap):
    return wrap(jax.grad(lambda x: jnp.sum(jax.vmap(f)(x) ** 2)))


def _jvp(f, wrap):
    return wrap(lambda x: jax.jvp(lambda x: f(x**2), (x,), (x + 1,)))


def _linearize(f, wrap):
    return wrap(lambda x: jax.linearize(lambda x: f(x**2), x)[1](x))


def _hessian(f, wrap):
    return wrap(lambda x: jax.hessian(lambda v: jnp.sum(f(v) ** 3))(x[0])[None])


def _checkpoint(f, wrap):
    return wrap(jax.grad(jax.checkpoint(lambda x: jnp.sum(f(x**2) ** 2))))


def _checkpoint_policy(f, wrap):
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    loss = lambda x: jnp.sum(f(x @ jnp.ones((8, 8))) ** 2)
    return wrap(jax.grad(jax.checkpoint(loss, policy=policy)))


def _scan(f, wrap):
    def step(carry, row):
        return carry + jnp.sum(f(carry * row)) % 5, f(row)

    return wrap(lambda x: lax.scan(step, x[0], x)[1])


def _grad_of_scan_of_checkpoint(f, wrap):
    @jax.checkpoint
    def step(carry, row):
        return carry + jnp.sum(f(row**2)) * row, None

    return wrap(jax.grad(lambda x: jnp.sum(lax.scan(step, x[0], x)[0])))


def _cond(f, wrap):
    def branch(x):
        return x + jnp.sum(f(x))

    return wrap(lambda x: lax.cond(lax.psum(x[0, 0], "x") != 0.5, branch, lambda x: 2 * x, x))


def _while(f, wrap):
    def loop(x):
        body = lambda state: (state[0] + 1, (state[1] + jnp.sum(f(state[1]))) % 7)
        return lax.while_loop(lambda state: state[0] < 3, body, (0, x))[1]

    return wrap(loop)


def _custom_vjp(f, wrap):
    g = jax.custom_vjp(lambda x: f(x))
    g.defvjp(lambda x: (f(x), x), lambda x, _: (x * 3,))
    return wrap(jax.grad(lambda x: jnp.sum(g(x) ** 2)))


def _inner_jit_called_twice(f, wrap):
    g = jax.jit(f)
    return wrap(lambda x: g(x) + g(x + 1))


TRANSFORMATIONS = [
    _vmap_inside,
    _vmap_along_another_axis,
    _vmap_of_an_unmapped_value,
    _vmap_outside,
    _vmap_twice,
    _vmap_spmd_axis_name,
    _grad_inside,
    _grad_outside,
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
]

# Those that are worth the time of running them eagerly.
EAGER = [_vmap_inside, _jvp, _grad_inside]


def transformations(cases=TRANSFORMATIONS):
    return pytest.mark.parametrize("transformation", cases, ids=lambda f: f.__name__.strip("_"))


def assert_transforms_alike(transformation, ours, theirs, check_vma, jit=jax.jit):
    """Ours is in the transformed program, and the results are equal: all values are small integers."""
    wrap = lambda f: sharded(f, mesh_of(x=2), check_vma=check_vma)
    x = integers(8, 8)
    f, reference = (transformation(g, wrap) for g in (ours, theirs))
    if transformation is not _custom_vjp:
        assert ours_in(f, x)
    assert_equal(jit(f)(x), jit(reference)(x))


# ---- nested and unusual ------------------------------------------------------------------------


def nested(f):
    """shard_map over y inside of shard_map over x; `f(x, axis)` keeps the shape of [8]."""

    def outer(x):
        return jax.shard_map(
            lambda x: f(f(x, "y"), "x"), in_specs=P("y"), out_specs=P("y"), axis_names={"y"}
        )(x)

    return jax.shard_map(
        outer, mesh=mesh_of(x=4, y=2), in_specs=P("x"), out_specs=P("x"), axis_names={"x"}
    )


def assert_nested_and_pmap_alike(ours, theirs, x):
    for program in (
        nested,
        lambda f: lambda x: jax.pmap(lambda x: f(x, "i"), axis_name="i")(x[:8]),
    ):
        f, reference = program(ours), program(theirs)
        assert ours_in(f, x)
        assert_same_bits(jax.jit(f)(x), jax.jit(reference)(x))


def partial_manual(f):
    return jax.shard_map(
        lambda x: f(x, "x"),
        mesh=mesh_of(x=4, y=2),
        in_specs=P("x"),
        out_specs=P("x"),
        axis_names={"x"},
    )


# What goes to jax.lax untouched: `f(x, axis)` in a program, and the argument of that.
FALLBACKS = {
    "one device on the axis": lambda f: (
        sharded(lambda x: f(x, "y"), mesh_of(x=8, y=1), check_vma=False),
        integers(8, 8),
    ),
    "one device": lambda f: (sharded(lambda x: f(x, "x"), mesh_of(x=1)), integers(8, 8)),
    "empty": lambda f: (sharded(lambda x: f(x, "x"), mesh_of(x=8)), jnp.zeros((64, 0))),
    "no leaves": lambda f: (
        sharded(lambda x: (f({}, "x"), x), mesh_of(x=8)),
        integers(64, 8),
    ),
    "int": lambda f: (sharded(lambda x: f(x, "x"), mesh_of(x=8)), jnp.arange(512).reshape(64, 8)),
    "bool": lambda f: (
        sharded(lambda x: f(x, "x"), mesh_of(x=8)),
        jnp.arange(512).reshape(64, 8) > 7,
    ),
    "vmap axis": lambda f: (jax.vmap(lambda x: f(x, "i"), axis_name="i"), integers(4, 8)),
    "partial-manual": lambda f: (partial_manual(f), integers(32, 8)),
}


def fallbacks(*but):
    return pytest.mark.parametrize("why", [why for why in FALLBACKS if why not in but])


def assert_falls_back(why, ours, theirs):
    (f, x), (reference, _) = FALLBACKS[why](ours), FALLBACKS[why](theirs)
    assert str(jax.make_jaxpr(f)(x)) == str(jax.make_jaxpr(reference)(x))
    if x.size:  # jaxlib 0.11.2 crashes on empty arguments
        assert_same_bits(jax.jit(f)(x), jax.jit(reference)(x))


OPTIONS_THAT_REFUSE = pytest.mark.parametrize(
    "options",
    [
        Options(enabled=False, min_bytes=0),
        Options(min_bytes=4 * 64 + 1),
        Options(min_bytes=0, dtypes=["bfloat16"]),
    ],
    ids=["disabled", "under min_bytes", "not this dtype"],
)
"""For a float32 message of 64 values."""


# ---- errors ------------------------------------------------------------------------------------


def assert_ends_alike(call, ours, theirs, check_vma=True):
    """`call(collective, x)` inside shard_map has the same error, or else the same types."""
    a, b = (_outcome(functools.partial(call, g), check_vma) for g in (ours, theirs))
    assert a == b


def _outcome(call, check_vma):
    """The type and the first line of the error of a call inside shard_map, or its output types."""
    f = sharded(
        lambda x: jax.tree.map(lambda x: x[None], call(x)), mesh_of(x=8), check_vma=check_vma
    )
    try:
        return jax.tree.map(str, jax.eval_shape(f, integers(64, 8)))
    except Exception as e:
        return type(e), re.sub(r"at 0x\w+|jax_uzip|jax\.lax", "", (str(e).splitlines() or [""])[0])
