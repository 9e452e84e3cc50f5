"""encode and decode as their users call them: every bit comes back, from wherever they are called."""

import dataclasses

import data
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from payloads import ISAS, using_isa

import jax_uzip
from jax_uzip._src import codec, native

DTYPES = list(data.DTYPES.values())
by_name = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)

LAYOUTS = (native.COMPACT, native.SLOTTED)


def assert_same_bits(got, want):
    got = np.asarray(got)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    np.testing.assert_array_equal(data.bits(got), data.bits(want))


# ---- on the host -------------------------------------------------------------------------------


@by_name
@pytest.mark.parametrize("layout", LAYOUTS, ids=("compact", "slotted"))
def test_every_kind_and_size_comes_back_from_the_host_codec(dtype, layout):
    for n in data.SIZES:
        for kind, x in data.every(dtype, n):
            payload = native.encode_host(x, layout)
            assert payload.size <= native.payload_capacity(n, dtype, layout), (kind, n)
            assert_same_bits(native.decode_host(payload, n, dtype), x)


@by_name
def test_large_messages_come_back_whatever_their_block_size(dtype):
    for n in ((1 << 19) + 5, (1 << 21) + 4099):
        x = data.make("mixed_runs", dtype, n)
        assert_same_bits(native.decode_host(native.encode_host(x), n, dtype), x)


@by_name
def test_incompressible_values_cost_half_a_per_cent_and_a_header(dtype):
    for n in data.SIZES:
        raw = n * dtype.itemsize
        assert native.payload_capacity(n, dtype) <= 1.008 * raw + 2 * 8 * dtype.itemsize + 80
    for n in (1 << 20, 1 << 22):
        assert native.payload_capacity(n, dtype) <= 1.008 * n * dtype.itemsize


@pytest.mark.parametrize("isa", ISAS)
def test_every_instruction_set_writes_and_reads_the_same_bytes(isa):
    for dtype in DTYPES:
        for kind, x in data.every(dtype, 4097):
            with using_isa("portable"):
                payload = native.encode_host(x)
            with using_isa(isa):
                np.testing.assert_array_equal(
                    native.encode_host(x), payload, err_msg=f"{dtype} {kind}"
                )
                assert_same_bits(native.decode_host(payload, x.size, dtype), x)


# ---- as JAX functions --------------------------------------------------------------------------


@by_name
def test_jit_and_eager_and_numpy_write_the_same_bytes(dtype, x64_for):
    with x64_for(dtype):
        for kind in ("special_among_gaussian", "mixed_runs", "constant"):
            x = data.make(kind, dtype, 5000).reshape(50, 100)
            on_host = jax_uzip.encode(x)
            eager = jax_uzip.encode(jnp.asarray(x))
            traced = jax.jit(jax_uzip.encode)(x)
            used = int(traced.nbytes)
            assert isinstance(on_host.payload, np.ndarray)
            np.testing.assert_array_equal(eager.payload[:used], on_host.payload)
            assert used <= eager.payload.size <= used + traced.payload.size // 64 + 1
            assert not eager.payload[used:].any()
            np.testing.assert_array_equal(traced.payload[:used], on_host.payload)
            assert on_host.nbytes == eager.nbytes == used == on_host.payload.size
            assert not traced.payload[used:].any()
            for encoded in (on_host, eager, traced):
                assert (encoded.dtype, encoded.shape) == (x.dtype, x.shape)
                assert_same_bits(jax_uzip.decode(encoded), x)
                assert_same_bits(jax.jit(jax_uzip.decode)(encoded), x)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3, 5)])
def test_scalars_and_empty_arrays_keep_their_shape(shape):
    x = np.full(shape, -0.0, np.float32)
    for function in (lambda x: x, jnp.asarray):
        assert_same_bits(jax_uzip.decode(jax_uzip.encode(function(x))), x)


def test_numpy_scalars_and_views_are_arrays():
    assert jax_uzip.decode(jax_uzip.encode(np.float32(2.5))) == 2.5
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    for view in (x.T, x[::2, ::-1], x.astype(">f4").astype("<f4")):
        assert_same_bits(jax_uzip.decode(jax_uzip.encode(view)), np.ascontiguousarray(view))


def test_where_jit_is_disabled_it_is_not_needed():
    x = data.make("gaussian", np.float32, 1000)
    with jax.disable_jit():
        assert_same_bits(jax_uzip.decode(jax_uzip.encode(jnp.asarray(x))), x)


def test_arrays_of_one_shape_share_few_programs():
    jax.clear_caches()
    sizes = {
        jax_uzip.encode(jnp.asarray(data.make("gaussian", np.float32, 5000, seed))).payload.size
        for seed in range(20)
    }
    assert len(sizes) <= 3


