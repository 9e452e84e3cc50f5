"""docs/wire-format.md and the native codec say the same: goldens, a second decoder, bad payloads.

The second decoder, tests/reference/decoder.py, knows the document alone.  So where the two decoders
agree on any payload, good or bad, the document is complete and the codec does what it says.
"""

import dataclasses

import data
import ml_dtypes
import numpy as np
import pytest
from golden import make as golden
from reference import decoder as reference

from jax_uzip._src import native

LAYOUTS = (native.COMPACT, native.SLOTTED)
DTYPES = list(data.DTYPES.values())
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT16 = np.dtype(np.float16)
FLOAT64 = np.dtype(np.float64)


def _available_isas():
    best = native._uzip_cpu.isa()
    names = [name for name in ("portable", "avx2") if native._uzip_cpu.select_isa(name)]
    native._uzip_cpu.select_isa(best)
    return names


ISAS = _available_isas()


@pytest.fixture
def select_isa():
    """Selects an instruction set of ISAS; the best one is back after the test."""
    best = native._uzip_cpu.isa()
    yield native._uzip_cpu.select_isa
    native._uzip_cpu.select_isa(best)


def assert_same_bits(got, want, hint=""):
    assert (got.dtype, got.shape) == (want.dtype, want.shape), hint
    np.testing.assert_array_equal(data.bits(got), data.bits(want), err_msg=str(hint))


# ---- golden files ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", golden.CASES, ids=lambda case: case.path.stem)
def test_golden(case, select_isa):
    payload, values = np.fromfile(case.path, np.uint8), case.values()
    assert_same_bits(reference.decode(payload, values.dtype, values.size), values)
    for isa in ISAS:
        select_isa(isa)
        assert_same_bits(native.decode_host(payload, values.size, values.dtype), values, isa)
        # The gaps of a slotted payload are zero from encode_host, so that these can be compared too.
        np.testing.assert_array_equal(native.encode_host(values, case.layout), payload, err_msg=isa)


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


