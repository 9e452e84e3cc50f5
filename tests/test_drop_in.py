"""The flag: unmodified `jax.lax` calls and their transposes are compressed, others and all else untouched."""

import contextlib
import functools
import os
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from programs import SMALL, assert_same_bits, checked, gaussian, mesh_of, sharded

import jax_uzip
from jax_uzip import Options
from jax_uzip._src import drop_in, record
from jax_uzip._src.collectives.primitive import collectives

on = functools.partial(jax_uzip.enabled, SMALL)
RING = [(i, (i + 1) % 8) for i in range(8)]

# What a user writes, on rows of [8, n] of one device, and how ours is called.
CALLS = {
    "all_gather": (
        lambda x: lax.all_gather(x, "x"),
        lambda x: jax_uzip.all_gather(x, "x", options=SMALL),
    ),
    "all_to_all": (
        lambda x: lax.all_to_all(x, "x", 0, 0),
        lambda x: jax_uzip.all_to_all(x, "x", 0, 0, options=SMALL),
    ),
    "ppermute": (
        lambda x: lax.ppermute(x, "x", RING),
        lambda x: jax_uzip.ppermute(x, "x", RING, options=SMALL),
    ),
    "psum": (lambda x: lax.psum(x, "x"), lambda x: jax_uzip.psum(x, "x", options=SMALL)),
    "psum_scatter": (
        lambda x: lax.psum_scatter(x, "x"),
        lambda x: jax_uzip.psum_scatter(x, "x", options=SMALL),
    ),
}


def whole(call, replicated, check_vma):
    """All that a call returns on all devices; their one result if it is the same on all."""
    if replicated:
        return jax.jit(sharded(call, mesh_of(x=8), out_specs=P(), check_vma=check_vma))
    return jax.jit(sharded(lambda x: call(x)[None], mesh_of(x=8), check_vma=check_vma))


def program(call, check_vma=True):
    """A function of a call that always has the same type."""
    return jax.jit(sharded(lambda x: x + call(x).sum(), mesh_of(x=8), check_vma=check_vma))


def compressed(f, *args) -> int:
    """How often values are encoded in the program of a jitted function."""
    return f.lower(*args).as_text().count("uzip_encode.v1")


def names(f, *args) -> list[str]:
    """The compressed collectives of the program of a jitted function."""
    recorder = record.Recorder()
    with record.listen(recorder):
        f.lower(*args)
    return [collective.name for collective in recorder.sent]


@pytest.fixture(autouse=True)
def _off_afterwards():
    yield
    jax_uzip.disable()


# ---- what is compressed ------------------------------------------------------------------------


@checked
@pytest.mark.parametrize("name", CALLS)
def test_a_call_of_lax_becomes_ours(name, check_vma):
    theirs, ours = (whole(call, name == "psum", check_vma) for call in CALLS[name])
    x = gaussian(64, 40)
    plain = theirs(x)
    assert compressed(theirs, x) == 0
    with on():
        assert compressed(theirs, x) == compressed(ours, x) > 0
        assert_same_bits(theirs(x), ours(x))
    if not name.startswith("psum"):
        assert_same_bits(plain, ours(x))
    assert compressed(theirs, x) == 0


def test_every_collective_of_ours_is_reached_by_the_flag():
    folder = Path(drop_in.__file__).parent / "collectives"
    shared = {"messages", "primitive", "pvary"}  # the flag sums the gradients behind any pvary
    for file in folder.glob("*.py"):
        if file.stem not in shared | {"__init__"}:
            assert file.stem in vars(drop_in), f"drop_in.py does not import {file.name}"
    for primitive in collectives():
        assert "drop_in" in jax.interpreters.mlir._lowerings[primitive].rule.__code__.co_filename


def test_backward_passes_are_compressed():
    gather = sharded(lambda x: lax.all_gather(x, "x", tiled=True) ** 2, mesh_of(x=8))
    x = gaussian(64, 40)
    gradient = jax.jit(jax.grad(lambda x: gather(x).sum()))
    expected = gradient(x)
    with on():
        assert names(gradient, x) == ["all_gather", "psum_scatter"]
        np.testing.assert_allclose(gradient(x), expected, rtol=1e-6)


