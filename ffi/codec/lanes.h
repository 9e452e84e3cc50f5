// The vocabulary that block.h is written in, for the CPU: 32 lanes are a loop. On a GPU the same words are meant for
// one warp. Octets are eight bytes in a 64-bit word, the first byte lowest.
//
// Compiled once for every instruction set (UZIP_ISA names the namespace, so that no two versions of one inline function
// can be merged by the linker); the bytes that come out are the same.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "format.h"

#ifndef UZIP_ISA
#define UZIP_ISA portable
#endif

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the codec reads and writes little-endian words in place"
#endif

namespace uzip::UZIP_ISA {

using Octet = uint64_t;

template <class T>
T load(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <class T>
void store(void* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

constexpr Octet kEachByte = 0x0101010101010101;
constexpr Octet kLow7 = 0x7f * kEachByte;

#if defined(__AVX2__) && !defined(__BMI2__)
// For each choice of bytes of an octet, where _mm_shuffle_epi8 finds the bytes to move; 0x80 gives zero.
struct ByteMoves {
  uint8_t compact[256][8], expand[256][8];

  constexpr ByteMoves() : compact(), expand() {
    for (int chosen = 0; chosen < 256; ++chosen) {
      int n = 0;
      for (int i = 0; i < 8; ++i) {
        bool is_chosen = chosen >> i & 1;
        expand[chosen][i] = is_chosen ? static_cast<uint8_t>(n) : 0x80;
        if (is_chosen) compact[chosen][n++] = static_cast<uint8_t>(i);
      }
      while (n < 8) compact[chosen][n++] = 0x80;
    }
  }
};
inline constexpr ByteMoves kByteMoves;
#endif

struct Lanes {
  // One T in every lane.
  template <class T>
  struct Reg {
    T value[kLaneCount];
    T& operator[](int lane) { return value[lane]; }
    const T& operator[](int lane) const { return value[lane]; }
  };

  // --- Order ---------------------------------------------------------------------------------------------------

  // f(lane) in the first n lanes.
  template <class F>
  static void each_below(int n, F f) {
    for (int lane = 0; lane < n; ++lane) f(lane);
  }

  // f(lane, group, index) for every group, on the CPU in memory order; index is the group's place in block order, in
  // which each lane's pieces follow each other.
  template <class F>
  static void each_group(int groups, F f) {
    int whole = groups / kLaneCount, rest = groups % kLaneCount;
    for (int first = 0, piece = 0; first < groups; first += kLaneCount, ++piece) {
      int lanes = groups - first < kLaneCount ? groups - first : kLaneCount;
      for (int lane = 0, index = piece; lane < lanes; ++lane) {
        f(lane, first + lane, index);
        index += whole + (lane < rest ? 1 : 0);
      }
    }
  }

  // f(group, index) for the groups of one lane.
  template <class F>
  static void each_piece(int lane, int groups, F f) {
    int whole = groups / kLaneCount, rest = groups % kLaneCount;
    int index = lane * whole + (lane < rest ? lane : rest);
    for (int group = lane; group < groups; group += kLaneCount) f(group, index++);
  }

  // f(lane, offset) in every lane, where offset is the sum of count(lane) over the lanes before; f returns the offset
  // after its own. Returns the sum of all. Where lanes are a loop, count is never asked: f says the same.
  template <class Count, class F>
  static int append(Count, F f) {
    int offset = 0;
    for (int lane = 0; lane < kLaneCount; ++lane) offset = f(lane, offset);
    return offset;
  }

  // For each of `units` steps in order: state = make(unit), then use(unit, state, offset), where offset is the sum of
  // the count fields of the states before. Returns the sum of all.
  template <class Make, class Use>
  static int append_units(int units, Make make, Use use) {
    int offset = 0;
    for (int unit = 0; unit < units; ++unit) {
      auto state = make(unit);
      use(unit, state, offset);
      offset += state.count;
    }
    return offset;
  }

  static void copy(uint8_t* to, const uint8_t* from, int bytes) { std::memcpy(to, from, static_cast<size_t>(bytes)); }
  static void clear(uint8_t* to, int bytes) { std::memset(to, 0, static_cast<size_t>(bytes)); }

  template <class T>
  static T sum(const Reg<T>& r) {
    T total = 0;
    for (int lane = 0; lane < kLaneCount; ++lane) total += r[lane];
    return total;
  }

  template <class T>
  static T max(const Reg<T>& r) {
    T best = r[0];
    for (int lane = 1; lane < kLaneCount; ++lane) best = r[lane] > best ? r[lane] : best;
    return best;
  }

  template <class T>
  static T any(const Reg<T>& r) {
    T bits = 0;
    for (int lane = 0; lane < kLaneCount; ++lane) bits |= r[lane];
    return bits;
  }

  // Whether the values (of `width` bytes each) all have the same bits.
  static bool all_same(const uint8_t* values, int width, int bytes) {
    return std::memcmp(values, values + width, static_cast<size_t>(bytes - width)) == 0;
  }

  // How often each byte occurs.
  static void histogram(const Octet* octets, int n, uint16_t counts[256]) {
    uint16_t part[4][256] = {};  // four tables, so that a run of one byte does not wait for its own stores
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < 8; ++j) ++part[j & 3][octets[i] >> (8 * j) & 0xff];
    }
    for (int i = 0; i < 256; ++i) {
      counts[i] = static_cast<uint16_t>(part[0][i] + part[1][i] + part[2][i] + part[3][i]);
    }
  }

  // The kTableSymbols bytes that occur most often, by falling count, the smaller byte first where counts are equal; 0
  // stands where there are not so many. Returns how many there are.
  static int most_frequent(const uint16_t counts[256], uint8_t table[16]) {
    uint32_t best[kTableSymbols + 1] = {};
    int n = 0;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      if (counts[byte] == 0) continue;
      uint32_t key = static_cast<uint32_t>(counts[byte]) << 8 | (255 - byte);
      int at = n < kTableSymbols ? n++ : kTableSymbols;
      for (; at > 0 && best[at - 1] < key; --at) best[at] = best[at - 1];
      best[at] = key;
    }
    for (int i = 0; i < 16; ++i) table[i] = i < n ? static_cast<uint8_t>(255 - (best[i] & 0xff)) : 0;
    return n;
  }

