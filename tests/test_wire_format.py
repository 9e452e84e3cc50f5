"""docs/wire-format.md and the native codec say the same: goldens, a second decoder, a second encoder.

Those in tests/reference/ know the document alone.  So where they agree with the codec on any message
the document is complete and the codec does what it says; test_malformed_payloads.py has bad payloads.
"""

import data
import numpy as np
import pytest
from golden import make as golden
from payloads import DTYPES, ISAS, LAYOUTS, Parts, assert_same_bits, modes, random_values, using_isa
from reference import decoder as reference
from reference import encoder

from jax_uzip._src import native

# ---- golden files ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", golden.CASES, ids=lambda case: case.path.stem)
def test_golden(case):
    payload, values = np.fromfile(case.path, np.uint8), case.values()
    assert_same_bits(reference.decode(payload, values.dtype, values.size), values)
    for isa in ISAS:
        with using_isa(isa):
            got = native.decode_host(payload, values.size, values.dtype)
            encoded = native.encode_host(values, case.layout)
        assert_same_bits(got, values, isa)
        # The gaps of a slotted payload are zero from encode_host, so that these can be compared too.
        np.testing.assert_array_equal(encoded, payload, err_msg=isa)


def test_goldens_have_every_mode_of_every_dtype_in_both_layouts():
    seen = set()
    for case in golden.CASES:
        payload = np.fromfile(case.path, np.uint8)
        seen |= {(payload[5], payload[7], mode) for mode in modes(payload)}
    codes, slotted = set(native.dtypes().values()), (0, 1)
    assert seen >= {(c, s, mode) for c in codes for s in slotted for mode in range(4)}
    block_sizes = {int(np.fromfile(case.path, np.uint8)[6]) for case in golden.CASES}
    assert block_sizes == {9, 10, 11}
    assert {case.path for case in golden.CASES} == set(golden.FOLDER.glob("*.uzip"))


# ---- random messages -----------------------------------------------------------------------------

SEEDS, CASES_PER_SEED = 20, 500


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_second_decoder_reads_random_messages(seed):
    rng = np.random.default_rng([1, seed])
    for i in range(CASES_PER_SEED):
        x, hint = random_values(rng)
        layout = LAYOUTS[i % 2]
        payloads = []
        for isa in ISAS:
            with using_isa(isa):
                payloads.append(native.encode_host(x, layout))
            np.testing.assert_array_equal(payloads[-1], payloads[0], err_msg=f"{hint} {isa}")
        assert payloads[0].size <= native.payload_capacity(x.size, x.dtype, layout), hint
        for payload, isa in zip(payloads, reversed(ISAS), strict=True):
            with using_isa(isa):
                got = native.decode_host(payload, x.size, x.dtype)
            assert_same_bits(got, x, hint)
        assert_same_bits(reference.decode(payloads[0], x.dtype, x.size), x, hint)


@pytest.mark.parametrize("layout", LAYOUTS, ids=("compact", "slotted"))
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("n", [(1 << 19) + 1, (1 << 21) + 1234], ids=("1024", "2048"))
def test_the_second_decoder_reads_large_blocks(dtype, n, layout):
    n //= native.values_per_item(dtype)
    x = data.make("mixed_runs", dtype, 40_000)
    for end in (x[:5], np.repeat(x[:1], 2500)):  # a last block that is short; one that is constant
        # Blocks of every mode, a long run of constant ones, and an end of its own.
        x = np.concatenate([x, np.repeat(x[7:8], n - 60_000), x[:20_000]])
        x[-end.size :] = end
        payload = native.encode_host(x, layout)
        assert_same_bits(reference.decode(payload, dtype, x.size), x)
        x = x[:40_000]


# ---- the encoder's choices -------------------------------------------------------------------------


def assert_blocks_are_those_of_the_second_encoder(x, hint=""):
    parts, blocks = Parts.of(x), encoder.encode_blocks(x)
    assert len(blocks) == len(parts.headers), hint
    for b, block in enumerate(blocks):
        info, *constants = parts.headers[b].tolist()
        assert (info >> 12, constants) == (block.mode, block.constants), f"{hint} block {b}"
        np.testing.assert_array_equal(parts.planes[b], block.planes, f"{hint} block {b}")
        np.testing.assert_array_equal(parts.tails[b], block.tail, f"{hint} block {b}")


@pytest.mark.parametrize("seed", range(10))
def test_the_second_encoder_writes_the_same_blocks(seed):
    rng = np.random.default_rng([4, seed])
    for _ in range(300):
        assert_blocks_are_those_of_the_second_encoder(*random_values(rng))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("n", [1 << 19, (1 << 19) + 2, 1 << 21, (1 << 21) + 2])
def test_the_second_encoder_chooses_the_same_block_size(dtype, n):
    n //= native.values_per_item(dtype)
    x = data.make("mixed_runs", dtype, 40_000)
    x = np.concatenate([x[:20_000], np.repeat(x[7:8], n - 40_000), x[20_000:]])
    assert_blocks_are_those_of_the_second_encoder(x)