@pytest.mark.parametrize("shape", [(0, 5), (4, 0), (0, 0)])
def test_vmap_over_nothing_gives_nothing(shape):
    x = jnp.zeros(shape)
    encoded = jax.vmap(jax_uzip.encode)(x)
    assert encoded.nbytes.shape == shape[:1]
    assert_same_bits(jax.vmap(jax_uzip.decode)(encoded), np.asarray(x))


def test_a_payload_may_be_cut_to_its_used_bytes_or_be_longer():
    x = data.make("gaussian", ml_dtypes.bfloat16, 3000)
    e = jax.jit(jax_uzip.encode)(x)
    cut = dataclasses.replace(e, payload=e.payload[: int(e.nbytes)])
    longer = dataclasses.replace(e, payload=jnp.pad(e.payload, (0, 99), constant_values=255))
    for encoded in (cut, longer):
        assert_same_bits(jax_uzip.decode(encoded), x)


def test_vmap_and_scan_encode_each_part_for_itself():
    x = data.make("gaussian", ml_dtypes.bfloat16, 6 * 700).reshape(2, 3, 700)
    stacked = jax.vmap(jax.vmap(jax_uzip.encode, in_axes=1), in_axes=1)(x.transpose(2, 0, 1))
    assert stacked.shape == (700,)
    assert stacked.payload.shape[:2] == (2, 3)
    for i in range(2):
        for j in range(3):
            alone = jax_uzip.encode(x[i, j])
            np.testing.assert_array_equal(stacked.payload[i, j, : alone.nbytes], alone.payload)
    assert_same_bits(jax.vmap(jax.vmap(jax_uzip.decode))(stacked), x)

    _, scanned = jax.lax.scan(lambda c, row: (c, jax_uzip.encode(row)), 0, x.reshape(6, 700))
    assert_same_bits(jax.lax.map(jax_uzip.decode, scanned).reshape(x.shape), x)


@pytest.mark.parametrize("check_vma", [False, True])
def test_many_independent_calls_on_eight_devices_end(check_vma):
    # Each holds a thread of XLA's pool while it waits for parts that run on the same pool.
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"), check_vma=check_vma)
    def there_and_back(*xs):
        return tuple(jax_uzip.decode(jax_uzip.encode(x)) for x in xs)

    xs = [data.make("mixed_runs", np.float32, 8 * 40_000, seed) for seed in range(16)]
    for _ in range(3):
        for got, want in zip(there_and_back(*xs), xs, strict=True):
            assert_same_bits(got, want)


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_a_sharded_array_is_encoded_whole(kind):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(getattr(jax.sharding.AxisType, kind),))
    x = data.make("gaussian", np.float32, 8 * 1000).reshape(16, 500)
    with jax.set_mesh(mesh):
        sharded = jax.device_put(x, jax.NamedSharding(mesh, jax.P("x")))
        for function in (jax_uzip.encode, jax.jit(jax_uzip.encode)):
            encoded = function(sharded)
            np.testing.assert_array_equal(
                encoded.payload[: int(encoded.nbytes)], jax_uzip.encode(x).payload
            )
            assert_same_bits(jax_uzip.decode(encoded), x)


# ---- what they refuse --------------------------------------------------------------------------


@pytest.mark.parametrize("x", [np.arange(3), np.array([True]), jnp.arange(3)])
def test_dtypes_without_a_code_are_named(x):
    with pytest.raises(TypeError, match=f"cannot encode dtype {x.dtype}.*bfloat16"):
        jax_uzip.encode(x)


def test_dtypes_of_another_byte_order_and_of_jax_alone_are_named():
    with pytest.raises(
        TypeError, match=r"cannot encode dtype >f4 \(bring its bytes into native order"
    ):
        jax_uzip.encode(np.zeros(3, ">f4"))
    with pytest.raises(TypeError, match="cannot encode dtype key<fry>"):
        jax_uzip.encode(jax.random.key(0))


def test_what_is_not_an_array_is_refused():
    with pytest.raises(TypeError, match="got MaskedArray"):
        jax_uzip.encode(np.ma.masked_equal(np.zeros(3), 0))
    with pytest.raises(TypeError, match="encode takes a JAX or NumPy array, got list"):
        jax_uzip.encode([1.0])
    with pytest.raises(TypeError, match="decode takes an Encoded, got ndarray"):
        jax_uzip.decode(np.zeros(3))


def test_arrays_over_the_size_limit_are_refused_before_anything_is_done():
    huge = jax.ShapeDtypeStruct((1 << 31,), jnp.bfloat16)
    with pytest.raises(ValueError, match="encode it in parts"):
        jax.eval_shape(jax_uzip.encode, huge)