@checked
def test_gradients_of_replicated_weights_are_compressed(check_vma):
    """JAX sums them itself, where no call stands in the program."""
    loss = sharded(
        lambda w, x: lax.pmean((x @ w).sum(), "x"),
        mesh_of(x=8),
        in_specs=(P(), P("x")),
        out_specs=P(),
        check_vma=check_vma,
    )
    gradient = jax.jit(jax.grad(loss))
    w, x = gaussian(40, 30), gaussian(64, 40)
    expected = gradient(w, x)
    with jax_uzip.enabled(Options(min_bytes=1000)):  # not the loss itself
        assert names(gradient, w, x) == ["psum"]
        np.testing.assert_allclose(gradient(w, x), expected, rtol=1e-6, atol=1e-5)


def test_pmap():
    f = jax.pmap(lambda x: lax.all_gather(x, "i"), axis_name="i")
    x = gaussian(8, 64)
    expected = f(x)
    with on():
        assert compressed(f, x) == 1
        assert_same_bits(f(x), expected)
    assert compressed(f, x) == 0


def test_vmap_scan_and_cond():
    def f(x):
        def body(c, _):
            c = jax.vmap(lambda row: lax.ppermute(row, "x", RING))(c)
            return lax.cond(c.sum() > -1e9, lambda c: c * 2, lambda c: c, c), None

        return lax.scan(body, x, length=3)[0]

    f = jax.jit(sharded(f, mesh_of(x=8)))
    x = gaussian(16, 40)
    expected = f(x)
    with on():
        assert compressed(f, x) == 1
        assert_same_bits(f(x), expected)


def test_eager(monkeypatch):
    calls = []
    encode_rows = record.message
    monkeypatch.setattr(record, "message", lambda n: calls.append(n) or encode_rows(n))
    f = sharded(lambda x: lax.all_gather(x, "x", tiled=True), mesh_of(x=8))
    x = gaussian(64, 40)
    expected = f(x)
    assert calls == []
    with on():
        assert_same_bits(f(x), expected)
    assert calls == [8 * 40 * 4]


def test_options_are_those_of_the_flag():
    f = program(CALLS["all_gather"][0])
    x = gaussian(64, 40)
    with jax_uzip.enabled(Options(min_bytes=8 * 40 * 4)):
        assert compressed(f, x) == 1
    with jax_uzip.enabled(Options(min_bytes=8 * 40 * 4 + 1)):
        assert compressed(f, x) == 0
    with jax_uzip.enabled(Options(min_bytes=0, dtypes=["bfloat16"])):
        assert compressed(f, x) == 0
        assert compressed(f, x.astype(jnp.bfloat16)) == 1


# ---- what is not -------------------------------------------------------------------------------

UNTOUCHED = {
    "small": lambda x: lax.all_gather(x, "x"),
    "integers": lambda x: lax.psum(x.astype(jnp.int32), "x"),
    "pmax": lambda x: lax.pmax(x, "x"),
    "axis_index": lambda x: x + lax.axis_index("x"),
    "invarying": lambda x: lax.all_gather(x, "x", to="invarying"),
    "uneven groups": lambda x: lax.psum(x, "x", axis_index_groups=[[0, 1, 2], [3, 4, 5, 6, 7]]),
    "psum of a constant": lambda x: x * lax.psum(1, "x"),
    "empty": lambda x: lax.all_gather(x[:, :0], "x"),
}


@pytest.mark.parametrize("why", UNTOUCHED)
def test_what_the_gate_refuses_is_the_program_of_lax_to_the_letter(why):
    f = program(UNTOUCHED[why], check_vma="groups" not in why)
    x = gaussian(64, 40)
    off = f.lower(x).as_text()
    with jax_uzip.enabled(Options() if why == "small" else SMALL):
        assert f.lower(x).as_text() == off


@pytest.mark.parametrize("axes", [{"x": 1}, {"x": 4, "y": 2}])
def test_one_device_and_partial_manual_are_untouched(axes):
    f = jax.jit(
        jax.shard_map(
            lambda x: lax.all_gather(x, "x"),
            mesh=mesh_of(**axes),
            in_specs=P("x"),
            out_specs=P(None, "x"),
            axis_names={"x"},
        )
    )
    off = f.lower(gaussian(64, 40)).as_text()
    with on():
        assert f.lower(gaussian(64, 40)).as_text() == off


