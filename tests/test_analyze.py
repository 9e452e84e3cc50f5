import json
import math

import data
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jax_uzip
from jax_uzip._src import analyze as analyze_module
from jax_uzip._src import native
from jax_uzip._src.analyze import analyze


def weights(shape, dtype=np.float32, seed=0):
    return (np.random.default_rng(seed).standard_normal(shape) * 0.02).astype(dtype)


def one(x, **arguments):
    (row,) = analyze(x, **arguments).rows
    return row


def shannon(exponents):
    _, counts = np.unique(exponents, return_counts=True)
    p = counts / counts.sum()
    return -(p * np.log2(p)).sum()


# ---- what a row says ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", data.DTYPES)
def test_a_row_says_what_numpy_says(dtype):
    x = data.make("special_among_gaussian", dtype, 5000)
    row = one({"x": x})
    finfo = ml_dtypes.finfo(data.part_dtype(x.dtype))
    exponents = data.bits(x) >> finfo.nmant & (1 << finfo.nexp) - 1
    entropy = shannon(exponents)

    assert (row.name, row.dtype, row.shape) == ("x", dtype, (5000,))
    assert row.values == exponents.size
    assert row.raw_bytes == x.nbytes
    assert row.encoded_bytes == native.encode_host(x).size
    assert row.ratio == row.raw_bytes / row.encoded_bytes
    assert row.exponent_entropy == pytest.approx(entropy)
    assert row.bound_ratio == pytest.approx(finfo.bits / (finfo.bits - finfo.nexp + entropy))


def test_a_gaussian_comes_within_two_per_cent_of_its_bound():
    row = one(weights(1 << 20, ml_dtypes.bfloat16))
    assert row.bound_ratio == pytest.approx(1.517, abs=0.003)
    assert 0.98 * row.bound_ratio < row.ratio < row.bound_ratio


def test_zeros_have_no_information():
    row = one(np.zeros(1 << 20, ml_dtypes.bfloat16))
    assert row.exponent_entropy == 0
    assert row.bound_ratio == 2  # eight bits are sign and mantissa
    assert row.ratio > 50  # which repeat, too
    scales = one(np.zeros(1 << 20, ml_dtypes.float8_e8m0fnu))
    assert scales.bound_ratio == math.inf


@pytest.mark.parametrize("dtype", ["int32", "bool", "int4", "uint8"])
def test_other_dtypes_are_listed_as_not_compressed(dtype):
    x = jnp.zeros((2, 300), dtype)
    row = one(x)
    assert (row.values, row.exponent_entropy) == (0, None)
    assert row.raw_bytes == row.encoded_bytes == x.nbytes
    assert row.ratio == row.bound_ratio == 1
    assert not row.to_dict()["compressed"]


def test_keys_scalars_and_empty_arrays():
    analysis = analyze({"key": jax.random.key(0), "step": 3, "rate": 0.1, "none": np.zeros((0, 4))})
    rows = {row.name: row for row in analysis.rows}
    assert rows["key"].dtype == "key<fry>"
    assert rows["key"].ratio == 1
    assert (rows["step"].dtype, rows["rate"].dtype) == ("int32", "float32")
    assert (rows["none"].raw_bytes, rows["none"].encoded_bytes, rows["none"].ratio) == (0, 0, 1)
    str(analysis)
    str(analyze([]))


def test_the_other_byte_order_is_the_same_data():
    x = weights(10_000)
    assert one(x.astype(">f4")) == one(x)


# ---- where values come from --------------------------------------------------------------------


def test_names_are_paths_in_the_tree():
    tree = {"layers": [{"w": np.ones(3, np.float32)}, {"w": np.ones(2, np.float32)}]}
    assert [row.name for row in analyze(tree).rows] == ["layers/0/w", "layers/1/w"]
    assert one(np.ones(3, np.float32)).name == "array"


