"""Eight virtual CPU devices, and skips that can be made to fail.

JAX_UZIP_NO_SKIP=1 turns every skip into a failure: a CI job that is meant to run everything sets it,
so that a test cannot silently stop running.
"""

import os

import jax
import numpy as np
import pytest

from jax_uzip._src import tiers

jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture
def x64_for():
    """`with x64_for(dtype):` enables 64-bit types when the dtype needs them."""

    def context(dtype):
        return jax.enable_x64(np.dtype(dtype).name in ("float64", "complex128"))

    return context


@pytest.fixture
def sizes_taken(monkeypatch):
    """The payload sizes in which values really arrived (the raw size if raw), one a device."""
    taken = []

    def took(words):
        if words.size:
            jax.debug.callback(lambda: taken.append(words.shape[1] * words.dtype.itemsize))

    decode_rows, decode_add_rows = tiers.codec.decode_rows, tiers.codec.decode_add_rows
    receive_raw = tiers._receive_raw

    def decode(payload, n, dtype):
        took(payload)
        return decode_rows(payload, n, dtype)

    def decode_add(rows, payload):
        took(payload)
        return decode_add_rows(rows, payload)

    def raw(finish, words):
        took(words)
        return receive_raw(finish, words)

    monkeypatch.setattr(tiers.codec, "decode_rows", decode)
    monkeypatch.setattr(tiers.codec, "decode_add_rows", decode_add)
    monkeypatch.setattr(tiers, "_receive_raw", raw)
    return taken


def pytest_report_header():
    return f"jax {jax.__version__}, jaxlib {jax.lib.__version__}"


def _fail_if_skipped(report):
    if report.skipped and os.environ.get("JAX_UZIP_NO_SKIP") and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"JAX_UZIP_NO_SKIP is set, and this would have been skipped: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return _fail_if_skipped((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return _fail_if_skipped((yield))
