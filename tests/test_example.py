"""The example runs, and would say so if a bit were wrong."""

import os
import re
import subprocess
import sys
from pathlib import Path

import model
import pytest

import jax_uzip

EXAMPLE = Path(__file__).parents[1] / "examples" / "01_all_gather.py"


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
    pytest.importorskip("tqdm")
    pytest.importorskip("safetensors")
    model.path()


def test_the_three_largest_tensors():
    done = run(str(EXAMPLE), "--tensors", "3")
    assert done.returncode == 0, done.stderr
    found = dict(
        re.findall(r"^(as stored|cast to bfloat16) .* ([\d.]+)%   equal$", done.stdout, re.M)
    )
    assert float(found["as stored"]) > 15
    assert float(found["cast to bfloat16"]) > 31
    assert "embeddings.word_embeddings.weight" in done.stdout


def test_a_wrong_bit_is_exit_code_1():
    patched = f"""
import runpy, sys
import jax, jax_uzip
def wrong(parts, *arguments, **options):
    gathered = jax.lax.all_gather(parts, *arguments, **options)
    return jax.tree.map(lambda x: x.at[3].multiply(-1), gathered)
jax_uzip.all_gather = wrong
sys.argv = ["01_all_gather.py", "--tensors", "1"]
runpy.run_path({str(EXAMPLE)!r}, run_name="__main__")
"""
    done = run("-c", patched)
    assert done.returncode == 1, done.stderr
    assert "8 VALUES DIFFER" in done.stdout
