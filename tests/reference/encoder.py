"""The encoder's choices, written from section 7 of docs/wire-format.md alone.

    blocks = encode_blocks(values)           # one Block for each block: mode, constants, planes, tail

With tests/reference/decoder.py, whose sizes and tables it uses, it says of every byte of a compact
payload what it has to be.
"""

# ruff: noqa: N803 - the names are the document's

from dataclasses import dataclass

import numpy as np

from .decoder import (
    ALIGNED,
    CONSTANT,
    DTYPES,
    E8M0,
    PARTS,
    RANKED,
    RAW,
    Dtype,
    block_order,
    ceil_div,
    fixed_table,
    plane_bytes,
    raw_words,
)

# f, the mantissa bits of a magnitude, and p, by dtype code.
F = {1: 7, 2: 10, 3: 7, 4: 0, 5: 3, 6: 3, 7: 3, 8: 3, 9: 2, 10: 2, 11: 4, 12: 0}
P = {1: 16, 2: 128, 3: 16, 11: 1}


@dataclass
class Block:
    mode: int
    constants: list[int]
    planes: np.ndarray
    tail: np.ndarray


def block_size(n: int) -> int:
    return 512 if n <= 2**19 else 1024 if n <= 2**21 else 2048


def encode_blocks(values: np.ndarray) -> list[Block]:
    part = PARTS.get(values.dtype, values.dtype)
    d = next(d for d in DTYPES.values() if d.numpy == part)
    bits = values.view(f"<u{d.W}")
    B = block_size(bits.size)
    return [encode_block(d, B, bits[at : at + B]) for at in range(0, bits.size, B)]


def encode_block(d: Dtype, B: int, bits: np.ndarray) -> Block:
    G = ceil_div(bits.size, 8)
    bits = np.concatenate([bits, np.repeat(bits[-1:], 8 * G - bits.size)])
    none = [0] * (2 if B == 2048 else 1)
    if (bits == bits[0]).all():
        value = bits[:1].view(np.uint8)
        return Block(CONSTANT, none, value[:0], filled_up(value, max(4, d.W)))

    S, R = plane_bytes(d, G), raw_words(d, G)
    raw = Block(RAW, none, *np.split(bits.view(np.uint8), [S]))
    constants = [
        alignment(d, bits.reshape(G, 8)[128 * i : 128 * i + 128]) for i in range(len(none))
    ]
    fields, symbols = split(d, bits, np.repeat(constants, 1024)[: 8 * G])
    if d.W == 8 and (symbols < 0).any():
        constants = [
            alignment_by_largest(bits[1024 * i : 1024 * i + 1024]) for i in range(len(none))
        ]
        fields, symbols = split(d, bits, np.repeat(constants, 1024)[: 8 * G])
        if (symbols < 0).any():
            return raw

    mode, table = ALIGNED, fixed_table(d)
    codes, tail, k2, k4 = levels(symbols, table, G)
    if k4 > G // 8 or 20 * k2 > 72 * G:
        frequency = np.bincount(symbols, minlength=256)
        by_rank = np.argsort(-frequency, kind="stable")[:13]
        by_rank = by_rank[frequency[by_rank] > 0]
        head = filled_up(by_rank.astype(np.uint8), 16)
        ranked_codes, ranked_tail, _, _ = levels(symbols, by_rank, G)
        if 16 + ranked_tail.size < tail.size:
            mode, codes, tail = RANKED, ranked_codes, np.append(head, ranked_tail)
    if tail.size >= 4 * R:
        return raw
    planes = np.concatenate([*fields, codes])
    return Block(mode, constants, filled_up(planes, S), tail)