LOWER_ALL = """
import jax, sys
sys.path.insert(0, {tests!r})
jax.config.update("jax_num_cpu_devices", 8)
from jax import lax
from jax.sharding import AxisType, PartitionSpec as P
if {ours}: import jax_uzip
RING = [(i, (i + 1) % 8) for i in range(8)]
mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
x = jax.ShapeDtypeStruct((8 << 17,), "float32")
for check in (True, False):
    for call in (
        lambda x: lax.all_gather(x, "x"),
        lambda x: lax.all_to_all(x, "x", 0, 0, tiled=True),
        lambda x: lax.ppermute(x, "x", RING),
        lambda x: lax.psum(x, "x"),
        lambda x: lax.pmean(x, "x"),
        lambda x: lax.psum_scatter(x, "x", tiled=True),
        lambda x: jax.grad(lambda x: (lax.all_gather(x, "x") ** 2).sum())(x),
    ):
        out = lambda x: jax.numpy.sum(call(x))[None]
        f = jax.jit(jax.shard_map(out, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=check))
        print(f.lower(x).as_text())
        for platforms in (("cuda",), ("tpu",), ("cpu", "cuda", "tpu")):
            print(f.trace(x).lower(lowering_platforms=platforms).as_text())
"""


def python(code, **environ):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(Path(jax_uzip.__file__).parents[1]), **environ},
        text=True,
        capture_output=True,
        check=False,
    )


def test_off_is_as_if_jax_uzip_had_not_been_imported():
    """Also for platforms that have no codec, and for several platforms in one program."""
    without, off = (
        python(LOWER_ALL.format(ours=ours, tests=str(Path(__file__).parent)))
        for ours in (False, True)
    )
    assert without.returncode == 0, without.stderr
    assert "all_gather" in without.stdout
    assert off.stdout == without.stdout


@pytest.mark.parametrize("platform", ["cuda", "rocm", "tpu"])
@pytest.mark.parametrize("name", CALLS)
def test_a_platform_without_the_codec_is_untouched(name, platform):
    f = program(CALLS[name][0])
    x = jax.ShapeDtypeStruct((64, 40), "float32")

    def lowered():
        return f.trace(x).lower(lowering_platforms=(platform,)).as_text()

    off = lowered()
    with on():
        assert lowered() == off


def test_a_program_for_several_platforms_is_compressed_where_the_codec_runs():
    f = program(CALLS["psum"][0])
    x = jax.ShapeDtypeStruct((64, 40), "float32")
    with on():
        text = f.trace(x).lower(lowering_platforms=("cpu", "cuda")).as_text()
        on_cpu = f.lower(x).as_text()
    for name, also in (("uzip_encode.v1", 0), ("stablehlo.all_reduce", 1)):
        assert text.count(name) == on_cpu.count(name) + also, name


# ---- on and off --------------------------------------------------------------------------------


def test_toggling_never_serves_the_other_program():
    f = program(CALLS["all_gather"][0])
    x = gaussian(64, 40)
    traces = []

    @jax.jit
    def outer(x):
        traces.append(drop_in.current())
        return f(x) + 1

    for _ in range(2):
        for flag in (None, SMALL, Options(min_bytes=0, tiers=[0.8])):
            if flag:
                jax_uzip.enable(flag)
            else:
                jax_uzip.disable()
            outer(x)
            assert compressed(outer, x) == compressed(f, x) == bool(flag)
    assert traces == [None, SMALL, Options(min_bytes=0, tiers=[0.8])]  # each once: caches hit


def test_contexts_nest_and_end_with_errors():
    assert drop_in.current() is None
    with on():
        with jax_uzip.enabled(Options(enabled=False)):
            assert drop_in.current() is None
        with contextlib.suppress(ZeroDivisionError), jax_uzip.enabled():
            assert drop_in.current() == Options()
            raise ZeroDivisionError
        assert drop_in.current() == SMALL
    assert drop_in.current() is None


def test_enable_is_for_all_threads_and_enabled_for_one():
    def seen():
        found = []
        thread = threading.Thread(target=lambda: found.append(drop_in.current()))
        thread.start()
        thread.join()
        return found[0]

    with on():
        assert seen() is None
    jax_uzip.enable(SMALL)
    assert seen() == SMALL
    with jax_uzip.enabled(Options(enabled=False)):
        assert (drop_in.current(), seen()) == (None, SMALL)
    jax_uzip.disable()
    assert seen() is None


def test_what_counts_is_the_flag_at_lowering():
    f = whole(CALLS["all_gather"][0], False, True)
    x = gaussian(64, 40)
    with on():
        traced = f.trace(x)
        lowered = traced.lower()
    assert "uzip_encode" in lowered.as_text()
    assert "uzip_encode" not in traced.lower().as_text()
    expected = f(x)
    assert_same_bits(lowered.compile()(x), expected)  # compiled: stays what it is


