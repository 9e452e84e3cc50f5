"""`python -m jax_uzip doctor`: it says what is there, and fails where the codec does."""

import re
import time

import jax
import numpy as np
import pytest

import jax_uzip
from jax_uzip import Options
from jax_uzip.__main__ import main
from jax_uzip._src import doctor, native, options


@pytest.fixture
def examine(capsys, monkeypatch):
    """Runs it; returns the exit code and what it printed."""
    monkeypatch.setattr(doctor, "TIMED_BYTES", 1 << 20)

    def examine():
        code = main(["doctor"])
        return code, capsys.readouterr().out

    return examine


def test_what_it_says(examine):
    code, out = examine()
    assert code == 0, out
    for line in (
        rf"^  jax_uzip +{jax_uzip.__version__}, wire format {native.FORMAT_VERSION}$",
        rf"^  jax, jaxlib +{jax.__version__}, [\d.]+$",
        rf"^  CPU +yes, instruction set {native.isa()}$",
        r"^  CUDA +no$",
        r"^  collectives +all_gather, all_to_all, pbroadcast, ppermute, psum, psum_scatter$",
        r"^  devices +8 of cpu \(.*\)$",
        r"^  NCCL +(nvidia-nccl-cu1[23] [\d.]+|no package found)",
        r"^  XLA features +user contexts, HLO transformations, Shardy",
        r"^  drop-in flag +off +default$",
        r"^  min_bytes +65536 +default$",
        r"^  on the host +56 arrays of 14 dtypes$",
        r"^  under JAX +bfloat16 on ",
        r"^  ratio +1\.4\d+$",
        r"^  encode +[\d.]+ GB/s \([\d.]+ to [\d.]+ in [3-7] repeats\)$",
        r"^  - CUDA: not part of this version",
    ):
        assert re.search(line, out, re.M), f"{line} is not in\n{out}"
    for name in Options.__dataclass_fields__:
        assert re.search(rf"^  {name} ", out, re.M)


@pytest.mark.filterwarnings("ignore:environment variable JAX_UZIP_MIN_BITES")
def test_where_values_come_from_and_what_is_misspelt(examine, monkeypatch):
    environ = {"JAX_UZIP_MIN_BYTES": "7", "JAX_UZIP_MIN_BITES": "8", "JAX_UZIP_ENABLED": "0"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(options, "default", lambda: options.from_env(environ))
    code, out = examine()
    assert code == 0
    assert re.search(r"^  min_bytes +7 +JAX_UZIP_MIN_BYTES$", out, re.M)
    assert "  - JAX_UZIP_MIN_BITES: is no option" in out
    assert "  - JAX_UZIP_ENABLED: nothing is compressed until it is unset" in out


def test_the_flag(examine):
    jax_uzip.enable()
    try:
        assert re.search(r"^  drop-in flag +on ", examine()[1], re.M)
    finally:
        jax_uzip.disable()


def test_options_that_cannot_be_read_are_exit_code_1(examine, monkeypatch):
    monkeypatch.setattr(options, "default", lambda: options.from_env({"JAX_UZIP_TIERS": "2"}))
    code, out = examine()
    assert code == 1
    assert "  - options: mend the environment variable JAX_UZIP_TIERS='2'" in out


def _flip(payload, n, dtype):
    values = native_decode(payload, n, dtype)
    values.view(np.uint8)[-1:] ^= 1
    return values


def _refuse(payload, n, dtype):
    raise ValueError("malformed")


native_decode = native.decode_host


@pytest.mark.parametrize("broken", [_flip, _refuse])
def test_a_codec_that_fails_is_exit_code_1(examine, monkeypatch, broken):
    monkeypatch.setattr(native, "decode_host", broken)
    code, out = examine()
    assert code == 1
    assert "  - self-test: bfloat16, Gaussian: other bits came back" in out
    assert "do not use this build" in out


def test_without_any_device(examine, monkeypatch):
    def none():
        raise RuntimeError("Unable to initialize backend 'x'\nmore")

    monkeypatch.setattr(jax, "local_devices", none)
    monkeypatch.setattr(jax, "default_backend", none)
    code, out = examine()
    assert code == 0
    assert "none: Unable to initialize backend 'x'" in out
    assert "not tested: no device" in out
    assert "encode" not in out


def test_it_takes_less_than_ten_seconds(capsys):
    begin = time.process_time()  # of this process, whatever else the machine is busy with
    assert main(["doctor"]) == 0
    assert time.process_time() - begin < 10
    assert "speed of 64 MiB" in capsys.readouterr().out
