// All that the codec knows of a dtype: how a group of eight values falls apart into exponent symbols, low bits and
// planes, and which constant aligns its exponents. block.h is blind to dtypes.
//
// After the alignment constant is added, each 32-bit word (float64: each value) is rotated left by one bit, so that
// the exponent stands at the top and the sign at the bottom. In words of several values the signs change places with
// their neighbours and a carry may pass between them; the inverse undoes both.
#pragma once

#include <cstdint>

#include "lanes.h"

namespace uzip::UZIP_ISA {

// The planes of one block; only those that the dtype has are looked at.
template <class Byte>
struct Planes {
  Byte *words, *halves, *bytes, *low_bits, *codes;

  Planes(DTypeShape s, Byte* base, int groups) {
    words = base;
    halves = words + 32 * s.words * groups;
    bytes = halves + 16 * s.halves * groups;
    low_bits = bytes + 8 * s.bytes * groups;
    codes = low_bits + s.low_bits * groups;
  }
};

// What the trait below needs to align exponents: symbols kTop, kTop-1 and kTop-2 get the shortest codes.
// A block's mean magnitude is moved to `anchor`, which puts a Gaussian's octaves at their best phase against them.
struct Alignment {
  uint8_t top;
  uint8_t symbol_mask;
  int mantissa_bits;   // of a magnitude: 1 << mantissa_bits is an octave
  uint32_t anchor;     // in magnitudes, or for mantissa_bits == 0 in 1/128 octaves
  uint32_t wire_mask;  // bits of the constant
};

constexpr uint32_t kClampOctaves = 9;  // magnitudes further below the largest one sampled count as this far

template <class A>
struct Aligned {
  static uint32_t clamp_below(uint32_t largest) {
    uint32_t reach = kClampOctaves << A::kAlign.mantissa_bits;
    return largest > reach ? largest - reach : 0;
  }
  static uint16_t constant(uint32_t sum, uint32_t count) {
    if constexpr (A::kAlign.mantissa_bits == 0) {
      return static_cast<uint16_t>((A::kAlign.top - ((sum << 7) / count + A::kAlign.anchor) / 128) &
                                   A::kAlign.wire_mask);
    } else {
      return static_cast<uint16_t>((A::kAlign.anchor - sum / count) & A::kAlign.wire_mask);
    }
  }
};

// bfloat16 and float16.
template <int LowBits>
struct TwoByte : Aligned<TwoByte<LowBits>> {
  static constexpr DTypeShape kShape = {2, 0, 0, 1, LowBits};
  static constexpr Alignment kAlign = LowBits == 0 ? Alignment{244, 0xff, 7, (243 << 7) + 16, 0xffff}
                                                   : Alignment{28, 0x1f, 10, (27 << 10) + 128, 0xffff};

  static uint32_t magnitude(const uint8_t* group, int i) { return load<uint16_t>(group + 2 * i) & 0x7fff; }

  static bool split(const uint8_t* group, uint16_t c, int g, Planes<uint8_t> p, Octet* symbols, Octet* low) {
    Octet high, raw;
    Lanes::split16(group, c * 0x10001u, &high, &raw);
    store(p.bytes + 8 * g, raw);
    *symbols = high >> LowBits & kAlign.symbol_mask * kEachByte;
    *low = high;
    return true;
  }

  static void join(uint8_t* group, uint16_t c, int g, Planes<const uint8_t> p, Octet symbols, Octet low) {
    Lanes::join16(group, c * 0x10001u, symbols << LowBits | low, load<Octet>(p.bytes + 8 * g));
  }
};

struct FourByte : Aligned<FourByte> {
  static constexpr DTypeShape kShape = {4, 0, 1, 1, 0};
  static constexpr Alignment kAlign = {244, 0xff, 7, (243 << 7) + 16, 0xffff};

  static uint32_t magnitude(const uint8_t* group, int i) { return load<uint16_t>(group + 4 * i + 2) & 0x7fff; }

  static bool split(const uint8_t* group, uint16_t c, int g, Planes<uint8_t> p, Octet* symbols, Octet* low) {
    Octet middle;
    Lanes::split32(group, static_cast<uint32_t>(c) << 16, symbols, &middle, p.halves + 16 * g);
    store(p.bytes + 8 * g, middle);
    *low = 0;
    return true;
  }