  // How many of the first n 2-bit codes are zero.
  static int count_zero_codes(const uint8_t* codes, int n) {
    constexpr uint64_t low = 0x5555555555555555;
    int nonzero = 0, i = 0;
    for (; i + 32 <= n; i += 32) {
      auto c = load<uint64_t>(codes + i / 4);
      nonzero += __builtin_popcountll((c | c >> 1) & low);
    }
    for (; i < n; i += 4) {
      unsigned c = codes[i / 4] & (n - i < 4 ? (1u << (2 * (n - i))) - 1 : 0xffu);
      nonzero += __builtin_popcount((c | c >> 1) & 0x55);
    }
    return n - nonzero;
  }

  // --- Octets --------------------------------------------------------------------------------------------------

  // The low `Bits` bits of each byte side by side, 8 * Bits bits in all; and back.
  template <int Bits>
  static uint64_t pack(Octet o) {
    constexpr uint64_t mask = ((1u << Bits) - 1) * kEachByte;
#if defined(__BMI2__)
    return _pext_u64(o, mask);
#elif defined(__AVX2__)
    static_assert(Bits <= 6, "weights are signed bytes");
    __m128i pairs = _mm_maddubs_epi16(register_of(o & mask), _mm_set1_epi16(1 | 1 << (Bits + 8)));
    Octet fours = octet_of(_mm_madd_epi16(pairs, _mm_set1_epi32(1 | 1 << (2 * Bits + 16))));
    return (fours & 0xffffffff) | fours >> 32 << (4 * Bits);
#else
    o &= mask;
    uint64_t out = 0;
    for (int i = 0; i < 8; ++i) out |= (o >> (8 * i) & 0xff) << (Bits * i);
    return out;
#endif
  }

  template <int Bits>
  static Octet unpack(uint64_t bits) {
#if defined(__BMI2__)
    return _pdep_u64(bits, ((1u << Bits) - 1) * kEachByte);
#elif defined(__AVX2__)
    // Each field in a 16-bit word: moved to its top, which drops what follows, and then to its bottom.
    constexpr auto from = [](int i) { return static_cast<char>(Bits * i / 8); };
    constexpr auto up = [](int i) { return static_cast<short>(1 << (16 - Bits - Bits * i % 8)); };
    __m128i words = _mm_shuffle_epi8(
        register_of(bits),
        _mm_setr_epi8(from(0), from(0) + 1, from(1), from(1) + 1, from(2), from(2) + 1, from(3), from(3) + 1,  //
                      from(4), from(4) + 1, from(5), from(5) + 1, from(6), from(6) + 1, from(7), from(7) + 1));
    words = _mm_mullo_epi16(words, _mm_setr_epi16(up(0), up(1), up(2), up(3), up(4), up(5), up(6), up(7)));
    words = _mm_srli_epi16(words, 16 - Bits);
    return octet_of(_mm_packus_epi16(words, words));
#else
    Octet o = 0;
    for (int i = 0; i < 8; ++i) o |= (bits >> (Bits * i) & ((1u << Bits) - 1)) << (8 * i);
    return o;
#endif
  }

