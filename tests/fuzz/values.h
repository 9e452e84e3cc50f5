// Values made from the bytes of a fuzz input. Bytes taken as values are nearly always coded raw; here they are a
// little program whose steps make runs, exponents of low entropy, rare symbols and special values, so that every mode
// of a block is a small change of the input away.
#pragma once

#include <algorithm>

#include "check.h"

namespace uzip::fuzz {

// The input from its first byte to its last; then zeros.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}

  uint8_t byte() { return at_ == end_ ? 0 : *at_++; }
  uint16_t word() {
    uint8_t low = byte();
    return static_cast<uint16_t>(low | byte() << 8);
  }
  const uint8_t* data() const { return at_; }
  uint64_t left() const { return static_cast<uint64_t>(end_ - at_); }

 private:
  const uint8_t *at_, *end_;
};

inline DType dtype_of(uint8_t byte) { return static_cast<DType>(1 + byte % (kDTypes - 1)); }

struct FloatBits {
  int sign, exponent, mantissa;
  int all() const { return sign + exponent + mantissa; }
};

inline FloatBits float_bits(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return {1, 8, 7};
    case DType::kFloat16:
      return {1, 5, 10};
    case DType::kFloat32:
      return {1, 8, 23};
    case DType::kFloat64:
      return {1, 11, 52};
    case DType::kFloat8E5M2:
    case DType::kFloat8E5M2FNUZ:
      return {1, 5, 2};
    case DType::kFloat8E3M4:
      return {1, 3, 4};
    case DType::kFloat8E8M0FNU:
      return {0, 8, 0};
    default:
      return {1, 4, 3};
  }
}

// Draws the values of one program, step after step and from the first step again, without end.
class ValueMaker {
 public:
  // Another seed begins at another step and draws other numbers.
  ValueMaker(DType dtype, Input program, uint64_t seed)
      : bits_(float_bits(dtype)), whole_(program), program_(program), random_(seed) {
    for (uint64_t i = 0; i < seed; ++i) program_.byte();
  }

  uint64_t next() {
    if (steps_ == 0) begin();
    --steps_;
    return draw();
  }

 private:
  enum Op { kLiteral, kConstant, kZero, kOctaves, kAlphabet, kNoise, kCounter, kSpecial, kOps };

  uint8_t byte() {
    if (program_.left() == 0) program_ = whole_;
    return program_.byte();
  }

  uint64_t literal() {
    uint64_t value = 0;
    for (int i = 0; i < (bits_.all() + 7) / 8; ++i) value |= static_cast<uint64_t>(byte()) << (8 * i);
    return value;
  }

  // A step: what it does, for how many values (1 to 4096), and two parameters.
  void begin() {
    op_ = static_cast<Op>(byte() % kOps);
    uint8_t length = byte();
    steps_ = (1 + (length & 63)) << (2 * (length >> 6));
    a_ = b_ = 0;
    if (op_ == kLiteral) steps_ = std::min(steps_, 16);
    if (op_ == kConstant || op_ == kCounter) value_ = literal();
    if (op_ >= kOctaves && op_ != kNoise) a_ = byte(), b_ = byte();
  }

  uint64_t draw() {
    switch (op_) {
      case kLiteral:
        return literal();
      case kConstant:
        return value_;
      case kZero:
        return 0;
      case kOctaves:  // exponents at and below one, falling off; zeros among them
        if (b_ >= 128 && random() % 16 == 0) return 0;
        return with_exponent(8 * a_ + 7 - random() % (1 + random() % (1 + b_ % 128)));
      case kAlphabet: {  // exponents from anywhere, few or many, evenly or not
        uint64_t symbols = 1 + b_ % 32, pick = random() % symbols;
        if (b_ >= 128) pick = std::min(pick, random() % symbols);
        return with_exponent((pick + 1) * (2 * a_ + 1) * 0x9e3779b1u >> 8);
      }
      case kCounter:
        value_ += 1ull << (a_ % 64);
        return value_;
      case kSpecial:
        return special(random() % (1 + b_));
      default:
        return random();
    }
  }

  uint64_t with_exponent(uint64_t exponent) {
    uint64_t rest = random() & ~(((1ull << bits_.exponent) - 1) << bits_.mantissa);
    return rest | (exponent & ((1ull << bits_.exponent) - 1)) << bits_.mantissa;
  }

  // Zero, the smallest and largest denormal and finite, infinity and NaNs, of both signs.
  uint64_t special(uint64_t which) const {
    uint64_t mantissa = (1ull << bits_.mantissa) - 1, infinity = ((1ull << bits_.exponent) - 1) << bits_.mantissa;
    const uint64_t magnitudes[] = {
        0, 1, mantissa, mantissa + 1, infinity - 1, infinity, infinity + 1, infinity | mantissa};
    return magnitudes[(which + a_) % 8] | (which & 8) >> 3 << (bits_.all() - 1);
  }

  // splitmix64.
  uint64_t random() {
    uint64_t z = random_ += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }

  FloatBits bits_;
  Input whole_, program_;
  uint64_t random_;
  Op op_ = kZero;
  int steps_ = 0;
  uint8_t a_ = 0, b_ = 0;
  uint64_t value_ = 0;
};

inline Buffer make_values(DType dtype, uint64_t count, Input program, uint64_t seed = 0) {
  const int width = dtype_shape(dtype).value_bytes;
  Buffer values(count * static_cast<uint64_t>(width));
  ValueMaker maker(dtype, program, seed);
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t value = maker.next();
    std::memcpy(values.data() + i * static_cast<uint64_t>(width), &value, static_cast<size_t>(width));
  }
  return values;
}

}  // namespace uzip::fuzz