  static void join(uint8_t* group, uint16_t c, int g, Planes<const uint8_t> p, Octet symbols, Octet) {
    Lanes::join32(group, static_cast<uint32_t>(c) << 16, symbols, load<Octet>(p.bytes + 8 * g), p.halves + 16 * g);
  }
};

// float64: 11 exponent bits in an 8-bit symbol. 0 stands for exponent field 0, 255 for 2047; every other field must
// be 1 to 254 once the constant was added. If one is not, as where a sample of zeros says nothing of the other values,
// the block is tried once more with the largest field at 254, and else goes raw.
struct EightByte : Aligned<EightByte> {
  static constexpr DTypeShape kShape = {8, 1, 1, 0, 5};
  static constexpr Alignment kAlign = {244, 0xff, 0, 240, 0xffff};

  static uint32_t magnitude(const uint8_t* group, int i) { return load<uint16_t>(group + 8 * i + 6) >> 4 & 0x7ff; }

  // The largest exponent field of a group, infinities and NaNs left out.
  static uint32_t largest_field(const uint8_t* group) {
    uint32_t largest = 0;
    for (int i = 0; i < 8; ++i) {
      uint32_t field = magnitude(group, i);
      if (field < 2047 && field > largest) largest = field;
    }
    return largest;
  }
  static uint16_t constant_for_largest(uint32_t field) { return static_cast<uint16_t>(254 - field); }

  static bool split(const uint8_t* group, uint16_t c, int g, Planes<uint8_t> p, Octet* symbols, Octet* low) {
    Octet s = 0, l = 0;
    unsigned outside = 0;
    for (int i = 0; i < 8; ++i) {
      uint64_t x = load<uint64_t>(group + 8 * i);
      uint64_t y = x << 1 | x >> 63;
      unsigned field = static_cast<unsigned>(y >> 53);
      unsigned moved = (field + c) & 0xffff;
      unsigned symbol = field == 0 ? 0 : field == 2047 ? 255 : moved;
      outside |= static_cast<unsigned>(moved - 1 > 253) & static_cast<unsigned>(field - 1 < 2046);
      store(p.words + 32 * g + 4 * i, static_cast<uint32_t>(y));
      store(p.halves + 16 * g + 2 * i, static_cast<uint16_t>(y >> 32));
      l |= (y >> 48 & 0x1f) << (8 * i);
      s |= static_cast<Octet>(symbol & 0xff) << (8 * i);
    }
    *symbols = s;
    *low = l;
    return outside == 0;
  }

  static void join(uint8_t* group, uint16_t c, int g, Planes<const uint8_t> p, Octet symbols, Octet low) {
    for (int i = 0; i < 8; ++i) {
      unsigned symbol = static_cast<unsigned>(symbols >> (8 * i) & 0xff);
      uint64_t field = symbol == 0 ? 0 : symbol == 255 ? 2047 : (symbol - c) & 0x7ff;
      uint64_t y = load<uint32_t>(p.words + 32 * g + 4 * i) |
                   static_cast<uint64_t>(load<uint16_t>(p.halves + 16 * g + 2 * i)) << 32 |
                   (low >> (8 * i) & 0x1f) << 48 | field << 53;
      store(group + 8 * i, y >> 1 | y << 63);
    }
  }
};

// The 8-bit floats by the bits that are not exponent; 0 is float8_e8m0fnu, which has no sign.
template <int LowBits>
struct OneByte : Aligned<OneByte<LowBits>> {
  static constexpr DTypeShape kShape = {1, 0, 0, 0, LowBits};
  static constexpr bool kSigned = LowBits != 0;
  static constexpr Alignment kAlign = LowBits == 0   ? Alignment{244, 0xff, 0, 240, 0xff}
                                      : LowBits == 3 ? Alignment{28, 0x1f, 2, 27 * 4, 0xff}
                                      : LowBits == 4 ? Alignment{13, 0x0f, 3, 12 * 8, 0xff}
                                                     : Alignment{5, 0x07, 4, 4 * 16 + 1, 0xff};

  static uint32_t magnitude(const uint8_t* group, int i) { return group[i] & (kSigned ? 0x7f : 0xff); }

  static bool split(const uint8_t* group, uint16_t c, int, Planes<uint8_t>, Octet* symbols, Octet* low) {
    Octet y = Lanes::split8<kSigned>(group, c * 0x01010101u);
    *symbols = y >> LowBits & kAlign.symbol_mask * kEachByte;
    *low = y;
    return true;
  }

  static void join(uint8_t* group, uint16_t c, int, Planes<const uint8_t>, Octet symbols, Octet low) {
    Lanes::join8<kSigned>(group, c * 0x01010101u, symbols << LowBits | low);
  }
};

}  // namespace uzip::UZIP_ISA