def test_jax_and_sharded_arrays_are_like_numpy_ones(monkeypatch):
    x = weights((64, 1024))
    expected = one(x)
    mesh = jax.make_mesh((4, 2), ("a", "b"))
    sharded = jax.device_put(x, jax.NamedSharding(mesh, jax.P("a")))
    assert one(jnp.asarray(x)) == expected
    assert one(sharded) == expected

    monkeypatch.setattr(analyze_module, "PART_BYTES", x.nbytes // 8)
    row = one(sharded)  # shard by shard, and each of the replicated ones once
    assert (row.values, row.raw_bytes) == (expected.values, expected.raw_bytes)
    assert row.exponent_entropy == pytest.approx(expected.exponent_entropy)


@pytest.mark.parametrize(
    "view",
    [lambda x: x, lambda x: x.T, lambda x: x[::2, ::3], lambda x: np.moveaxis(x, 2, 0), np.ravel],
)
@pytest.mark.parametrize("part_bytes", [100, 4000, 40_000])
def test_parts_are_of_limited_size_and_nothing_is_missed(monkeypatch, view, part_bytes):
    monkeypatch.setattr(analyze_module, "PART_BYTES", part_bytes)
    x = view(weights((24, 30, 17)))
    parts = list(analyze_module._parts(x))
    assert max(part.nbytes for part in parts) <= part_bytes
    assert (np.concatenate(parts) == x.reshape(-1)).all()


def test_progress_adds_up_to_the_raw_bytes(monkeypatch):
    monkeypatch.setattr(analyze_module, "PART_BYTES", 1000)
    tree = [weights(5000), np.arange(10), weights((7, 300)).T]
    done = []
    analyze(tree, cast="bfloat16", progress=done.append)
    assert sum(done) == sum(x.nbytes for x in tree)
    assert len(done) > 20


def test_cast():
    x = weights(1 << 16)
    assert one(x, cast="bfloat16") == one(x.astype(ml_dtypes.bfloat16))
    assert one(x, cast=jnp.float8_e4m3fn).dtype == "float8_e4m3fn"
    assert one(np.arange(5), cast="bfloat16").ratio == 1
    assert one(x.astype(np.complex64), cast="bfloat16").dtype == "complex64"
    assert one(x, cast="bf16") == one(x, cast="bfloat16")
    with pytest.raises(TypeError, match="int8"):
        analyze(x, cast="int8")


# ---- errors ------------------------------------------------------------------------------------


def test_leaves_without_values_are_type_errors():
    shape = {"w": jax.ShapeDtypeStruct((3,), np.float32)}
    with pytest.raises(TypeError, match=r"w is a jax.ShapeDtypeStruct"):
        analyze(shape)
    with pytest.raises(TypeError, match="w is traced"):
        jax.jit(lambda x: analyze({"w": x}))(np.ones(3))
    with pytest.raises(TypeError, match="w is a str"):
        analyze({"w": "text"})
    with pytest.raises(TypeError, match="w is a ndarray of Python objects"):
        analyze({"w": np.array([{}])})


@pytest.mark.parametrize("x", [10**30, -(10**30), 2**64, 2**31])
def test_numbers_beyond_jax_are_type_errors(x):
    with pytest.raises(TypeError, match="w is an int too large for JAX"):
        analyze({"w": x})
    with pytest.raises(TypeError, match="array is an int too large for JAX"):
        analyze(x)


# ---- all together, as a table and as JSON ------------------------------------------------------


def test_totals_are_weighted_by_bytes():
    tree = {"zeros": np.zeros(1 << 18, np.float32), "weights": weights(1 << 16), "i": np.arange(9)}
    analysis = analyze(tree)
    total = analysis.total
    assert total.raw_bytes == sum(x.nbytes for x in tree.values())
    assert total.encoded_bytes == sum(row.encoded_bytes for row in analysis.rows)
    assert total.ratio == total.raw_bytes / total.encoded_bytes
    assert total.exponent_entropy == pytest.approx(one(tree["weights"]).exponent_entropy / 5)


def test_table():
    analysis = analyze(
        {"b": weights((2, 40_000)), "a": weights(9000, np.float16), "c": np.arange(4)}
    )
    table = str(analysis).splitlines()
    assert len(table) == 3 + 2 + 2
    assert table[0].startswith("tensor ")
    assert table[0].endswith(" ratio  bound  exponent bits")
    assert [line.split()[0] for line in table[2:5]] == ["a", "b", "c"]
    assert table[3].split()[1:3] == ["float32[2,40000]", "320,000"]
    assert table[4].split()[-2:] == ["-", "-"]
    assert table[-1].startswith("total")
    assert len({len(line) for line in table}) == 1

    shortened = analysis.table(sort="raw", limit=1).splitlines()
    assert [line.split()[0] for line in shortened[2:4]] == ["b", "(2"]
    assert shortened[-1].split() == table[-1].split()
    by_ratio = analysis.table(sort="ratio").splitlines()
    assert [line.split()[0] for line in by_ratio[2:5]] == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("\ud800", r"\ud800"),
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("a\nb\r\tc\0", r"a\nb\r\tc\x00"),
        ("\x9b31m\x7f", r"\x9b31m\x7f"),
        ("\u202eabc\u2028", r"\u202eabc\u2028"),
        ("größe/重み", "größe/重み"),
    ],
)
def test_names_that_cannot_be_printed_are_escaped(name, shown):
    analysis = analyze({name: weights(9000)})
    table = str(analysis)
    assert len(table.splitlines()) == 5
    assert table.splitlines()[2].startswith(f"{shown}  float32")
    assert all(c.isprintable() or c == "\n" for c in table)
    table.encode()
    found = json.loads(json.dumps(analysis.to_dict()))
    assert found["tensors"][0]["name"] == name


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (weights(9000), None),
        (np.arange(9), None),
        (np.zeros(0, np.float32), None),
        (np.zeros(9, [("a", "i1"), ("b", "i1")]), None),
        (np.zeros(9, "V7"), None),
        (weights(9000, ml_dtypes.bfloat16).view("V2"), "void16: not looked at. NumPy files"),
        (weights(9000, ml_dtypes.float8_e4m3fn).view("V1"), "void16: not looked at. NumPy files"),
        (np.full(9000, 1 / 3, np.float32), "A ratio above its bound"),
        (np.zeros(9000, np.float32), "A ratio above its bound"),
        (weights(3), "A ratio below 1"),
    ],
)
def test_notes_say_what_the_numbers_do_not(x, says):
    analysis = analyze([x])
    assert all(says in note for note in analysis.notes)
    assert len(analysis.notes) == (says is not None)
    table = str(analysis).splitlines()
    assert table[5:] == [line for note in analysis.notes for line in ("", note)]
    assert analysis.to_dict()["notes"] == list(analysis.notes)


def test_json():
    analysis = analyze({"w": weights(9000), "s": np.zeros(99, ml_dtypes.float8_e8m0fnu)})
    found = json.loads(json.dumps(analysis.to_dict(), allow_nan=False))
    assert found["tensors"][1]["ratio"] == analysis.rows[1].ratio
    assert found["tensors"][1]["shape"] == [9000]
    assert found["tensors"][0]["bound_ratio"] is None  # infinite
    assert found["total"]["raw_bytes"] == analysis.total.raw_bytes


def test_it_is_public():
    assert jax_uzip.analyze is analyze
