"""A second decoder, written from docs/wire-format.md alone and told in its order.

    decode(payload)                          # flat array of the dtype that the payload names
    decode(payload, dtype="complex64", n=5)  # the same, or ValueError if it holds anything else

It shares no line and no number with the codec in ffi/codec/: where both agree, the document says what
the codec does.  It is slow (0.2 ms a block) and checks everything that section 6 asks for.
"""

# ruff: noqa: N802, N803 - the names are the document's
import functools
from dataclasses import dataclass

import ml_dtypes
import numpy as np

# ---- 1. Values, groups, blocks ---------------------------------------------------------------


@dataclass(frozen=True)
class Dtype:
    """A line of section 1's table; `top` is from section 5."""

    code: int
    numpy: np.dtype
    words: bool
    halves: bool
    bytes: bool
    k: int
    mask: int
    top: int

    @property
    def W(self) -> int:
        return self.numpy.itemsize

    @property
    def constant_words(self) -> int:
        """Words of a constant block's tail."""
        return 2 if self.W == 8 else 1


def _dtype(code, scalar, planes, k, mask, top):
    return Dtype(
        code,
        np.dtype(scalar),
        "words" in planes,
        "halves" in planes,
        "bytes" in planes,
        k,
        mask,
        top,
    )


DTYPES = {
    d.code: d
    for d in (
        _dtype(1, ml_dtypes.bfloat16, ("bytes",), 0, 255, 244),
        _dtype(2, np.float16, ("bytes",), 3, 31, 28),
        _dtype(3, np.float32, ("halves", "bytes"), 0, 255, 244),
        _dtype(4, np.float64, ("words", "halves"), 5, 255, 244),
        _dtype(5, ml_dtypes.float8_e4m3fn, (), 4, 15, 13),
        _dtype(6, ml_dtypes.float8_e4m3fnuz, (), 4, 15, 13),
        _dtype(7, ml_dtypes.float8_e4m3b11fnuz, (), 4, 15, 13),
        _dtype(8, ml_dtypes.float8_e4m3, (), 4, 15, 13),
        _dtype(9, ml_dtypes.float8_e5m2, (), 3, 31, 28),
        _dtype(10, ml_dtypes.float8_e5m2fnuz, (), 3, 31, 28),
        _dtype(11, ml_dtypes.float8_e3m4, (), 5, 7, 5),
        _dtype(12, ml_dtypes.float8_e8m0fnu, (), 0, 255, 244),
    )
}
E8M0 = 12

PARTS = {
    np.dtype(np.complex64): np.dtype(np.float32),
    np.dtype(np.complex128): np.dtype(np.float64),
}


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@functools.cache
def block_order(G: int) -> np.ndarray:
    """The place of each group, by its number, in the fields that go lane by lane."""
    q, r = divmod(G, 32)
    g = np.arange(G)
    lane = g % 32
    return lane * q + np.minimum(lane, r) + g // 32


# ---- 2. The payload --------------------------------------------------------------------------

MAGIC = bytes([0x55, 0x5A, 0x49, 0x50])
HEADER = np.dtype(
    [
        ("magic", "S4"),
        ("version", "u1"),
        ("dtype", "u1"),
        ("log2_b", "u1"),
        ("layout", "u1"),
        ("n", "<u8"),
        ("size", "<u8"),
        ("stored", "<u4"),
        ("zero", "<u4"),
    ]
)
COMPACT, SLOTTED = 0, 1
ALIGNED, RANKED, RAW, CONSTANT = range(4)


def plane_bytes(d: Dtype, G: int) -> int:
    """S(G)."""
    return 4 * ceil_div(G * (32 * d.words + 16 * d.halves + 8 * d.bytes + d.k + 2), 4)


def raw_words(d: Dtype, G: int) -> int:
    """R(G)."""
    return ceil_div(8 * d.W * G - plane_bytes(d, G), 4)


def longest_tail(d: Dtype, G: int) -> int:
    """T(G)."""
    return max(raw_words(d, G), d.constant_words)


def refuse(condition, message: str) -> None:
    """Raises ValueError with the message if the condition, which is of a bad payload, holds."""
    if condition:
        raise ValueError(message)