def test_an_encoded_that_contradicts_itself_is_refused():
    e = jax_uzip.encode(data.make("gaussian", np.float32, 1000))
    wrong = [
        ({"format_version": 99}, "format_version is 99.*reads 1"),
        ({"shape": (999,)}, "holds 1000 values, 999 were asked for"),
        ({"dtype": np.dtype(np.float16)}, "holds dtype float32, float16 was asked for"),
        ({"payload": e.payload[:-1]}, "there are"),
        ({"payload": e.payload[:10]}, "too few for the header"),
        ({"payload": e.payload ^ 255}, "does not begin with"),
    ]
    for change, message in wrong:
        with pytest.raises(ValueError, match=message):
            jax_uzip.decode(dataclasses.replace(e, **change))
        if "format_version" in change:
            continue
        on_device = dataclasses.replace(e, payload=jnp.asarray(e.payload))
        on_device = dataclasses.replace(
            on_device, **{k: jnp.asarray(v) if k == "payload" else v for k, v in change.items()}
        )
        with pytest.raises(jax.errors.JaxRuntimeError, match=message):
            jax.block_until_ready(jax_uzip.decode(on_device))
    with pytest.raises(TypeError, match="must be a uint8 array of one dimension"):
        jax_uzip.decode(dataclasses.replace(e, payload=e.payload.astype(int)))
    with pytest.raises(TypeError, match=r"decode a batch with jax.vmap\(jax_uzip.decode\)"):
        jax_uzip.decode(dataclasses.replace(e, payload=e.payload[None]))
    for shape in ((-1000,), (-10, -100), (2.5,), (2**40, 2**40), (2**70,)):
        with pytest.raises(ValueError, match=r"is of no array|encode it in parts"):
            jax_uzip.decode(dataclasses.replace(e, shape=shape))


def test_what_is_wrong_has_one_type_however_jax_dispatches():
    x = data.make("gaussian", np.float32, 1000)
    good = jax_uzip.encode(jnp.asarray(x))
    decode = jax.jit(lambda payload: jax_uzip.decode(dataclasses.replace(good, payload=payload)))
    bad = np.asarray(good.payload) ^ 255
    for prepare in (lambda: None, lambda: decode(np.asarray(good.payload)).block_until_ready()):
        prepare()
        with pytest.raises(jax.errors.JaxRuntimeError, match="does not begin with"):
            decode(bad).block_until_ready()


# ---- decode and add ----------------------------------------------------------------------------


def decode_add(rows, raw=0):
    """The sum of rows; the first of them are added as they are, the others encoded."""
    rows = jnp.asarray(rows)
    payload, _ = codec.encode_rows(rows[raw:])
    return np.asarray(codec.decode_add_rows(jnp.asarray(rows[:raw]), payload))


@by_name
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_sums_are_added_in_rank_order_and_rounded_once(dtype, ranks, x64_for):
    with x64_for(dtype):
        for kind in data.KINDS:
            rows = np.stack([data.make(kind, dtype, 2049, seed) for seed in range(ranks)])
            for raw in range(ranks + 1):
                got = decode_add(rows, raw)
                assert_same_bits(got.view(data.part_dtype(dtype)), data.serial_sum(rows))


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.itemsize == 1], ids=lambda d: d.name)
def test_every_pair_of_8_bit_values_adds_up(dtype):
    a, b = np.meshgrid(*[np.arange(256, dtype=np.uint8)] * 2)
    rows = np.stack([a.ravel(), b.ravel()]).view(dtype)
    assert_same_bits(decode_add(rows), data.serial_sum(rows))


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.itemsize == 2], ids=lambda d: d.name)
def test_16_bit_sums_of_random_bits(dtype):
    rows = np.stack([data.make("random_bits", dtype, 1 << 18, seed) for seed in (1, 2)])
    assert_same_bits(decode_add(rows), data.serial_sum(rows))


def test_sums_of_large_messages_and_batches():
    rows = np.stack([data.make("mixed_runs", np.float32, (1 << 19) + 77, s) for s in range(3)])
    want = data.serial_sum(rows)
    assert_same_bits(decode_add(rows), want)
    payload, _ = codec.encode_rows(rows)
    batch = jnp.stack([payload, payload[::-1]], axis=1)
    none = jnp.asarray(rows[:0])
    both = jax.vmap(codec.decode_add_rows, in_axes=(None, 1))(none, batch)
    assert_same_bits(both[0], want)
    assert_same_bits(both[1], data.serial_sum(rows[::-1]))


def test_a_malformed_addend_is_named():
    x = jnp.asarray(data.make("gaussian", np.float32, 2 * 1000).reshape(2, 1000))
    payload, _ = codec.encode_rows(x)
    for at, message in (
        (0, "payload 1: malformed payload: it does not begin"),
        (40, r"\(payload 1\)"),
    ):
        bad = payload.at[1, at].set(255)
        with pytest.raises(jax.errors.JaxRuntimeError, match=message):
            codec.decode_add_rows(x[:1], bad).block_until_ready()
