"""Payloads to test: made at random, read by every decoder that there is, taken apart."""

import contextlib
import dataclasses

import data
import numpy as np
from reference import decoder as reference

from jax_uzip._src import native

LAYOUTS = (native.COMPACT, native.SLOTTED)
DTYPES = list(data.DTYPES.values())

# ---- instruction sets ----------------------------------------------------------------------------


@contextlib.contextmanager
def using_isa(name):
    """Selects an instruction set of ISAS; the one before is back afterwards."""
    before = native._uzip_cpu.isa()
    assert native._uzip_cpu.select_isa(name)
    try:
        yield
    finally:
        native._uzip_cpu.select_isa(before)


def _available_isas():
    best = native._uzip_cpu.isa()
    names = [name for name in ("portable", "avx2", "bmi2") if native._uzip_cpu.select_isa(name)]
    native._uzip_cpu.select_isa(best)
    return names


ISAS = _available_isas()


# ---- random messages -----------------------------------------------------------------------------

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


# ---- every decoder ---------------------------------------------------------------------------------


def assert_same_bits(got, want, hint=""):
    assert (got.dtype, got.shape) == (want.dtype, want.shape), hint
    np.testing.assert_array_equal(data.bits(got), data.bits(want), err_msg=str(hint))


def decode_by_all(payload, n, dtype, hint=""):
    """Decodes with every decoder; asserts that they agree; returns the values, or the native error."""
    try:
        want = reference.decode(payload, dtype, n)
    except ValueError as error:
        want = error
    for isa in ISAS:
        try:
            with using_isa(isa):
                got = native.decode_host(payload, n, dtype)
        except ValueError as error:
            got = error
        verdicts = {"second decoder": want, isa: got}
        refusals = [who for who, result in verdicts.items() if isinstance(result, ValueError)]
        assert len(refusals) != 1, f"{hint}: {refusals[0]} alone refuses: {verdicts[refusals[0]]}"
        if not refusals:
            assert_same_bits(got, want, f"{hint} {isa}")
    return got


# ---- a payload's parts -----------------------------------------------------------------------------


def modes(payload):
    """The modes of a payload's blocks."""
    block = 1 << int(payload[6])
    blocks = -(-int(payload[8:16].view("<u8")[0]) // block)
    at = 32 + (8 * -(-blocks // 8) if payload[7] == native.COMPACT else 0)
    width = 6 if block == 2048 else 4
    info = payload[at : at + width * blocks].reshape(blocks, width)[:, :2].copy().view("<u2")
    return (info.reshape(-1) >> 12 & 3).tolist()


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