def decode(payload, dtype=None, n: int | None = None) -> np.ndarray:
    """The values of a payload, flat; with `dtype` and `n`, only if it holds n items of that dtype."""
    payload = np.frombuffer(bytes(payload), np.uint8)
    refuse(
        payload.size < HEADER.itemsize,
        f"payload of {payload.size} bytes is shorter than its header",
    )
    header = payload[: HEADER.itemsize].view(HEADER)[0]
    values = int(header["n"])
    size = int(header["size"])

    refuse(payload[:4].tobytes() != MAGIC, "wrong magic bytes")
    refuse(header["version"] != 1, f"unknown version {header['version']}")
    refuse(int(header["dtype"]) not in DTYPES, f"unknown dtype code {header['dtype']}")
    refuse(header["log2_b"] not in (9, 10, 11), f"unknown block size 2^{header['log2_b']}")
    refuse(header["layout"] not in (COMPACT, SLOTTED), f"unknown layout {header['layout']}")
    refuse(header["zero"] != 0, "reserved bits of the header are set")
    refuse(size > payload.size, f"payload has {payload.size} bytes but says {size}")

    d = DTYPES[int(header["dtype"])]
    asked = d.numpy if dtype is None else np.dtype(dtype)
    refuse(PARTS.get(asked, asked) != d.numpy, f"payload holds {d.numpy}, not {asked}")
    parts = 2 if asked in PARTS else 1
    refuse(
        n is not None and values != n * parts, f"payload holds {values} values, not those asked for"
    )
    refuse(values % parts, f"payload holds {values} values, which do not make pairs")

    bits = read_body(
        payload[:size],
        d,
        1 << int(header["log2_b"]),
        header["layout"],
        values,
        int(header["stored"]),
    )
    return bits.view(asked)


