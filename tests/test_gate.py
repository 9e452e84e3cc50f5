import data
import numpy as np
import pytest

from jax_uzip import Options
from jax_uzip._src import native
from jax_uzip._src.gate import MAX_PAYLOAD_BYTES, Axis, Decision, Message, decide, supports

FLOAT32 = np.dtype("float32")
ALL = Options(min_bytes=0)
BIG = 1 << 24


def test_compresses_a_large_message_and_says_what():
    assert decide(Message(FLOAT32, BIG), Axis(8), Options()) == Decision(
        True, f"float32, {4 * BIG} bytes"
    )


@pytest.mark.parametrize(
    ("message", "axis", "options", "reason"),
    [
        (Message(FLOAT32, 0), Axis(8), ALL, "empty"),
        (Message(FLOAT32, 16383), Axis(8), Options(), "65532 bytes are under min_bytes=65536"),
        (Message(np.dtype("int32"), BIG), Axis(8), ALL, "int32 is not a dtype that the codec"),
        (Message(np.dtype(bool), BIG), Axis(8), ALL, "bool is not a dtype that the codec"),
        (
            Message(FLOAT32, BIG),
            Axis(8),
            Options(dtypes=["bfloat16"]),
            "float32 is not in options.dtypes",
        ),
        (Message(FLOAT32, BIG), Axis(8), Options(enabled=False), "options.enabled is False"),
        (Message(FLOAT32, 1 << 29), Axis(8), ALL, "over the 2 GiB"),
        (Message(FLOAT32, BIG), Axis(1), ALL, "the axis has one device"),
        (Message(FLOAT32, BIG), Axis(8, partitioned_axes=("y",)), ALL, "still owns mesh axis y"),
        (Message(FLOAT32, BIG), Axis(8, checked_groups=True), ALL, "need check_vma=False"),
        (Message(FLOAT32, BIG), Axis(0, uneven_groups=True), ALL, "of different sizes"),
        (Message(FLOAT32, BIG, rows=0), Axis(0, positional=True), ALL, "a dimension of the array"),
        (Message(FLOAT32, (1 << 29) - (1 << 21), rows=1 << 20), Axis(8), ALL, "over the 2 GiB"),
    ],
)
def test_refusals_say_why(message, axis, options, reason):
    decision = decide(message, axis, options)
    assert not decision.compress
    assert reason in decision.reason


def test_the_threshold_is_exact():
    assert decide(Message(FLOAT32, 16384), Axis(2), Options()).compress
    assert decide(Message(FLOAT32, 1), Axis(2), ALL).compress


def test_every_payload_of_an_accepted_message_can_be_indexed():
    for dtype in native.dtypes():
        for n in (
            1,
            BIG,
            MAX_PAYLOAD_BYTES // dtype.itemsize,
            MAX_PAYLOAD_BYTES // dtype.itemsize + 1,
        ):
            if decide(Message(dtype, n), Axis(2), ALL).compress:
                assert native.payload_capacity(n, dtype) <= MAX_PAYLOAD_BYTES


def test_the_catalogue_of_inputs_knows_every_dtype_of_the_codec():
    assert set(native.dtypes()) <= set(data.DTYPES.values())
    assert all(supports(dtype, ALL) for dtype in native.dtypes())