def alignment(d: Dtype, groups: np.ndarray) -> int:
    """The constant for these groups, of which the first has an even floor(g / 32)."""
    if groups.size == 0:
        return 0
    chosen = groups[np.arange(len(groups)) // 32 % 2 == 0, :2].astype(np.uint64)
    if d.W == 8:
        magnitudes = chosen >> 52 & 2047
    elif d.W == 4:
        magnitudes = chosen >> 16 & 0x7FFF
    else:
        magnitudes = chosen & (0xFF if d.code == E8M0 else 0x7F if d.W == 1 else 0x7FFF)
    magnitudes = magnitudes.astype(np.int64)
    f = F[d.code]
    magnitudes = np.maximum(magnitudes, magnitudes.max() - 9 * 2**f)
    s, c = int(magnitudes.sum()), magnitudes.size
    if d.W == 8 or d.code == E8M0:
        C = d.top - (128 * s // c + 240) // 128
    else:
        C = (d.top - 1) * 2**f + P.get(d.code, 0) - s // c
    return C % (2**8 if d.W == 1 else 2**16)


def alignment_by_largest(bits: np.ndarray) -> int:
    """The constant for these float64 values if the other one leaves a value without a symbol."""
    if bits.size == 0:
        return 0
    e = (bits >> 52 & 2047).astype(np.int64)
    return int(254 - e[e < 2047].max(initial=0)) % 2**16


def rotate_left(x: np.ndarray) -> np.ndarray:
    return x << 1 | x >> (8 * x.itemsize - 1)


def filled_up(field: np.ndarray, size: int) -> np.ndarray:
    """The bytes, and zero bytes up to `size`."""
    return np.append(field, np.zeros(size - field.size, np.uint8))


def pack(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Integers of `bits` bits each as bytes, lowest bits first."""
    each = numbers.reshape(-1, 1) >> np.arange(bits) & 1
    return np.packbits(each.astype(np.uint8), bitorder="little")


def split(d: Dtype, bits: np.ndarray, C: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """The planes but the codes, and the symbols (-1 for a float64 that has none), in block order."""
    order = np.argsort(block_order(bits.size // 8))
    if d.W == 8:
        x = rotate_left(bits)
        e = (x >> 53).astype(np.int64)
        symbols = (e + C) % 2**16
        symbols = np.where((symbols < 1) | (symbols > 254), -1, symbols)
        symbols = np.where(e == 0, 0, np.where(e == 2047, 255, symbols))
        low = (x >> 48 & 31).astype(np.int64)
        planes = [(x & 0xFFFFFFFF).astype("<u4"), (x >> 32 & 0xFFFF).astype("<u2")]
    elif d.W == 4:
        x = rotate_left(bits + (C << 16).astype(np.uint32))
        symbols, low = (x >> 24).astype(np.int64), None
        planes = [(x & 0xFFFF).astype("<u2"), (x >> 16 & 0xFF).astype(np.uint8)]
    else:
        words = bits.view("<u4") + C[:: 4 // d.W].astype(np.uint32) * np.uint32(
            0x10001 if d.W == 2 else 0x01010101
        )
        x = (words if d.code == E8M0 else rotate_left(words)).view(bits.dtype)
        planes = [(x & 0xFF).astype(np.uint8)] if d.W == 2 else []
        h = (x >> 8 if d.W == 2 else x).astype(np.int64)
        symbols, low = h >> d.k, h & (1 << d.k) - 1
    planes = [plane.view(np.uint8) for plane in planes]
    if d.k:
        planes.append(pack(low.reshape(-1, 8)[order].reshape(-1), d.k))
    return planes, symbols.reshape(-1, 8)[order].reshape(-1)


def levels(symbols: np.ndarray, table: np.ndarray, G: int):
    """The codes plane, levels 2 to 4 of the tail, K2 and K4; a symbol's rank is its first in the table."""
    rank = np.full(256, 13)
    rank[table[::-1]] = np.arange(len(table))[::-1]
    ranks = rank[symbols]
    codes, tail, counts = [], [], []
    for last, bits in ((3, 2), (6, 2), (13, 3)):
        codes.append(pack(np.where(ranks < last, last - ranks, 0), bits))
        symbols, ranks = symbols[ranks >= last], ranks[ranks >= last]
        counts.append(symbols.size)
    for field in (*codes[1:], symbols.astype(np.uint8)):
        tail.append(filled_up(field, 4 * ceil_div(field.size, 4)))
    return codes[0], np.concatenate(tail), counts[0], counts[2]
