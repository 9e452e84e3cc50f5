// The algorithm of one block. Read it as if it were serial; Lanes says what runs side by side.
//
// A symbol is the exponent of a value, aligned. Three levels code it with tables of 3, 3 and 7 symbols: level 1 has a
// 2-bit code for every value, level 2 one for every escape of level 1, level 3 a 3-bit code for every escape of level
// 2, and what escapes there is written out (level 4). The position of a symbol in the table of all 13 is its rank.
#pragma once

#include <cstdint>

#include "dtype.h"
#include "format.h"
#include "lanes.h"

namespace uzip::UZIP_ISA {

constexpr int kMaxTailBytes =
    4 * (level2_words(kMaxBlockValues) + level3_words(kMaxBlockValues) + level4_words(kMaxBlockValues) + kTableWords);
constexpr int kSlack = 16;  // octets are read and written whole

// Scratch of one block: the shared memory of a warp.
struct Workspace {
  Octet symbols[kMaxBlockGroups];
  Octet escapes[kMaxBlockGroups];
  uint8_t stream2[kMaxBlockValues + kSlack];  // symbols that level 2 codes, and so on
  uint8_t stream3[kMaxBlockValues + kSlack];
  uint8_t stream4[kMaxBlockValues + kSlack];
  uint8_t tail[kMaxTailBytes + kSlack];
  uint8_t padded[8 * kMaxBlockValues];  // the values of a block whose last group is not full
};

// 0xff in the bytes of octet `unit` that are among the first n of a stream.
inline Octet valid_bytes(int unit, int n) {
  int left = n - 8 * unit;
  return left >= 8 ? ~Octet{0} : (Octet{1} << (8 * left)) - 1;
}

// Ranks by distance below kTop + 2: the fixed table of aligned blocks.
template <class D>
struct AlignedRanks {
  static constexpr uint8_t kRank[16] = {6, 3, 0, 1, 2, 4, 5, 7, 8, 9, 10, 11, 12, 13, 13, 13};
  Octet operator()(Octet symbols) const {
    return Lanes::lookup(Lanes::distance(D::kAlign.top + 2, symbols, D::kAlign.symbol_mask), kRank);
  }
  static void table(uint8_t table[16]) {
    for (int d = 0; d < kTableSymbols; ++d) {
      table[kRank[d]] = static_cast<uint8_t>((D::kAlign.top + 2 - d) & D::kAlign.symbol_mask);
    }
  }
};

struct TableRanks {
  uint8_t rank[256];
  TableRanks(const uint8_t table[16], int n) {
    std::memset(rank, kTableSymbols, sizeof(rank));
    for (int i = 0; i < n; ++i) rank[table[i]] = static_cast<uint8_t>(i);
  }
  Octet operator()(Octet symbols) const { return Lanes::lookup_any(symbols, rank); }
};

// --- Encode -------------------------------------------------------------------------------------------------------

// Level 1 from ws.symbols: writes the codes, leaves the escapes in ws.stream2 and returns how many they are.
template <class Ranks>
int encode_level1(const Ranks& ranks, int groups, uint8_t* codes, Workspace& ws) {
  Lanes::each_group(groups, [&](int, int group, int index) {
    Octet code = Lanes::below(3, ranks(ws.symbols[group]));
    ws.escapes[group] = Lanes::zero_bytes(code);
    store(codes + 2 * index, static_cast<uint16_t>(Lanes::pack<2>(code)));
  });
  return Lanes::append(
      [&](int lane) {
        int count = 0;
        Lanes::each_piece(lane, groups, [&](int group, int) { count += Lanes::count(ws.escapes[group]); });
        return count;
      },
      [&](int lane, int offset) {
        Lanes::each_piece(lane, groups, [&](int group, int) {
          store(ws.stream2 + offset, Lanes::compact(ws.symbols[group], ws.escapes[group]));
          offset += Lanes::count(ws.escapes[group]);
        });
        return offset;
      });
}

struct Level {
  Octet code, symbols, escapes;
  int count;
};

// Level 2 (Bits 2) or 3 (Bits 3): codes of the n symbols in `from` go to `tail`, escapes to `to`.
template <int Bits, class Ranks>
int encode_level(const Ranks& ranks, int n, const uint8_t* from, uint8_t* to, uint8_t* tail) {
  constexpr uint8_t limit = Bits == 2 ? 6 : 13;
  if (n == 0) return 0;
  int words = Bits == 2 ? level2_words(n) : level3_words(n);
  store<uint32_t>(tail + 4 * (words - 1), 0);
  return Lanes::append_units((n + 7) / 8,
                             [&](int unit) {
                               Octet symbols = load<Octet>(from + 8 * unit), valid = valid_bytes(unit, n);
                               Octet code = Lanes::below(limit, ranks(symbols)) & valid;
                               Octet escapes = Lanes::zero_bytes(code) & valid;
                               return Level{code, symbols, escapes, Lanes::count(escapes)};
                             },
                             [&](int unit, const Level& level, int offset) {
                               uint64_t bits = Lanes::pack<Bits>(level.code);
                               if constexpr (Bits == 2) {
                                 store(tail + 2 * unit, static_cast<uint16_t>(bits));
                               } else {
                                 store(tail + 3 * unit, static_cast<uint32_t>(bits));
                               }
                               store(to + offset, Lanes::compact(level.symbols, level.escapes));
                             });
}

// Levels 1 to 4 into `codes` and `tail`. Returns the words of the tail; k2 and k4 are the escapes of levels 1 and 3.
template <class Ranks>
int encode_levels(const Ranks& ranks, int groups, uint8_t* codes, uint8_t* tail, Workspace& ws, int* k2, int* k4) {
  *k2 = encode_level1(ranks, groups, codes, ws);
  int words = level2_words(*k2);
  int k3 = encode_level<2>(ranks, *k2, ws.stream2, ws.stream3, tail);
  *k4 = encode_level<3>(ranks, k3, ws.stream3, ws.stream4, tail + 4 * words);
  words += level3_words(k3);
  if (*k4 > 0) {
    store<uint32_t>(tail + 4 * (words + level4_words(*k4) - 1), 0);
    Lanes::copy(tail + 4 * words, ws.stream4, *k4);
  }
  return words + level4_words(*k4);
}

constexpr int kAlignmentGroups = kAlignmentPieces * kLaneCount;  // that share a constant

// The alignment constant of the groups from `first` on, from the first two values of each group in an even piece.
template <class D>
uint16_t align(const uint8_t* values, int first, int groups) {
  constexpr int kSampled = kAlignmentPieces / 2, stride = 8 * D::kShape.value_bytes;
  if (first >= groups) return 0;
  Lanes::Reg<uint32_t> sample[kSampled][2], largest{}, sum{};
  uint32_t count = 0;
  int lanes[kSampled];
  for (int i = 0; i < kSampled; ++i) {
    int left = groups - first - 2 * i * kLaneCount;
    lanes[i] = left < 0 ? 0 : left < kLaneCount ? left : kLaneCount;
    count += 2 * static_cast<uint32_t>(lanes[i]);
    const uint8_t* piece = values + (first + 2 * i * kLaneCount) * stride;
    for (int j = 0; j < 2; ++j) {
      Lanes::each_below(lanes[i], [&](int lane) { sample[i][j][lane] = D::magnitude(piece + lane * stride, j); });
      Lanes::each_below(lanes[i], [&](int lane) {
        largest[lane] = largest[lane] > sample[i][j][lane] ? largest[lane] : sample[i][j][lane];
      });
    }
  }
  uint32_t floor = D::clamp_below(Lanes::max(largest));
  for (int i = 0; i < kSampled; ++i) {
    for (int j = 0; j < 2; ++j) {
      Lanes::each_below(lanes[i],
                        [&](int lane) { sum[lane] += sample[i][j][lane] > floor ? sample[i][j][lane] : floor; });
    }
  }
  return D::constant(Lanes::sum(sum), count);
}

// The alignment constant of the same groups by their largest exponent, where that of their sample leaves out values.
template <class D>
uint16_t align_by_largest(const uint8_t* values, int first, int groups) {
  if (first >= groups) return 0;
  int left = groups - first;
  Lanes::Reg<uint32_t> largest{};
  Lanes::each_group(left < kAlignmentGroups ? left : kAlignmentGroups, [&](int lane, int group, int) {
    uint32_t field = D::largest_field(values + 8 * D::kShape.value_bytes * (first + group));
    largest[lane] = largest[lane] > field ? largest[lane] : field;
  });
  return D::constant_for_largest(Lanes::max(largest));
}

// Parts all groups: symbols into the workspace, the rest into planes. False if a value has no symbol.
template <class D>
bool split_groups(const uint8_t* values, int groups, const BlockHeader& header, const Planes<uint8_t>& out,
                  Workspace& ws) {
  Lanes::Reg<int> outside{};
  Lanes::each_group(groups, [&](int lane, int group, [[maybe_unused]] int index) {
    Octet low;
    uint16_t c = header.alignment[group / kAlignmentGroups];
    const uint8_t* from = values + 8 * D::kShape.value_bytes * group;
    outside[lane] |= !D::split(from, c, group, out, &ws.symbols[group], &low);
    if constexpr (D::kShape.low_bits > 0) {
      uint64_t bits = Lanes::pack<D::kShape.low_bits>(low);
      Lanes::copy(out.low_bits + D::kShape.low_bits * index, reinterpret_cast<const uint8_t*>(&bits),
                  D::kShape.low_bits);
    }
  });
  return Lanes::any(outside) == 0;
}

template <class D>
BlockHeader encode_raw(const uint8_t* values, int groups, uint8_t* planes, uint8_t* tail) {
  int bytes = 8 * D::kShape.value_bytes * groups, fixed = static_bytes(D::kShape, groups);
  Lanes::copy(planes, values, fixed);
  Lanes::copy(tail, values + fixed, bytes - fixed);  // whole words, as `fixed` and all groups are
  return {Mode::kRaw, static_cast<uint16_t>(raw_tail_words(D::kShape, groups)), {0, 0}};
}

// Encodes `count` values. `planes` has room for static_bytes(), `tail` for max_tail_words() words; only what the header
// returned tells of is written there (a constant block writes no planes).
template <class D>
BlockHeader encode_block(const uint8_t* values, int count, uint8_t* planes, uint8_t* tail, Workspace& ws) {
  constexpr int width = D::kShape.value_bytes;
  const int groups = groups_of(count);

  // 1. A last group that is not full is filled with the last value.
  if (count % kGroupValues != 0) {
    Lanes::copy(ws.padded, values, width * count);
    for (int i = count; i < 8 * groups; ++i) Lanes::copy(ws.padded + width * i, values + width * (count - 1), width);
    values = ws.padded;
  }

  // 2. Constant: the value is all there is.
  if (Lanes::all_same(values, width, 8 * width * groups)) {
    Lanes::clear(tail, 4 * constant_tail_words(D::kShape));
    Lanes::copy(tail, values, width);
    return {Mode::kConstant, static_cast<uint16_t>(constant_tail_words(D::kShape)), {0, 0}};
  }

  // 3. Align, and part symbols from what is not coded.
  BlockHeader header{Mode::kAligned, 0, {}};
  for (int i = 0; i < kMaxAlignments; ++i) {
    header.alignment[i] = align<D>(values, i * kAlignmentGroups, groups);
  }
  Planes<uint8_t> out(D::kShape, planes, groups);
  uint8_t* padding = out.codes + 2 * groups;
  Lanes::clear(padding, static_bytes(D::kShape, groups) - static_cast<int>(padding - planes));
  bool fits = split_groups<D>(values, groups, header, out, ws);
  if constexpr (width == 8) {
    if (!fits) {
      for (int i = 0; i < kMaxAlignments; ++i) {
        header.alignment[i] = align_by_largest<D>(values, i * kAlignmentGroups, groups);
      }
      fits = split_groups<D>(values, groups, header, out, ws);
    }
  }
  if (!fits) return encode_raw<D>(values, groups, planes, tail);

  // 4. Code the symbols with the fixed table; where it fits badly, see whether a table of the block's own is shorter.
  uint8_t* levels = ws.tail;
  int k2, k4;
  int words = encode_levels(AlignedRanks<D>{}, groups, out.codes, levels, ws, &k2, &k4);
  if (k4 > groups / 8 || 20 * k2 > 72 * groups) {
    uint16_t counts[256];
    uint8_t table[16];
    Lanes::histogram(ws.symbols, groups, counts);
    int n = Lanes::most_frequent(counts, table);
    int escapes[3] = {8 * groups, 0, 0};  // of levels 1, 2 and 3
    for (int i = 0; i < 3 && i < n; ++i) escapes[0] -= counts[table[i]];
    escapes[1] = escapes[0];
    for (int i = 3; i < 6 && i < n; ++i) escapes[1] -= counts[table[i]];
    escapes[2] = escapes[1];
    for (int i = 6; i < kTableSymbols && i < n; ++i) escapes[2] -= counts[table[i]];
    int ranked = kTableWords + level2_words(escapes[0]) + level3_words(escapes[1]) + level4_words(escapes[2]);
    if (ranked < words) {
      words = ranked;
      header.mode = Mode::kRanked;
      if (words < raw_tail_words(D::kShape, groups)) {
        Lanes::copy(levels, table, 16);
        encode_levels(TableRanks(table, n), groups, out.codes, levels + 16, ws, &k2, &k4);
      }
    }
  }

  // 5. Raw, if that is no longer.
  if (words >= raw_tail_words(D::kShape, groups)) return encode_raw<D>(values, groups, planes, tail);
  Lanes::copy(tail, levels, 4 * words);
  header.tail_words = static_cast<uint16_t>(words);
  return header;
}

// --- Decode -------------------------------------------------------------------------------------------------------

// How many of the first n 3-bit codes are escapes.
inline int count_level3_escapes(const uint8_t* codes, int n) {
  return Lanes::append_units((n + 7) / 8,
                             [&](int unit) {
                               Octet escapes = Lanes::zero_bytes(Lanes::unpack<3>(load<uint32_t>(codes + 3 * unit)));
                               return Level{0, 0, 0, Lanes::count(escapes & valid_bytes(unit, n))};
                             },
                             [](int, const Level&, int) {});
}

// The n symbols of a level from its codes and from the symbols of the level below it.
template <int Bits>
void decode_level(const uint8_t* codes, int n, const uint8_t table[16], const uint8_t* escaped, uint8_t* to) {
  Lanes::append_units((n + 7) / 8,
                      [&](int unit) {
                        Octet code = Lanes::unpack<Bits>(load<uint32_t>(codes + Bits * unit));
                        Octet escapes = Lanes::zero_bytes(code);
                        return Level{code, 0, escapes, Lanes::count(escapes)};
                      },
                      [&](int unit, const Level& level, int offset) {
                        store(to + 8 * unit, Lanes::lookup(level.code, table) |
                                                 Lanes::expand(load<Octet>(escaped + offset), level.escapes));
                      });
}

// Whether the bits of a word-padded field after the first `used` are zero.
inline bool padding_is_zero(const uint8_t* field, int words, int used) {
  if (used == 32 * words) return true;
  return load<uint32_t>(field + 4 * (words - 1)) >> (used - 32 * (words - 1)) == 0;
}

// Symbols of a coded block into ws.symbols.
template <class D>
BlockError decode_symbols(const BlockHeader& header, int groups, const uint8_t* codes, const uint8_t* tail,
                          Workspace& ws) {
  int left = header.tail_words;
  auto take = [&left](int words) {
    left -= words;
    return left >= 0;
  };
  Lanes::copy(ws.tail, tail, 4 * header.tail_words);
  const uint8_t* at = ws.tail;

  // 1. The table, by rank; then for each level by code, where code 0 is the escape and adds nothing.
  uint8_t table[16] = {}, table1[16] = {}, table2[16] = {}, table3[16] = {};
  if (header.mode == Mode::kRanked) {
    if (!take(kTableWords)) return BlockError::kTailLength;
    Lanes::copy(table, at, 16);
    at += 16;
    for (int i = 0; i < 16; ++i) {
      if (i >= kTableSymbols && table[i] != 0) return BlockError::kPadding;
      if ((table[i] & ~D::kAlign.symbol_mask) != 0) return BlockError::kSymbol;
    }
  } else {
    AlignedRanks<D>::table(table);
  }
  for (int code = 1; code < 4; ++code) table1[code] = table[3 - code];
  for (int code = 1; code < 4; ++code) table2[code] = table[6 - code];
  for (int code = 1; code < 8; ++code) table3[code] = table[13 - code];

  // 2. The escapes of each level say how long the next one is.
  int k2 = Lanes::count_zero_codes(codes, 8 * groups);
  const uint8_t* level2 = at;
  if (!take(level2_words(k2))) return BlockError::kTailLength;
  if (!padding_is_zero(level2, level2_words(k2), 2 * k2)) return BlockError::kPadding;
  int k3 = Lanes::count_zero_codes(level2, k2);
  const uint8_t* level3 = level2 + 4 * level2_words(k2);
  if (!take(level3_words(k3))) return BlockError::kTailLength;
  if (!padding_is_zero(level3, level3_words(k3), 3 * k3)) return BlockError::kPadding;
  int k4 = count_level3_escapes(level3, k3);
  const uint8_t* level4 = level3 + 4 * level3_words(k3);
  if (!take(level4_words(k4)) || left != 0) return BlockError::kTailLength;
  if (!padding_is_zero(level4, level4_words(k4), 8 * k4)) return BlockError::kPadding;
  uint8_t bits = 0;
  for (int i = 0; i < k4; ++i) bits |= level4[i];
  if ((bits & ~D::kAlign.symbol_mask) != 0) return BlockError::kSymbol;

  // 3. From the last level up.
  decode_level<3>(level3, k3, table3, level4, ws.stream3);
  decode_level<2>(level2, k2, table2, ws.stream3, ws.stream2);
  Lanes::append(
      [&](int lane) {
        int count = 0;
        Lanes::each_piece(lane, groups,
                          [&](int, int index) { count += Lanes::count_zero_codes(codes + 2 * index, 8); });
        return count;
      },
      [&](int lane, int offset) {
        Lanes::each_piece(lane, groups, [&](int group, int index) {
          Octet code = Lanes::unpack<2>(load<uint16_t>(codes + 2 * index));
          Octet escapes = Lanes::zero_bytes(code);
          ws.symbols[group] = Lanes::lookup(code, table1) | Lanes::expand(load<Octet>(ws.stream2 + offset), escapes);
          offset += Lanes::count(escapes);
        });
        return offset;
      });
  return BlockError::kNone;
}

// Decodes `count` values. Reads static_bytes() bytes of `planes` (none of a constant block's) and header.tail_words
// words of `tail`, whatever they hold.
template <class D>
BlockError decode_block(const BlockHeader& header, int count, const uint8_t* planes, const uint8_t* tail,
                        uint8_t* values, Workspace& ws) {
  constexpr int width = D::kShape.value_bytes;
  const int groups = groups_of(count);
  const int raw_words = raw_tail_words(D::kShape, groups);

  if (header.mode == Mode::kConstant || header.mode == Mode::kRaw) {
    if ((header.alignment[0] | header.alignment[1]) != 0) return BlockError::kAlignment;
  }
  if (header.mode == Mode::kConstant) {
    if (header.tail_words != constant_tail_words(D::kShape)) return BlockError::kTailLength;
    if (width < 4 && load<uint32_t>(tail) >> (8 * width & 31) != 0) return BlockError::kPadding;
    for (int i = 0; i < count; ++i) Lanes::copy(values + width * i, tail, width);
    return BlockError::kNone;
  }
  if (header.tail_words > raw_words) return BlockError::kTailTooLong;
  if (header.mode == Mode::kRaw) {
    if (header.tail_words != raw_words) return BlockError::kTailLength;
    int bytes = width * count, fixed = static_bytes(D::kShape, groups);
    Lanes::copy(values, planes, bytes < fixed ? bytes : fixed);
    if (bytes > fixed) Lanes::copy(values + fixed, tail, bytes - fixed);
    return BlockError::kNone;
  }
  if (((header.alignment[0] | header.alignment[1]) & ~D::kAlign.wire_mask) != 0) return BlockError::kAlignment;

  Planes<const uint8_t> in(D::kShape, planes, groups);
  BlockError error = decode_symbols<D>(header, groups, in.codes, tail, ws);
  if (error != BlockError::kNone) return error;

  uint8_t* to = count % kGroupValues == 0 ? values : ws.padded;
  Lanes::each_group(groups, [&](int, int group, [[maybe_unused]] int index) {
    uint64_t bits = 0;
    Octet low = 0;
    if constexpr (D::kShape.low_bits > 0) {
      Lanes::copy(reinterpret_cast<uint8_t*>(&bits), in.low_bits + D::kShape.low_bits * index, D::kShape.low_bits);
      low = Lanes::unpack<D::kShape.low_bits>(bits);
    }
    uint16_t c = header.alignment[group / kAlignmentGroups];
    D::join(to + 8 * width * group, c, group, in, ws.symbols[group], low);
  });
  if (to == ws.padded) Lanes::copy(values, ws.padded, width * count);
  return BlockError::kNone;
}

}  // namespace uzip::UZIP_ISA
