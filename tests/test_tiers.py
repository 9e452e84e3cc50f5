import data
import numpy as np
import pytest

from jax_uzip import Options
from jax_uzip._src import native
from jax_uzip._src.tiers import (
    ALIGNMENT,
    GAUSSIAN_FRACTION,
    SMALL_VALUES,
    from_words,
    payload_sizes,
    to_words,
)

ALL = Options(min_bytes=0)
FLOAT32 = np.dtype("float32")
BIG = 1 << 24

dtypes = pytest.mark.parametrize("dtype", native.dtypes(), ids=lambda dtype: dtype.name)


@pytest.mark.parametrize("n", [1, 31, 1000, 65537, 1 << 20, 1 << 26])
@dtypes
def test_payload_sizes_rise_are_aligned_and_stay_under_raw(dtype, n):
    sizes = payload_sizes(n, dtype, Options())
    assert list(sizes) == sorted(set(sizes))
    assert all(
        0 < size < min(n * dtype.itemsize, native.payload_capacity(n, dtype)) for size in sizes
    )
    assert all(size % ALIGNMENT == 0 for size in sizes)
    assert len(sizes) <= 6


def test_payload_sizes_follow_the_options():
    assert payload_sizes(25600, FLOAT32, Options(tiers=[0.25, 0.5])) == (25600, 51200)


def test_a_small_message_has_no_payload_as_large_as_raw():
    assert payload_sizes(32, FLOAT32, ALL) == ()  # 128 bytes of payload would save nothing
    assert payload_sizes(64, FLOAT32, ALL) == (128,)


def test_complex_values_have_the_sizes_of_their_parts():
    for whole, part in (("complex64", "float32"), ("complex128", "float64")):
        assert payload_sizes(BIG, np.dtype(whole), ALL) == payload_sizes(
            2 * BIG, np.dtype(part), ALL
        )


@pytest.mark.parametrize("name", GAUSSIAN_FRACTION)
def test_the_table_is_what_the_codec_does(name):
    dtype = data.DTYPES[name]
    assert dtype in native.dtypes()
    n = 16 * SMALL_VALUES
    measured = native.encode_host(data.make("gaussian", dtype, n)).size / (n * dtype.itemsize)
    assert GAUSSIAN_FRACTION[name] == pytest.approx(measured, rel=0.002)


# How much larger than its encoding a payload may be; random bits travel raw.
SPARE = {
    "gaussian": 1.03,
    "rows_of_own_scales": 1.03,
    "one_percent_zeros": 1.055,
    "relu": 1.055,
    "laplace": 1.055,
    "uniform": 1.055,
}


@pytest.mark.parametrize(
    "n", [SMALL_VALUES >> 3, SMALL_VALUES, SMALL_VALUES + 1, SMALL_VALUES << 3]
)
@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", "float64", "float8_e4m3fn"])
def test_common_data_fits_closely(name, n):
    dtype = data.DTYPES[name]
    sizes = [*payload_sizes(n, dtype, Options()), n * dtype.itemsize]

    def encoded_and_payload(kind):
        encoded = native.encode_host(data.make(kind, dtype, n)).size
        return encoded, next((size for size in sizes if size >= encoded), sizes[-1])

    for kind, spare in SPARE.items():
        encoded, payload = encoded_and_payload(kind)
        assert payload <= spare * encoded, (kind, payload / encoded)
    if n > 2 * SMALL_VALUES:
        encoded, payload = encoded_and_payload("gaussian")
        assert payload <= 1.012 * encoded
    assert encoded_and_payload("zeros")[1] <= 0.05 * n * dtype.itemsize
    assert encoded_and_payload("random_bits")[1] == n * dtype.itemsize


@dtypes
def test_raw_words_keep_every_bit(dtype, x64_for):
    with x64_for(dtype):
        for kind in ("special", "random_bits"):
            x = data.make(kind, dtype, 3 * 1001).reshape(3, 1001)
            words = to_words(x)
            assert np.asarray(words).nbytes == x.nbytes
            assert words.dtype.kind == "u"
            np.testing.assert_array_equal(data.bits(from_words(words, 1001, dtype)), data.bits(x))
