"""Payloads that are not one: every decoder refuses, or all read the same; section 6, item by item."""

import dataclasses

import data
import ml_dtypes
import numpy as np
import pytest
from golden import make as golden
from payloads import DTYPES, LAYOUTS, Parts, assert_same_bits, decode_by_all, modes, random_values
from reference import decoder as reference

from jax_uzip._src import native

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT16 = np.dtype(np.float16)
FLOAT64 = np.dtype(np.float64)


# ---- random changes ------------------------------------------------------------------------------


@dataclasses.dataclass
class Mutation:
    """Where a random payload was changed, and how."""

    at: int
    was: int
    became: int


def mutate(payload, headers_end, rng):
    """Changes one place, mostly of the headers, the directory or the end of the tails."""
    to = rng.integers(4)
    if to == 0:
        at = rng.integers(4, headers_end)
    elif to == 1:
        at = rng.integers(32, headers_end + 1)
    elif to == 2:
        at = payload.size - 1 - rng.integers(40)
    else:
        at = rng.integers(payload.size)
    at = int(np.clip(at, 0, payload.size - 1))
    was = int(payload[at])
    how = rng.integers(3)
    if how == 0:
        payload[at] = was ^ 1 << int(rng.integers(8))
    elif how == 1:
        payload[at] = rng.integers(256)
    else:
        payload[at] = (was + int(rng.choice([-1, 1]))) % 256
    return Mutation(at, was, int(payload[at]))