def test_a_context_inside_of_a_jitted_function_has_no_effect():
    f = program(CALLS["all_gather"][0])

    @jax.jit
    def g(x):
        with on():
            return f(x)

    assert compressed(g, gaussian(64, 40)) == 0


def test_the_pull_back_is_as_the_flag_is_where_it_is_called():
    f = sharded(lambda x: lax.all_gather(x, "x", tiled=True) ** 2, mesh_of(x=8))
    x = gaussian(64, 40)
    with on():
        out, pull_back = jax.vjp(f, x)
        pull_back = jax.jit(pull_back)
        assert names(pull_back, out) == ["psum_scatter"]
    assert compressed(pull_back, out) == 0


def test_wrong_options_are_refused():
    for change in (jax_uzip.enable, lambda options: jax_uzip.enabled(options).__enter__()):
        with pytest.raises(TypeError, match=r"jax_uzip\.Options or None, got 5"):
            change(5)


# ---- the environment ---------------------------------------------------------------------------

SHOW = "import jax_uzip; from jax_uzip._src import drop_in; print(drop_in.current())"


def test_the_environment_turns_it_on():
    assert python(SHOW).stdout == "None\n"
    assert python(SHOW, JAX_UZIP="0").stdout == "None\n"
    assert python(SHOW, JAX_UZIP="1").stdout == f"{Options()}\n"
    assert python(SHOW, JAX_UZIP="1", JAX_UZIP_MIN_BYTES="7").stdout == f"{Options(min_bytes=7)}\n"
    assert python(SHOW, JAX_UZIP="1", JAX_UZIP_ENABLED="0").stdout == "None\n"


def test_a_wrong_variable_is_named():
    assert "ValueError: environment variable JAX_UZIP='yes': must be one of" in (
        python(SHOW, JAX_UZIP="yes").stderr
    )


# ---- caches on disk, and exports ---------------------------------------------------------------

CACHED = """
import jax, jax_uzip, numpy as np
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
hits = []
listen = jax.monitoring.register_event_listener
listen(lambda name, **_: hits.append(name) if "cache_hits" in name else None)
mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
call = lambda x: jax.lax.all_gather(x, "x")
gather = jax.shard_map(call, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P(None, "x"))
x = np.random.default_rng(0).standard_normal((8, 40000), np.float32)
def run():
    f = jax.jit(gather)
    hits.clear()
    out = f(x)
    assert (np.asarray(out) == np.repeat(x[:, None], 8, 1)).all()
    return bool(hits), "uzip_encode" in f.lower(x).compile().as_text()
off = run()
jax_uzip.enable()
print(off, run())
"""


def test_the_persistent_cache_keeps_the_two_apart(tmp_path):
    first, second = (python(CACHED, JAX_COMPILATION_CACHE_DIR=str(tmp_path)) for _ in range(2))
    assert first.stdout == "(False, False) (False, True)\n", first.stderr
    assert second.stdout == "(True, False) (True, True)\n", second.stderr


def test_export_wants_the_codec_listed_and_keeps_the_choice():
    f = program(CALLS["psum"][0])
    x = gaussian(64, 40)
    expected = f(x)
    with on():
        with pytest.raises(ValueError, match=r"uzip_encode\.v1"):
            jax.export.export(f)(x)
        ours = f(x)
        names = ("uzip_encode.v1", "uzip_decode.v1", "uzip_decode_add.v1")
        checks = [jax.export.DisabledSafetyCheck.custom_call(name) for name in names]
        exported = jax.export.export(f, disabled_checks=checks)(x)
    assert "uzip_encode.v1" in exported.mlir_module()
    on_mesh = jax.device_put(x, jax.sharding.NamedSharding(mesh_of(x=8), P("x")))
    assert_same_bits(exported.call(on_mesh), ours)
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)

    plain = jax.export.export(f)(x)
    with on():
        assert "uzip" not in jax.jit(plain.call).lower(on_mesh).as_text()


def test_symbolic_shapes_are_left_to_lax():
    f = jax.jit(sharded(lambda x: lax.psum(x, "x"), mesh_of(x=8), out_specs=P()))
    (n,) = jax.export.symbolic_shape("n")
    shape = jax.ShapeDtypeStruct((8 * n, 4), "float32")
    off, under_the_flag = None, None
    for flag in (contextlib.nullcontext(), on()):
        with flag:
            off, under_the_flag = under_the_flag, jax.export.export(f)(shape).mlir_module()
    assert under_the_flag == off