  // 0xff where a byte is zero, else 0.
  static Octet zero_bytes(Octet o) {
#ifdef __AVX2__
    return octet_of(_mm_cmpeq_epi8(register_of(o), _mm_setzero_si128()));
#else
    Octet nonzero = ((o & kLow7) + kLow7) | o;  // bit 7 of each byte that is not zero
    return ((~nonzero >> 7) & kEachByte) * 0xff;
#endif
  }

  static int count(Octet mask) { return __builtin_popcountll(mask) >> 3; }

  // The bytes under a mask of whole bytes, moved to the front; and back.
  static Octet compact(Octet o, Octet mask) {
#if defined(__BMI2__)
    return _pext_u64(o, mask);
#elif defined(__AVX2__)
    return moved(o, kByteMoves.compact[_mm_movemask_epi8(register_of(mask))]);
#else
    Octet out = 0;
    int at = 0;
    for (int i = 0; i < 8; ++i) {
      uint64_t keep = mask >> (8 * i) & 1;
      out |= ((0 - keep) & (o >> (8 * i) & 0xff)) << at;
      at = (at + 8 * static_cast<int>(keep)) & 63;  // the eighth byte moves nothing any more
    }
    return out;
#endif
  }

  static Octet expand(Octet o, Octet mask) {
#if defined(__BMI2__)
    return _pdep_u64(o, mask);
#elif defined(__AVX2__)
    return moved(o, kByteMoves.expand[_mm_movemask_epi8(register_of(mask))]);
#else
    Octet out = 0;
    for (int i = 0; i < 8; ++i) {
      uint64_t keep = mask >> (8 * i) & 1;
      out |= ((0 - keep) & o & 0xff) << (8 * i);
      o >>= 8 * keep;
    }
    return out;
#endif
  }

  // table[byte] for each byte below 16.
  static Octet lookup(Octet o, const uint8_t table[16]) {
#ifdef __AVX2__
    return octet_of(_mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)), register_of(o)));
#else
    return lookup_any(o, table);
#endif
  }

  // table[byte] for any byte.
  static Octet lookup_any(Octet o, const uint8_t* table) {
    Octet out = 0;
    for (int i = 0; i < 8; ++i) out |= static_cast<Octet>(table[o >> (8 * i) & 0xff]) << (8 * i);
    return out;
  }

  // min((from - byte) mod 2^bits, 15) for each byte, mask = 2^bits - 1.
  static Octet distance(uint8_t from, Octet o, uint8_t mask) {
#ifdef __AVX2__
    __m128i d = _mm_sub_epi8(_mm_set1_epi8(static_cast<char>(from)), register_of(o));
    d = _mm_and_si128(d, _mm_set1_epi8(static_cast<char>(mask)));
    return octet_of(_mm_min_epu8(d, _mm_set1_epi8(15)));
#else
    Octet out = 0;
    for (int i = 0; i < 8; ++i) {
      unsigned d = (from - static_cast<unsigned>(o >> (8 * i) & 0xff)) & mask;
      out |= static_cast<Octet>(d < 15 ? d : 15) << (8 * i);
    }
    return out;
#endif
  }

  // max(limit - byte, 0) for each byte below 128.
  static Octet below(uint8_t limit, Octet o) {
#ifdef __AVX2__
    return octet_of(_mm_subs_epu8(_mm_set1_epi8(static_cast<char>(limit)), register_of(o)));
#else
    constexpr Octet top = 0x80 * kEachByte;
    Octet d = (top | limit * kEachByte) - o;  // bit 7 stays where limit >= byte
    return d & (((d & top) >> 7) * 0x7f);
#endif
  }

  // --- Groups of eight values ------------------------------------------------------------------------------------

  // Eight 2-byte values: add to each 32-bit word, rotate it left by one bit, and part high bytes from low ones.
  static void split16(const uint8_t* from, uint32_t add, Octet* high, Octet* low) {
#ifdef __AVX2__
    __m128i y = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    y = _mm_add_epi32(y, _mm_set1_epi32(static_cast<int>(add)));
    y = _mm_or_si128(_mm_slli_epi32(y, 1), _mm_srli_epi32(y, 31));
    y = _mm_shuffle_epi8(y, _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
    *low = octet_of(y);
    *high = static_cast<Octet>(_mm_extract_epi64(y, 1));
#else
    *high = *low = 0;
    for (int i = 0; i < 4; ++i) {
      uint64_t y = rotate_left(load<uint32_t>(from + 4 * i) + add);
      *low |= ((y & 0xff) | (y >> 8 & 0xff00)) << (16 * i);
      *high |= ((y >> 8 & 0xff) | (y >> 16 & 0xff00)) << (16 * i);
    }
#endif
  }

  static void join16(uint8_t* to, uint32_t add, Octet high, Octet low) {
#ifdef __AVX2__
    __m128i y = _mm_unpacklo_epi8(register_of(low), register_of(high));
    y = _mm_or_si128(_mm_srli_epi32(y, 1), _mm_slli_epi32(y, 31));
    y = _mm_sub_epi32(y, _mm_set1_epi32(static_cast<int>(add)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), y);
#else
    for (int i = 0; i < 4; ++i) {
      uint32_t l = static_cast<uint32_t>(low >> (16 * i)), h = static_cast<uint32_t>(high >> (16 * i));
      uint32_t y = (l & 0xff) | (l & 0xff00) << 8 | (h & 0xff) << 8 | (h & 0xff00) << 16;
      store(to + 4 * i, rotate_right(y) - add);
    }
#endif
  }

  // Eight 4-byte values: add, rotate, and part the high byte from the next and from the low half.
  static void split32(const uint8_t* from, uint32_t add, Octet* high, Octet* middle, uint8_t* halves) {
#ifdef __AVX2__
    __m256i y = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    y = _mm256_add_epi32(y, _mm256_set1_epi32(static_cast<int>(add)));
    y = _mm256_or_si256(_mm256_slli_epi32(y, 1), _mm256_srli_epi32(y, 31));
    // In each 128-bit half: four low halves, four middle bytes, four high bytes.
    y = _mm256_shuffle_epi8(y, _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 6, 10, 14, 3, 7, 11, 15,  //
                                                0, 1, 4, 5, 8, 9, 12, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    __m256i parts = _mm256_permutevar8x32_epi32(y, _mm256_setr_epi32(0, 1, 4, 5, 2, 6, 3, 7));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(halves), _mm256_castsi256_si128(parts));
    __m128i bytes = _mm256_extracti128_si256(parts, 1);
    *middle = octet_of(bytes);
    *high = static_cast<Octet>(_mm_extract_epi64(bytes, 1));
#else
    *high = *middle = 0;
    for (int i = 0; i < 8; ++i) {
      uint32_t y = rotate_left(load<uint32_t>(from + 4 * i) + add);
      store(halves + 2 * i, static_cast<uint16_t>(y));
      *middle |= static_cast<Octet>(y >> 16 & 0xff) << (8 * i);
      *high |= static_cast<Octet>(y >> 24) << (8 * i);
    }
#endif
  }

  static void join32(uint8_t* to, uint32_t add, Octet high, Octet middle, const uint8_t* halves) {
#ifdef __AVX2__
    __m128i h = _mm_unpacklo_epi8(register_of(middle), register_of(high));
    __m256i y = _mm256_or_si256(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16),
                                _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves))));
    y = _mm256_or_si256(_mm256_srli_epi32(y, 1), _mm256_slli_epi32(y, 31));
    y = _mm256_sub_epi32(y, _mm256_set1_epi32(static_cast<int>(add)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), y);