def modes(payload):
    """The modes of a payload's blocks."""
    block = 1 << int(payload[6])
    blocks = -(-int(payload[8:16].view("<u8")[0]) // block)
    at = 32 + (8 * -(-blocks // 8) if payload[7] == native.COMPACT else 0)
    width = 6 if block == 2048 else 4
    info = payload[at : at + width * blocks].reshape(blocks, width)[:, :2].copy().view("<u2")
    return (info.reshape(-1) >> 12 & 3).tolist()


# ---- random messages ---------------------------------------------------------------------------

SEEDS, CASES_PER_SEED = 20, 500
EDGES = (
    0,
    1,
    7,
    8,
    9,
    255,
    256,
    257,
    511,
    512,
    513,
    1023,
    1024,
    1025,
    2047,
    2048,
    2049,
    4095,
    4096,
)


def random_values(rng):
    """A kind of tests/data.py of a random size, turned into what the catalogue does not have."""
    dtype = DTYPES[rng.integers(len(DTYPES))]
    n = int(rng.choice(EDGES)) if rng.random() < 0.5 else int(rng.integers(5001))
    kind = str(rng.choice(list(data.KINDS)))
    x = data.make(kind, dtype, n, int(rng.integers(1000)))
    turn = rng.integers(7) if n else 0
    if turn == 1:  # any scale, down to denormals and up to infinity
        part, exponent = data.part_dtype(dtype), int(rng.integers(-160, 160))
        with np.errstate(all="ignore"):
            x = (x.view(part).astype(np.float64) * 2.0**exponent).astype(part).view(dtype)
    elif turn == 2:  # a few distinct values
        x = rng.choice(x[: rng.integers(1, 20)], n)
    elif turn == 3:  # runs of one value, some longer than a block
        x = np.repeat(x, rng.integers(1, 1500, n))[:n] if n < 100 else np.repeat(x, 700)[:n]
    elif turn == 4:  # a share of zeros
        x[rng.random(n) < rng.random()] = 0
    elif turn == 5:  # a few bits of noise in every place of a word
        bits = data.bits(x)
        noise = rng.integers(0, 2 ** (8 * bits.itemsize), bits.shape, np.uint64) & np.uint64(
            1 << int(rng.integers(8 * bits.itemsize))
        )
        x = data.from_bits(bits ^ noise.astype(bits.dtype), dtype)
    elif turn == 6:  # two kinds, cut anywhere
        cut = rng.integers(n)
        x[cut:] = data.make(str(rng.choice(list(data.KINDS))), dtype, n - cut, 1)
    return x, f"{dtype} {kind} n={n} turn={turn}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_second_decoder_reads_random_messages(seed, select_isa):
    rng = np.random.default_rng([1, seed])
    for i in range(CASES_PER_SEED):
        x, hint = random_values(rng)
        layout = LAYOUTS[i % 2]
        payloads = []
        for isa in ISAS:
            select_isa(isa)
            payloads.append(native.encode_host(x, layout))
            np.testing.assert_array_equal(payloads[-1], payloads[0], err_msg=f"{hint} {isa}")
        assert payloads[0].size <= native.payload_capacity(x.size, x.dtype, layout), hint
        for payload, isa in zip(payloads, reversed(ISAS), strict=True):
            select_isa(isa)
            assert_same_bits(native.decode_host(payload, x.size, x.dtype), x, hint)
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


# ---- bad payloads: both decoders refuse, or both read the same ------------------------------------


def both(payload, n, dtype, hint=""):
    """Decodes with every decoder; asserts that they agree; returns the values, or the native error."""
    try:
        want = reference.decode(payload, dtype, n)
    except ValueError as error:
        want = error
    for isa in ISAS:
        native._uzip_cpu.select_isa(isa)
        try:
            got = native.decode_host(payload, n, dtype)
        except ValueError as error:
            got = error
        verdicts = {"second decoder": want, isa: got}
        refusals = [who for who, result in verdicts.items() if isinstance(result, ValueError)]
        assert len(refusals) != 1, f"{hint}: {refusals[0]} alone refuses: {verdicts[refusals[0]]}"
        if not refusals:
            assert_same_bits(got, want, f"{hint} {isa}")
    return got


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
def test_decoders_agree_on_mutated_payloads(seed, select_isa):
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
            result = both(bad, x.size, x.dtype, f"{hint} layout={i % 2} {mutations}")
            refused += isinstance(result, ValueError)
    assert 0.2 < refused / 800 < 0.9  # neither side is vacuous


@pytest.mark.parametrize("layout", LAYOUTS, ids=("compact", "slotted"))
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_truncated_payloads_are_refused(dtype, layout, select_isa):
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
        assert isinstance(both(short, x.size, dtype, length), ValueError), length
        if length >= 32:
            short[16:24].view("<u8")[0] = length
            assert isinstance(both(short, x.size, dtype, length), ValueError), length


# ---- section 6, item by item -------------------------------------------------------------------


@dataclasses.dataclass
class Parts:
    """A compact payload taken apart, so that one thing can be wrong and all others right."""

    payload_header: np.ndarray
    headers: np.ndarray  # u16, [block, info and constants]
    planes: list[np.ndarray]
    tails: list[np.ndarray]

    @classmethod
    def of(cls, x):
        payload = native.encode_host(x)
        d = reference.DTYPES[int(payload[5])]
        block_modes = modes(payload)
        blocks, block = len(block_modes), 1 << int(payload[6])
        n = x.size * native.values_per_item(x.dtype)
        headers_at = 32 + 8 * -(-blocks // 8)
        width = 6 if block == 2048 else 4
        headers = payload[headers_at : headers_at + width * blocks].view("<u2")
        headers = headers.reshape(blocks, width // 2)
        at = -(-(headers_at + width * blocks) // 32) * 32
        planes, tails = [], []
        for b, mode in enumerate(block_modes):
            groups = -(-min(block, n - b * block) // 8)
            size = 0 if mode == reference.CONSTANT else reference.plane_bytes(d, groups)
            planes.append(payload[at : at + size].copy())
            at += size
        for info in headers[:, 0].tolist():
            tails.append(payload[at : at + 4 * (info & 0xFFF)].copy())
            at += 4 * (info & 0xFFF)
        assert at == payload.size
        return cls(payload[:32].copy(), headers.copy(), planes, tails)

    def payload(self):
        """Puts it together: lengths, directory and stored blocks follow from the parts."""
        headers = self.headers.copy()
        words = np.array([tail.size // 4 for tail in self.tails], np.uint16)
        stored = np.array([plane.size > 0 for plane in self.planes], bool)
        headers[:, 0] = headers[:, 0] & 0xF000 | words
        directory = np.stack(
            [np.cumsum(words, dtype=int) - words, np.cumsum(stored) - stored], axis=1
        )[::8]
        body = [self.payload_header, directory.astype("<u4").view(np.uint8).reshape(-1)]
        body.append(headers.view(np.uint8).reshape(-1))
        body.append(np.zeros(-sum(part.size for part in body) % 32, np.uint8))
        payload = np.concatenate([*body, *self.planes, *self.tails])
        payload[16:24].view("<u8")[0] = payload.size
        payload[24:28].view("<u4")[0] = stored.sum()
        return payload

    def grow_tail(self, block, words):
        self.tails[block] = np.concatenate([self.tails[block], np.zeros(4 * words, np.uint8)])

    def cut_tail(self, block):
        self.tails[block] = self.tails[block][:-4]


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


@spoils(
    LENGTH,
    golden_values("float64-empty"),
    marks=pytest.mark.xfail(reason="the native decoder lets an empty compact payload have tails"),
)
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
def test_a_block_with_one_escape_is_not_refused(level, select_isa):
    parts = add_an_escape_of_level(level, Parts.of(FLOAT16_COMPACT))
    assert isinstance(both(parts.payload(), FLOAT16_COMPACT.size, FLOAT16), np.ndarray)


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
def test_a_decoder_refuses(message, x, spoil, asked, select_isa):
    parts = Parts.of(x)
    payload = spoil(parts)
    error = both(parts.payload() if payload is None else payload, **asked)
    assert isinstance(error, ValueError), "not refused"
    assert message in str(error)


# ---- what a decoder does not look at -------------------------------------------------------------


def test_a_decoder_does_not_look_at_what_follows_the_payload(select_isa):
    payload = np.concatenate([native.encode_host(FLOAT16_COMPACT), np.full(99, 0xA5, np.uint8)])
    assert_same_bits(both(payload, FLOAT16_COMPACT.size, FLOAT16), FLOAT16_COMPACT)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_a_decoder_does_not_look_at_what_only_fills_up(dtype, select_isa):
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
        assert_same_bits(both(payload, n, dtype), x)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_a_decoder_does_not_look_at_the_gaps_of_a_slotted_payload(dtype, select_isa):
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
    assert_same_bits(both(payload, x.size, dtype), x)


def test_a_decoder_does_not_ask_whether_the_encoder_chose_well(select_isa):
    # A second constant that is for no group: one block of 2048 values at most, but 9 are there.
    x = data.make("gaussian", BFLOAT16, 9)
    parts = Parts.of(x)
    parts.payload_header[6] = 11
    parts.headers = np.concatenate([parts.headers, [[77]]], axis=1).astype("<u2")
    assert_same_bits(both(parts.payload(), x.size, BFLOAT16), x)

    # A constant block that is coded as another mode could be, here raw.
    x = np.full(512, 1.5, FLOAT64)
    parts = Parts.of(x)
    d = reference.DTYPES[int(parts.payload_header[5])]
    split = reference.plane_bytes(d, 64)
    parts.headers[0, 0] = reference.RAW << 12
    parts.planes[0], parts.tails[0] = np.split(x.view(np.uint8), [split])
    assert_same_bits(both(parts.payload(), x.size, FLOAT64), x)

    # A float64's constant with which a symbol stands for another exponent field.
    x = data.make("gaussian", FLOAT64, 512)
    parts = Parts.of(x)
    parts.headers[0, 1] += 3
    got = both(parts.payload(), x.size, FLOAT64)
    assert_same_bits(got, np.where(x == 0, x, x / 8))
