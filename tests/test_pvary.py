"""`jax_uzip.pvary`: the sum that JAX adds when it differentiates replicated parameters is compressed."""

import functools

import data
import jax
import jax.numpy as jnp
import numpy as np
import programs
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from programs import SMALL, assert_equal, assert_same_bits, integers, mesh_of, sharded

import jax_uzip
from jax_uzip import Options

ours = functools.partial(jax_uzip.pvary, options=SMALL)
theirs = functools.partial(lax.pcast, to="varying")


def parameters():
    return {
        "kernel": integers(8, 4),
        "bias": integers(4),
        "half": integers(4, 4, dtype="bfloat16"),
        "step": jnp.arange(3),
    }


def gradients(mark, axis="x", wrap=lambda loss: loss, batch_spec=None):
    """Of a data-parallel loss: parameters are the same everywhere, and the batch is not."""

    def loss(p, batch):
        p = mark(p, axis)
        y = batch @ p["kernel"] + p["bias"]
        return jnp.sum(y**2) + jnp.sum(y.astype(jnp.bfloat16) @ p["half"]).astype(jnp.float32)

    def f(p, batch):
        return jax.grad(wrap(loss), allow_int=True)(p, batch) | {"step": p["step"]}

    mesh = mesh_of(x=4, y=2)
    spec = P(("x", "y")) if batch_spec is None else batch_spec
    return jax.shard_map(f, mesh=mesh, in_specs=(P(), spec), out_specs=P())


def implicit(p, axis):
    """No mark at all: JAX makes one where the parameters meet the batch."""
    del axis
    return p


AXES = [("x", P("x")), (("x", "y"), None), (("y", "x"), None)]


@pytest.mark.parametrize(("axis", "spec"), AXES, ids=str)
def test_the_gradients_are_those_of_jax_and_go_in_one_message_a_dtype(axis, spec):
    p, batch = parameters(), integers(16, 8)
    f = gradients(ours, axis, batch_spec=spec)
    names = programs.names_in(f, p, batch)
    assert names.count("uzip_psum_invariant") == 2
    assert names.count("uzip_pvary") == 2
    assert "psum_invariant" not in names
    got = jax.jit(f)(p, batch)
    assert_equal(got, jax.jit(gradients(theirs, axis, batch_spec=spec))(p, batch))
    assert_equal(got, jax.jit(gradients(implicit, axis, batch_spec=spec))(p, batch))


def test_the_gradient_has_the_bits_of_a_serial_sum():
    rows = np.stack([data.make("gaussian", "float32", 1000, rank) for rank in range(8)])
    f = lambda w, x: jax.grad(lambda w: jnp.sum(ours(w, "x") * x[0]))(w)
    f = jax.jit(jax.shard_map(f, mesh=mesh_of(x=8), in_specs=(P(), P("x")), out_specs=P()))
    assert_same_bits(f(jnp.ones(1000), rows), data.serial_sum(rows))


@pytest.mark.parametrize("wrap", [jax.checkpoint, jax.jit], ids=["checkpoint", "jit"])
def test_under_checkpoint_and_jit(wrap):
    p, batch = parameters(), integers(16, 8)
    f = gradients(ours, ("x", "y"), wrap)
    assert programs.names_in(f, p, batch).count("uzip_psum_invariant") == 2
    assert_equal(jax.jit(f)(p, batch), jax.jit(gradients(implicit, wrap=wrap))(p, batch))


def test_transformed():
    w, x = integers(8), integers(8, 8)

    def program(mark):
        def f(w, x):
            loss = lambda w, row: jnp.sum((mark(w, "x") * row) ** 2)
            per_row = jax.vmap(jax.grad(loss), in_axes=(None, 0))(w, x)
            stacked = jax.vmap(jax.grad(loss), in_axes=(0, None))(jnp.stack([w, w + 1]), x[0])
            forward = lax.psum(jax.jvp(lambda w: loss(w, x[0]), (w,), (w,))[1], "x")
            second = jax.hessian(loss)(w, x[0])
            step = lambda carry, row: (carry + jax.grad(loss)(w, row), None)
            return per_row, stacked, forward, second, lax.scan(step, jnp.zeros(8), x)[0]

        return jax.shard_map(f, mesh=mesh_of(x=4), in_specs=(P(), P("x")), out_specs=P())

    assert "uzip_psum_invariant" in programs.names_in(program(ours), w, x)
    assert_equal(jax.jit(program(ours))(w, x), jax.jit(program(theirs))(w, x))
    assert_equal(program(ours)(w, x), program(theirs)(w, x))


def test_the_forward_pass_is_free():
    f = sharded(lambda w: ours([w, 2 * w], "x")[1], mesh_of(x=8), in_specs=P())
    hlo = jax.jit(f).lower(integers(8, 8)).compile().as_text()
    assert "uzip" not in hlo.replace("uzip_pvary", "")
    assert "concatenate" not in hlo


def test_an_explicit_psum_does_not_reach_the_sum_of_the_gradients():
    """The reason why this function exists; should it fail one day, say so in the README."""

    def f(w, x):
        return jax.grad(lambda w: jax_uzip.psum(jnp.sum((x * w) ** 2), "x", options=SMALL))(w)

    f = jax.shard_map(f, mesh=mesh_of(x=8), in_specs=(P(), P("x")), out_specs=P())
    assert "psum_invariant" in programs.names_in(f, integers(8), integers(8, 8))


def test_unchecked_it_is_nothing():
    f, reference = (
        sharded(lambda x, g=g: g(x, "x"), mesh_of(x=8), check_vma=False) for g in (ours, theirs)
    )
    programs.assert_same_program(f, reference, integers(8, 8))


@pytest.mark.parametrize(
    "options",
    [
        Options(enabled=False),
        Options(min_bytes=4 * 64 + 1),
        Options(min_bytes=0, dtypes=["float16"]),
    ],
    ids=["disabled", "under min_bytes", "not this dtype"],
)
def test_options_send_to_lax(options):
    g = functools.partial(jax_uzip.pvary, options=options)
    f, reference = (
        sharded(jax.grad(lambda x, g=g: jnp.sum(lax.psum(g(x, "x"), "x"))), mesh_of(x=8), P(), P())
        for g in (g, theirs)
    )
    programs.assert_same_program(f, reference, integers(64))


MISUSE = {
    "unknown axis": lambda g, x: g(lax.psum(x, "x"), "nope"),
    "varies already": lambda g, x: g(x, "x"),
    "not an array": lambda g, x: g("text", "x"),
}


@pytest.mark.parametrize("misuse", MISUSE)
def test_errors_are_those_of_lax(misuse):
    programs.assert_ends_alike(MISUSE[misuse], ours, theirs)