#else
    for (int i = 0; i < 8; ++i) {
      uint32_t y = load<uint16_t>(halves + 2 * i) | static_cast<uint32_t>(middle >> (8 * i) & 0xff) << 16 |
                   static_cast<uint32_t>(high >> (8 * i) & 0xff) << 24;
      store(to + 4 * i, rotate_right(y) - add);
    }
#endif
  }

  // Eight 1-byte values: add to each 32-bit word and, where there is a sign, rotate it left by one bit; and back.
  template <bool Signed>
  static Octet split8(const uint8_t* from, uint32_t add) {
    Octet out = 0;
    for (int i = 0; i < 2; ++i) {
      uint32_t y = load<uint32_t>(from + 4 * i) + add;
      out |= static_cast<Octet>(Signed ? rotate_left(y) : y) << (32 * i);
    }
    return out;
  }

  template <bool Signed>
  static void join8(uint8_t* to, uint32_t add, Octet o) {
    for (int i = 0; i < 2; ++i) {
      uint32_t y = static_cast<uint32_t>(o >> (32 * i));
      store(to + 4 * i, (Signed ? rotate_right(y) : y) - add);
    }
  }

 private:
#ifdef __AVX2__
  static __m128i register_of(Octet o) { return _mm_cvtsi64_si128(static_cast<long long>(o)); }
  static Octet octet_of(__m128i low) { return static_cast<Octet>(_mm_cvtsi128_si64(low)); }
#endif
#if defined(__AVX2__) && !defined(__BMI2__)
  static Octet moved(Octet o, const uint8_t moves[8]) {
    return octet_of(_mm_shuffle_epi8(register_of(o), register_of(load<Octet>(moves))));
  }
#endif
  static uint32_t rotate_left(uint32_t y) { return y << 1 | y >> 31; }
  static uint32_t rotate_right(uint32_t y) { return y >> 1 | y << 31; }
};

}  // namespace uzip::UZIP_ISA