@pytest.mark.parametrize("seed", range(10))
def test_decoders_agree_on_mutated_payloads(seed):
    rng = np.random.default_rng([2, seed])
    refused = 0
    for i in range(100):
        x, hint = random_values(rng)
        payload = native.encode_host(x, LAYOUTS[i % 2])
        blocks = len(modes(payload))
        headers_end = 32 + 4 * blocks + (8 * -(-blocks // 8) if i % 2 == 0 else 0)
        for _ in range(8):
            # Bytes after the payload are not part of it, until its length is changed to have them.
            bad = np.concatenate([payload, np.zeros(int(rng.choice([0, 64])), np.uint8)])
            mutations = [mutate(bad, headers_end, rng) for _ in range(rng.integers(1, 3))]
            result = decode_by_all(bad, x.size, x.dtype, f"{hint} layout={i % 2} {mutations}")
            refused += isinstance(result, ValueError)
    assert 0.2 < refused / 800 < 0.9  # neither side is vacuous


@pytest.mark.parametrize("layout", LAYOUTS, ids=("compact", "slotted"))
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_truncated_payloads_are_refused(dtype, layout):
    x = data.make("mixed_runs", dtype, 1700)
    payload = native.encode_host(x, layout)
    rng = np.random.default_rng(3)
    lengths = {
        *range(80),
        *range(payload.size - 20, payload.size),
        *rng.integers(0, payload.size, 40),
    }
    for length in sorted(lengths):
        short = payload[:length].copy()
        assert isinstance(decode_by_all(short, x.size, dtype, length), ValueError), length
        if length >= 32:
            short[16:24].view("<u8")[0] = length
            assert isinstance(decode_by_all(short, x.size, dtype, length), ValueError), length


# ---- section 6, item by item -------------------------------------------------------------------


def golden_values(name):
    return next(case for case in golden.CASES if case.path.stem == name).values()


# The blocks of a golden file "compact", by what they are.
WEIGHTS, SAME, SCATTERED, NOISE, ENDS, LAST = range(6)
FLOAT16_COMPACT = golden_values("float16-compact")


def test_parts_put_together_are_the_payload():
    for case in golden.CASES:
        if case.layout == native.COMPACT:
            x = case.values()
            np.testing.assert_array_equal(Parts.of(x).payload(), native.encode_host(x))
    kinds = [
        modes(native.encode_host(FLOAT16_COMPACT))[i] for i in (WEIGHTS, SAME, SCATTERED, NOISE)
    ]
    assert kinds == [reference.ALIGNED, reference.CONSTANT, reference.RANKED, reference.RAW]


SPOILED = []  # one (name, message, values, function, what is asked for) for each function below


def spoils(message, x=FLOAT16_COMPACT, marks=(), **asked):
    """A function that spoils the `Parts` of values `x`, or returns a payload that is spoiled.

    Both decoders have to refuse what it leaves, and the native one has to say `message`.
    """

    def register(function):
        asked_for = {"n": x.size, "dtype": x.dtype} | asked
        name = function.__name__
        SPOILED.append(pytest.param(message, x, function, asked_for, id=name, marks=marks))
        return function

    return register


def with_bytes(parts, at, *values):
    payload = parts.payload()
    payload[at : at + len(values)] = values
    return payload


LENGTH = "length does not fit"
TAIL_LENGTH = "its tail has not the length that its mode and codes need"
TAIL_TOO_LONG = "its tail is longer than a raw block's"
PADDING = "padding bits of its tail are set"
SYMBOL = "it has an exponent that the dtype does not have"
ALIGNMENT = "an alignment constant that its mode or dtype does not have"
DIRECTORY = "the directory does not"
RESERVED = "reserved bits of its header are set"


@spoils("too few for the header")
def shorter_than_a_header(parts):
    return parts.payload()[:31]


@spoils("says that it has")
def shorter_than_it_says(parts):
    return parts.payload()[:-1]


@spoils("does not begin with")
def wrong_magic(parts):
    return with_bytes(parts, 3, 0x51)


@spoils("version 2")
def another_version(parts):
    return with_bytes(parts, 4, 2)


@spoils("payload holds dtype float16, bfloat16 was asked for", dtype=BFLOAT16)
def another_dtype_than_asked_for(parts):
    return parts.payload()


@spoils("unknown code")
def an_unknown_dtype(parts):
    return with_bytes(parts, 5, 13)


@spoils("2638 were asked for", n=FLOAT16_COMPACT.size + 1)
def another_n_than_asked_for(parts):
    return parts.payload()


@spoils("block size 2^8")
def too_small_a_block_size(parts):
    return with_bytes(parts, 6, 8)


@spoils("block size 2^12")
def too_large_a_block_size(parts):
    return with_bytes(parts, 6, 12)


@spoils("layout 2")
def an_unknown_layout(parts):
    return with_bytes(parts, 7, 2)


@spoils("reserved bytes of its header")
def reserved_bits_of_the_payload_header(parts):
    return with_bytes(parts, 31, 1)


@spoils(RESERVED)
def bit_14_of_a_block_header(parts):
    parts.headers[NOISE, 0] |= 1 << 14


@spoils(RESERVED)
def bit_15_of_the_last_block_header(parts):
    parts.headers[LAST, 0] |= 1 << 15


@spoils(PADDING)
def reserved_bytes_after_a_table(parts):
    parts.tails[SCATTERED][15] = 1


@spoils(LENGTH)
def a_length_too_short_for_the_block_headers(parts):
    payload = parts.payload()[:60]
    payload[16:24].view("<u8")[0] = payload.size
    return payload


@spoils(LENGTH)
def a_length_without_whole_words(parts):
    payload = np.concatenate([parts.payload(), np.zeros(1, np.uint8)])
    payload[16:24].view("<u8")[0] = payload.size
    return payload


@spoils(DIRECTORY)
def a_length_with_a_word_too_many(parts):
    payload = np.concatenate([parts.payload(), np.zeros(4, np.uint8)])
    payload[16:24].view("<u8")[0] = payload.size
    return payload


@spoils("its tail is longer than a raw block's, or than the payload")
def a_length_with_a_word_too_few(parts):
    payload = parts.payload()[:-4]
    payload[16:24].view("<u8")[0] = payload.size
    return payload


@spoils(LENGTH, golden_values("float64-empty"))
def a_length_that_an_empty_payload_does_not_have(parts):
    payload = np.concatenate([parts.payload(), np.zeros(4, np.uint8)])
    payload[16:24].view("<u8")[0] = payload.size
    return payload


@spoils(LENGTH, golden_values("float64-empty"))
def stored_blocks_of_an_empty_payload(parts):
    return with_bytes(parts, 24, 1)


@spoils(LENGTH)
def more_stored_blocks_than_blocks(parts):
    return with_bytes(parts, 24, 7)


@spoils("fewer planes than blocks that need them")
def too_few_stored_blocks(parts):
    parts.planes[NOISE] = parts.planes[NOISE][:0]


@spoils("more planes than blocks that need them", FLOAT16_COMPACT[:1100])
def too_many_stored_blocks(parts):
    parts.planes[SAME] = np.zeros_like(parts.planes[WEIGHTS])


@spoils(DIRECTORY)
def tails_before_the_first_chunk(parts):
    return with_bytes(parts, 32, 1)


@spoils(DIRECTORY)
def stored_blocks_before_the_first_chunk(parts):
    return with_bytes(parts, 36, 1)


@spoils(DIRECTORY, golden_values("bfloat16-many-chunks"))
def a_directory_entry_with_too_many_words(parts):
    payload = parts.payload()
    payload[40:44].view("<u4")[0] += 1
    return payload


@spoils(DIRECTORY, golden_values("bfloat16-many-chunks"))
def a_directory_entry_with_too_few_stored_blocks(parts):
    payload = parts.payload()
    payload[44:48].view("<u4")[0] -= 1
    return payload


@spoils(DIRECTORY, golden_values("bfloat16-many-chunks"))
def a_directory_entry_that_points_behind_the_payload(parts):
    return with_bytes(parts, 48, 0xFF, 0xFF, 0xFF, 0xFF)


@spoils(TAIL_LENGTH)
def a_tail_of_a_constant_that_is_longer(parts):
    parts.grow_tail(SAME, 1)


@spoils(TAIL_LENGTH)
def a_tail_of_a_constant_that_is_missing(parts):
    parts.cut_tail(SAME)


@spoils(TAIL_LENGTH, golden_values("float64-compact"))
def a_tail_of_a_float64_constant_that_is_shorter(parts):
    parts.cut_tail(SAME)


@spoils(TAIL_TOO_LONG)
def a_tail_of_a_raw_block_that_is_longer(parts):
    parts.grow_tail(NOISE, 1)


@spoils(TAIL_LENGTH)
def a_tail_of_a_raw_block_that_is_shorter(parts):
    parts.cut_tail(NOISE)


@spoils(TAIL_LENGTH)
def a_tail_of_an_aligned_block_that_is_longer(parts):
    parts.grow_tail(WEIGHTS, 1)


@spoils(TAIL_LENGTH)
def a_tail_of_an_aligned_block_that_is_shorter(parts):
    parts.cut_tail(WEIGHTS)


@spoils(TAIL_LENGTH)
def a_tail_of_a_ranked_block_that_is_longer(parts):
    parts.grow_tail(SCATTERED, 1)


@spoils(TAIL_LENGTH)
def a_tail_without_room_for_its_table(parts):
    parts.tails[SCATTERED] = parts.tails[SCATTERED][:12]


@spoils(TAIL_TOO_LONG)
def a_tail_of_a_coded_block_that_is_longer_than_a_raw_one(parts):
    # All values escape to level 4: 512 codes of level 2, of level 3 and of level 4 fit no other rule.
    codes = slice(-2 * 64, None)
    parts.planes[WEIGHTS][codes] = 0
    parts.tails[WEIGHTS] = np.zeros(4 * (32 + 48 + 128), np.uint8)


def add_an_escape_of_level(level, parts, symbol=0):
    """Makes the first values of a block escape; returns the words of its tail by level."""
    parts.planes[WEIGHTS][-2 * 64 :] = 0xFF  # every value is the first symbol of the table ...
    parts.planes[WEIGHTS][-2 * 64] = 0xFC if level else 0xFF  # ... but one
    tail = [[0x00 if level > 1 else 0x01, 0, 0, 0]] if level else []
    if level > 1:
        tail.append([0x00 if level > 2 else 0x01, 0, 0, 0])
    if level > 2:
        tail.append([symbol, 0, 0, 0])
    parts.tails[WEIGHTS] = np.array(tail, np.uint8).reshape(-1)
    return parts


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_a_block_with_one_escape_is_not_refused(level):
    parts = add_an_escape_of_level(level, Parts.of(FLOAT16_COMPACT))
    assert isinstance(decode_by_all(parts.payload(), FLOAT16_COMPACT.size, FLOAT16), np.ndarray)


@spoils(PADDING)
def padding_of_level_2(parts):
    add_an_escape_of_level(1, parts)
    parts.tails[WEIGHTS][0] |= 1 << 2


@spoils(PADDING)
def padding_of_level_3(parts):
    add_an_escape_of_level(2, parts)
    parts.tails[WEIGHTS][7] |= 1 << 7


@spoils(PADDING)
def padding_of_level_4(parts):
    add_an_escape_of_level(3, parts)
    parts.tails[WEIGHTS][9] = 1


@spoils(PADDING)
def padding_of_a_constant(parts):
    parts.tails[SAME][2] = 1


@spoils(PADDING, golden_values("float8_e4m3fn-compact"))
def padding_of_a_one_byte_constant(parts):
    parts.tails[SAME][3] = 0x80


@spoils(SYMBOL)
def a_symbol_of_level_4_that_the_mask_does_not_cover(parts):
    add_an_escape_of_level(3, parts, symbol=32)


@spoils(SYMBOL)
def a_symbol_of_a_table_that_the_mask_does_not_cover(parts):
    parts.tails[SCATTERED][12] = 32


@spoils(ALIGNMENT)
def an_alignment_constant_of_a_raw_block(parts):
    parts.headers[NOISE, 1] = 1


@spoils(ALIGNMENT)
def an_alignment_constant_of_a_constant_block(parts):
    parts.headers[SAME, 1] = 0x8000


@spoils(ALIGNMENT, golden_values("float8_e4m3fn-compact"))
def an_alignment_constant_of_a_one_byte_dtype_above_255(parts):
    parts.headers[WEIGHTS, 1] |= 0x100


@pytest.mark.parametrize(("message", "x", "spoil", "asked"), SPOILED)
def test_a_decoder_refuses(message, x, spoil, asked):
    parts = Parts.of(x)
    payload = spoil(parts)
    error = decode_by_all(parts.payload() if payload is None else payload, **asked)
    assert isinstance(error, ValueError), "not refused"
    assert message in str(error)


# ---- what a decoder does not look at -------------------------------------------------------------


def test_a_decoder_does_not_look_at_what_follows_the_payload():
    payload = np.concatenate([native.encode_host(FLOAT16_COMPACT), np.full(99, 0xA5, np.uint8)])
    assert_same_bits(decode_by_all(payload, FLOAT16_COMPACT.size, FLOAT16), FLOAT16_COMPACT)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_a_decoder_does_not_look_at_what_only_fills_up(dtype):
    for n in (9, 4096 + 9, 17_000):
        x = data.make("gaussian", dtype, n)
        parts = Parts.of(x)
        payload = parts.payload()
        end = payload.size - sum(part.size for part in (*parts.planes, *parts.tails))
        start = 32 + 8 * -(-len(parts.headers) // 8) + parts.headers.nbytes
        payload[start:end] = 0xA5
        d = reference.DTYPES[int(payload[5])]
        groups = -(-(n * native.values_per_item(dtype) - 512 * (len(parts.headers) - 1)) // 8)
        if modes(payload)[-1] < reference.RAW:
            used = groups * (32 * d.words + 16 * d.halves + 8 * d.bytes + d.k + 2)
            at = end + sum(part.size for part in parts.planes[:-1])
            assert not payload[at + used : at + parts.planes[-1].size].any()
            payload[at + used : at + parts.planes[-1].size] = 0xA5
        assert_same_bits(decode_by_all(payload, n, dtype), x)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_a_decoder_does_not_look_at_the_gaps_of_a_slotted_payload(dtype):
    x = data.make("mixed_runs", dtype, 9001)
    payload = native.encode_host(x, native.SLOTTED)
    parts = Parts.of(x)
    n, blocks = x.size * native.values_per_item(dtype), len(parts.headers)
    d = reference.DTYPES[int(payload[5])]
    planes_at = -(-(32 + 4 * blocks) // 32) * 32
    last = -(-(n - 512 * (blocks - 1)) // 8)
    tails_at = (
        planes_at + (blocks - 1) * reference.plane_bytes(d, 64) + reference.plane_bytes(d, last)
    )
    is_gap = np.ones(payload.size, bool)
    is_gap[:planes_at] = False
    for b, (plane, tail) in enumerate(zip(parts.planes, parts.tails, strict=True)):
        at = planes_at + b * reference.plane_bytes(d, 64)
        is_gap[at : at + plane.size] = False
        at = tails_at + 4 * b * reference.longest_tail(d, 64)
        is_gap[at : at + tail.size] = False
    assert is_gap.any()
    assert not payload[is_gap].any(), "encode_host leaves gaps that are not zero"
    payload[is_gap] = 0xA5
    assert_same_bits(decode_by_all(payload, x.size, dtype), x)


def test_a_decoder_does_not_ask_whether_the_encoder_chose_well():
    # A second constant that is for no group: one block of 2048 values at most, but 9 are there.
    x = data.make("gaussian", BFLOAT16, 9)
    parts = Parts.of(x)
    parts.payload_header[6] = 11
    parts.headers = np.concatenate([parts.headers, [[77]]], axis=1).astype("<u2")
    assert_same_bits(decode_by_all(parts.payload(), x.size, BFLOAT16), x)

    # A constant block that is coded as another mode could be, here raw.
    x = np.full(512, 1.5, FLOAT64)
    parts = Parts.of(x)
    d = reference.DTYPES[int(parts.payload_header[5])]
    split = reference.plane_bytes(d, 64)
    parts.headers[0, 0] = reference.RAW << 12
    parts.planes[0], parts.tails[0] = np.split(x.view(np.uint8), [split])
    assert_same_bits(decode_by_all(parts.payload(), x.size, FLOAT64), x)

    # A float64's constant with which a symbol stands for another exponent field.
    x = data.make("gaussian", FLOAT64, 512)
    parts = Parts.of(x)
    parts.headers[0, 1] += 3
    got = decode_by_all(parts.payload(), x.size, FLOAT64)
    assert_same_bits(got, np.where(x == 0, x, x / 8))
