"""The ratios that the codec promises: encoded by raw bytes of several MiB, with fixed seeds.

The encoding is canonical, so each of these numbers is the same on every machine and run.
"""

import functools

import data
import ml_dtypes
import model
import numpy as np
import pytest

from jax_uzip._src import native

N = (2 << 20) + 2048 + 9  # the format's largest blocks, and a last one that is not full

GAUSSIAN = {
    "bfloat16": 0.675,
    "float16": 0.865,
    "float32": 0.84,
    "float64": 0.885,
    "complex64": 0.84,
    "float8_e4m3": 0.845,
    "float8_e4m3fn": 0.845,
    "float8_e5m2": 0.725,
}

# Every second power of two, and steps within an octave: exponents shift by whole numbers, and what
# is left is where in an octave sigma lies. Narrow dtypes run from all denormal to all overflowing.
SIGMAS = [2.0**k for k in range(-24, 25, 2)] + [2.0 ** (k / 8) for k in range(-6, -2)]


def ratio(x: np.ndarray) -> float:
    return native.encode_host(x).size / x.nbytes


@functools.cache
def _standard_normal() -> np.ndarray:
    return np.random.default_rng(7).standard_normal(N)


def gaussian(sigma: float, dtype: str) -> np.ndarray:
    x = _standard_normal() * sigma
    if dtype == "complex64":
        return x[: N // 2 * 2].astype(np.float32).view(np.complex64)
    with np.errstate(over="ignore"):
        return x.astype(data.DTYPES[dtype])


@pytest.mark.parametrize("dtype", GAUSSIAN)
def test_gaussians_of_any_sigma(dtype):
    ratios = {sigma: ratio(gaussian(sigma, dtype)) for sigma in SIGMAS}
    missed = {sigma: r for sigma, r in ratios.items() if r > GAUSSIAN[dtype]}
    assert not missed


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("power", [-110, 110])
def test_gaussians_near_the_ends_of_wide_exponents(dtype, power):
    assert ratio(gaussian(2.0**power, dtype)) <= GAUSSIAN[dtype]


@pytest.mark.parametrize(
    ("kind", "figure"),
    [
        ("one_percent_zeros", 0.68),
        ("relu", 0.69),
        ("laplace", 0.695),
        ("rows_of_own_scales", 0.69),
        ("zeros", 0.02),
    ],
)
def test_other_data_as_bfloat16(kind, figure):
    assert ratio(data.make(kind, "bfloat16", N)) <= figure


@pytest.mark.parametrize("dtype", [d for d in GAUSSIAN if d != "complex64"])
@pytest.mark.parametrize("zeros", [0.5, 0.9, 0.97, 0.99, 0.995, 0.999])
def test_the_sparser_the_fewer_bytes(dtype, zeros):
    # From some share on, whole samples are zeros and say nothing of the values beside them.
    where = np.random.default_rng(8).random(N) < zeros
    sparse = np.where(where, 0, gaussian(1.0, "float64")).astype(data.DTYPES[dtype])
    assert ratio(sparse) <= GAUSSIAN[dtype] + (0.02 if zeros == 0.5 else 0)


@pytest.mark.parametrize("dtype", data.DTYPES)
def test_zeros_and_constants_cost_next_to_nothing(dtype):
    assert ratio(data.make("zeros", dtype, N)) <= 0.02
    assert ratio(data.make("constant", dtype, N)) <= 0.02


@pytest.mark.parametrize("dtype", data.DTYPES)
def test_random_bits_cost_half_a_per_cent(dtype):
    x = np.random.default_rng(8).integers(0, 256, N * 8 // 16 * 16, np.uint8)
    assert ratio(x.view(data.DTYPES[dtype])) <= 1.005


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_real_models_weights(dtype):
    figure = {"bfloat16": 0.68, "float32": GAUSSIAN["float32"]}[dtype]
    weights = model.load()
    packed = np.concatenate([w.reshape(-1) for w in weights.values()])
    assert ratio(packed.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)) <= figure
