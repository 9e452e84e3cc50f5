"""The examples run, and would say so if a bit were wrong."""

import os
import re
import subprocess
import sys
from pathlib import Path

import model
import pytest

import jax_uzip

EXAMPLES = Path(__file__).parents[1] / "examples"
GATHER, TRAIN, PAYS = (
    str(EXAMPLES / name) for name in ("01_all_gather.py", "02_train.py", "03_when_it_pays.py")
)


def run(*arguments):
    # An example's own folder is first on its sys.path, not the checkout: let it find what we test.
    package = str(Path(jax_uzip.__file__).parents[1])
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": package},
        text=True,
        capture_output=True,
        check=False,
    )


@pytest.fixture(autouse=True)
def _installed():
    for package in ("equinox", "matplotlib", "optax", "safetensors", "sklearn", "tqdm"):
        pytest.importorskip(package)
    model.path()


def run_patched(patch, example, *arguments):
    """The example, after some lines of Python that may name `jax` and `jax_uzip`."""
    return run(
        "-c",
        f"""
import runpy, sys
import jax, jax_uzip
{patch}
sys.argv = {[example, *arguments]!r}
runpy.run_path(sys.argv[0], run_name="__main__")
""",
    )


# ---- 01: the same bits -------------------------------------------------------------------------


def test_the_three_largest_tensors():
    done = run(GATHER, "--tensors", "3")
    assert done.returncode == 0, done.stderr
    found = dict(
        re.findall(r"^(as stored|cast to bfloat16) .* ([\d.]+)%   equal$", done.stdout, re.M)
    )
    assert float(found["as stored"]) > 15
    assert float(found["cast to bfloat16"]) > 31
    assert "embeddings.word_embeddings.weight" in done.stdout


def test_a_wrong_bit_is_exit_code_1():
    wrong = """
def wrong(parts, *arguments, **options):
    gathered = jax.lax.all_gather(parts, *arguments, **options)
    return jax.tree.map(lambda x: x.at[3].multiply(-1), gathered)
jax_uzip.all_gather = wrong
"""
    done = run_patched(wrong, GATHER, "--tensors", "1")
    assert done.returncode == 1, done.stderr
    assert "8 VALUES DIFFER" in done.stdout


# ---- 02: the same losses -----------------------------------------------------------------------


def test_losses_with_the_flag_off_and_on(tmp_path):
    plot = tmp_path / "losses.png"
    done = run(TRAIN, "--steps", "3", "--plot", str(plot))
    assert done.returncode == 0, done.stderr
    rows = re.findall(
        r"^(data-parallel|fully sharded)  (\w[\w ]*?) {2,}[\d.]+ +[\d.]+% +([\d,]+) *(.*)$",
        done.stdout,
        re.M,
    )
    sent = {(name, what): int(n.replace(",", "")) for name, what, n, _ in rows}
    verdict = {(name, what): text for name, what, _, text in rows}
    assert sent["data-parallel", "sums"] < 0.9 * sent["data-parallel", "nothing"]
    assert sent["fully sharded", "gathers and sums"] < sent["fully sharded", "gathers"]
    assert sent["fully sharded", "gathers"] < sent["fully sharded", "nothing"]
    assert verdict["fully sharded", "gathers"] == "as off to the bit, repeated to the bit"
    assert verdict["data-parallel", "sums"].endswith("repeated to the bit")
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_losses_of_wrong_gathers_are_exit_code_1(tmp_path):
    wrong = """
from jax_uzip._src import tiers
right = tiers.from_words
tiers.from_words = lambda words, n, dtype: right(words, n, dtype) * 2
decode = tiers.codec.decode_rows
tiers.codec.decode_rows = lambda payload, n, dtype: decode(payload, n, dtype) * 2
"""
    done = run_patched(wrong, TRAIN, "--steps", "2", "--plot", str(tmp_path / "losses.png"))
    assert done.returncode == 1, done.stderr
    assert re.search(r"sharded +gathers .* within .* of off", done.stdout)


# ---- 03: when it pays --------------------------------------------------------------------------


def test_gains_follow_from_the_speeds_printed(tmp_path):
    plot = tmp_path / "rates.png"
    arguments = ["--sizes", "1M", "--dtypes", "bfloat16", "--rates", "0.001", "--hosts", "3"]
    done = run(PAYS, *arguments, "--plot", str(plot))
    assert done.returncode == 0, done.stderr
    (row,) = re.findall(
        r"^bfloat16 +1M +[\d.]+ GB/s +[\d.]+ GB/s +([\d.]+)% +([\d.]+)", done.stdout, re.M
    )
    sent, gain = map(float, row)
    assert 66 < sent < 70
    assert gain == pytest.approx(
        100 / sent, abs=0.02
    )  # the link is so slow that nothing else counts
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_size_without_a_unit_is_told():
    done = run(PAYS, "--sizes", "64")
    assert done.returncode == 1
    assert "a size is a number and K or M, as in 64K: 64" in done.stderr