def read_body(payload, d: Dtype, B: int, layout: int, n: int, stored: int) -> np.ndarray:
    """Everything after the header: the bytes of the `n` values."""
    blocks = ceil_div(n, B)
    chunks = ceil_div(blocks, 8)
    constants = 2 if B == 2048 else 1

    # Where the fields of fixed size are.
    directory_at = HEADER.itemsize
    headers_at = directory_at + (8 * chunks if layout == COMPACT else 0)
    headers_end = headers_at + 2 * (1 + constants) * blocks
    planes_at = 32 * ceil_div(headers_end, 32)
    refuse(planes_at > payload.size, "length is wrong: no room for the block headers")
    directory = payload[directory_at:headers_at].view("<u4").reshape(-1, 2)
    headers = payload[headers_at:headers_end].view("<u2").reshape(blocks, 1 + constants)

    # What the block headers say.
    info = headers[:, 0].astype(np.int64)
    tail_words, mode = info & 0xFFF, info >> 12 & 3
    refuse((info >> 14).any(), "reserved bits of a block header are set")
    refuse(
        d.W == 1 and (headers[:, 1:] > 255).any(),
        "alignment constant of a one-byte dtype is above 255",
    )
    refuse(headers[mode >= RAW, 1:].any(), "raw or constant block has an alignment constant")

    # Groups of each block, and where its planes and its tail are.
    values = np.full(blocks, B)
    if blocks:
        values[-1] = n - (blocks - 1) * B
    G = -(-values // 8)
    has_planes = (mode != CONSTANT) | (layout == SLOTTED)
    refuse(
        stored != has_planes.sum(),
        f"header says {stored} stored blocks, block headers {has_planes.sum()}",
    )
    S = np.array([plane_bytes(d, g) for g in G], np.int64) * has_planes
    if layout == COMPACT:
        room = tail_words
        before = np.cumsum(tail_words) - tail_words, np.cumsum(has_planes) - has_planes
        refuse(
            (directory != np.stack(before, axis=1)[::8]).any(),
            "directory entry is not the sum of what stands before",
        )
    else:
        room = np.array([longest_tail(d, g) for g in G], np.int64)
    plane_at = planes_at + np.cumsum(S) - S
    tails_at = planes_at + S.sum()
    tail_at = tails_at + 4 * (np.cumsum(room) - room)
    length = tails_at + 4 * room.sum()
    refuse(payload.size != length, f"length is wrong: {payload.size} bytes instead of {length}")

    out = np.empty((blocks, B * d.W), np.uint8)
    for b in range(blocks):
        refuse(tail_words[b] > room[b], "tail is longer than its slot")
        planes = payload[plane_at[b] : plane_at[b] + S[b]]
        tail = payload[tail_at[b] : tail_at[b] + 4 * tail_words[b]]
        C = np.repeat(headers[b, 1:], 128)[: G[b]]
        out[b, : 8 * G[b] * d.W] = decode_block(d, mode[b], int(G[b]), C, planes, tail)
    return out.reshape(-1)[: n * d.W]


# ---- 3. Modes --------------------------------------------------------------------------------


def decode_block(d: Dtype, mode: int, G: int, C, planes, tail) -> np.ndarray:
    """The bytes of a block's 8·G values."""
    words = tail.size // 4
    if mode == CONSTANT:
        refuse(words != d.constant_words, f"tail of a constant block has {words} words")
        refuse(tail[d.W :].any(), "padding of a constant is not zero")
        return np.tile(tail[: d.W], 8 * G)
    if mode == RAW:
        refuse(words != raw_words(d, G), f"tail of a raw block has {words} words")
        return np.concatenate([planes, tail])[: 8 * d.W * G]
    refuse(words > raw_words(d, G), f"tail of a coded block has {words} words")
    fields = split_planes(d, G, planes)
    table, levels = read_table(d, mode, tail)
    symbols = read_levels(d, table, fields["codes"], levels)
    return join_values(d, C, fields, symbols[block_order(G)])


# ---- 4. Planes of a coded block --------------------------------------------------------------


def unpack(field: np.ndarray, bits: int, count: int) -> np.ndarray:
    """The first `count` integers of `bits` bits each, lowest bits first."""
    each = np.unpackbits(field, bitorder="little", count=bits * count).reshape(count, bits)
    return each @ (1 << np.arange(bits))


def split_planes(d: Dtype, G: int, planes: np.ndarray) -> dict[str, np.ndarray]:
    """Each plane's entries, one for each value; all in natural order but the codes."""
    fields = {}
    at = 0

    def take(size):
        nonlocal at
        at += size
        return planes[at - size : at]

    if d.words:
        fields["words"] = take(32 * G).view("<u4")
    if d.halves:
        fields["halves"] = take(16 * G).view("<u2")
    if d.bytes:
        fields["bytes"] = take(8 * G)
    fields["low bits"] = unpack(take(d.k * G), d.k, 8 * G).reshape(G, 8)[block_order(G)].reshape(-1)
    fields["codes"] = unpack(take(2 * G), 2, 8 * G)
    return fields


def rotate_right(x: np.ndarray) -> np.ndarray:
    """By one bit."""
    return x >> 1 | x << (8 * x.itemsize - 1)


def join_values(
    d: Dtype, C: np.ndarray, fields: dict[str, np.ndarray], symbols: np.ndarray
) -> np.ndarray:
    """Section 4's "From a value to its parts", backwards: the bytes of the values.

    `C` is the alignment constant of each group, `symbols` are [group, value].
    """
    symbols = symbols.reshape(-1)
    h = symbols << d.k | fields["low bits"]
    if d.W == 2:
        words = (h << 8 | fields["bytes"]).astype("<u2").view("<u4")
        return (rotate_right(words) - np.repeat(C, 4) * np.uint32(0x10001)).view(np.uint8)
    if d.W == 4:
        words = (symbols << 24 | fields["bytes"].astype(np.int64) << 16 | fields["halves"]).astype(
            "<u4"
        )
        return (rotate_right(words) - (np.repeat(C, 8).astype(np.uint32) << 16)).view(np.uint8)
    if d.W == 8:
        e = (symbols - np.repeat(C, 8).astype(np.int64)) % 2**11
        e = np.where(symbols == 0, 0, np.where(symbols == 255, 2047, e)).astype("<u8")
        low = fields["low bits"].astype("<u8")
        x = e << 53 | low << 48 | fields["halves"].astype("<u8") << 32 | fields["words"]
        return rotate_right(x).view(np.uint8)
    words = h.astype(np.uint8).view("<u4")
    if d.code != E8M0:
        words = rotate_right(words)
    return (words - np.repeat(C, 2) * np.uint32(0x01010101)).view(np.uint8)


# ---- 5. Levels -------------------------------------------------------------------------------


def fixed_table(d: Dtype) -> np.ndarray:
    steps = np.array([0, -1, -2, 1, -3, -4, 2, -5, -6, -7, -8, -9, -10])
    return (d.top + steps) & d.mask


def read_table(d: Dtype, mode: int, tail: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The table of 13 symbols, and what of the tail comes after it."""
    if mode == ALIGNED:
        return fixed_table(d), tail
    refuse(tail.size < 16, "tail of a ranked block has no room for its table")
    table = tail[:13].astype(np.int64)
    refuse(tail[13:16].any(), "reserved bytes after a symbol table are not zero")
    refuse((table & ~d.mask).any(), "symbol of a table is not one of the dtype's")
    return table, tail[16:]


def read_levels(d: Dtype, table: np.ndarray, codes: np.ndarray, tail: np.ndarray) -> np.ndarray:
    """The symbols [place in block order, value in the group]."""
    at = 0

    def level(bits: int, count: int) -> np.ndarray:
        nonlocal at
        size = 4 * ceil_div(bits * count, 32)
        refuse(at + size > tail.size, "tail is shorter than its levels")
        field = tail[at : at + size]
        at += size
        unused = np.unpackbits(field, bitorder="little")[bits * count :]
        refuse(unused.any(), "padding of a level is not zero")
        return unpack(field, bits, count)

    codes2 = level(2, np.count_nonzero(codes == 0))
    codes3 = level(3, np.count_nonzero(codes2 == 0))
    symbols4 = level(8, np.count_nonzero(codes3 == 0))
    refuse(at != tail.size, "tail is longer than its levels")
    refuse((symbols4 & ~d.mask).any(), "symbol of level 4 is not one of the dtype's")

    # Back from the last level: what escapes is filled in, in its order, from the next one.
    symbols = symbols4
    for c, first in ((codes3, 13), (codes2, 6), (codes, 3)):
        escapes, symbols = symbols, table[first - np.maximum(c, 1)]
        symbols[c == 0] = escapes
    return symbols.reshape(-1, 8)
