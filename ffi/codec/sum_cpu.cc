#include "sum_cpu.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace uzip {
namespace {

// A float of 16 bits or less. How it says infinity and NaN is what tells the kinds apart.
struct SmallFloat {
  int exponent_bits, mantissa_bits, bias;
  enum { kIeee, kFiniteNan, kUnsignedZero } special;
  // kIeee: the largest exponent is infinity and NaN. kFiniteNan ("fn"): only all ones is NaN, there is no infinity.
  // kUnsignedZero ("fnuz"): the bits of -0 are NaN, there is no infinity.

  int bits() const { return 1 + exponent_bits + mantissa_bits; }
  uint32_t sign() const { return 1u << (bits() - 1); }
  uint32_t nan() const {
    if (special == kUnsignedZero) return sign();
    if (special == kFiniteNan) return sign() - 1;
    return (((1u << exponent_bits) - 1) << mantissa_bits) | 1u << (mantissa_bits - 1);
  }
  uint32_t largest() const {  // finite
    if (special == kUnsignedZero) return sign() - 1;
    if (special == kFiniteNan) return sign() - 2;
    return (((1u << exponent_bits) - 1) << mantissa_bits) - 1;
  }
};

constexpr SmallFloat kBFloat16 = {8, 7, 127, SmallFloat::kIeee};

SmallFloat small_float(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return {5, 10, 15, SmallFloat::kIeee};
    case DType::kFloat8E4M3FN:
      return {4, 3, 7, SmallFloat::kFiniteNan};
    case DType::kFloat8E4M3FNUZ:
      return {4, 3, 8, SmallFloat::kUnsignedZero};
    case DType::kFloat8E4M3B11FNUZ:
      return {4, 3, 11, SmallFloat::kUnsignedZero};
    case DType::kFloat8E4M3:
      return {4, 3, 7, SmallFloat::kIeee};
    case DType::kFloat8E5M2:
      return {5, 2, 15, SmallFloat::kIeee};
    case DType::kFloat8E5M2FNUZ:
      return {5, 2, 16, SmallFloat::kUnsignedZero};
    case DType::kFloat8E3M4:
      return {3, 4, 3, SmallFloat::kIeee};
    default:
      return kBFloat16;
  }
}

uint32_t bits_of(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  return u;
}

float float_of(uint32_t u) {
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

// 2^e, -149 <= e <= 127.
float power_of_two(int e) { return float_of(e >= -126 ? static_cast<uint32_t>(e + 127) << 23 : 1u << (e + 149)); }

constexpr uint32_t kFloatNan = 0x7fc00000;

float widen(SmallFloat s, uint32_t v) {
  uint32_t sign = v & s.sign(), magnitude = v & (s.sign() - 1);
  if (s.special == SmallFloat::kUnsignedZero ? v == s.nan() : magnitude >= (s.largest() + 1)) {
    bool infinite = s.special == SmallFloat::kIeee && magnitude == s.largest() + 1;
    return float_of((infinite ? 0x7f800000 : kFloatNan) | (sign ? 0x80000000 : 0));
  }
  int exponent = static_cast<int>(magnitude >> s.mantissa_bits);
  auto mantissa = static_cast<float>(magnitude & ((1u << s.mantissa_bits) - 1));
  // Every 16-bit value is a normal float32 but bfloat16's denormals, whose scale is float32's own.
  if (exponent > 0) {
    mantissa += static_cast<float>(1u << s.mantissa_bits);
  } else {
    exponent = 1;
  }
  float scaled = mantissa * power_of_two(exponent - s.bias - s.mantissa_bits);
  return sign ? -scaled : scaled;
}

// narrow() for bfloat16, which is the upper half of a float32: without branches, so that it is vectorized.
uint16_t narrow_bfloat16(float f) {
  uint32_t u = bits_of(f), rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
  return static_cast<uint16_t>((u & 0x7fffffff) > 0x7f800000 ? kBFloat16.nan() : rounded);
}

uint32_t narrow(SmallFloat s, float f) {
  uint32_t u = bits_of(f), magnitude = u & 0x7fffffff;
  if (magnitude > 0x7f800000) return s.nan();
  uint32_t sign = u >> 31 ? s.sign() : 0;
  uint32_t result;
  if (magnitude == 0x7f800000) {
    result = s.largest() + 1;
  } else {
    // The mantissa with its leading one, shifted down to the precision that is left at this exponent.
    int exponent = static_cast<int>(magnitude >> 23);
    uint32_t mantissa = magnitude & 0x7fffff;
    if (exponent > 0) {
      mantissa |= 0x800000;
    } else {
      exponent = 1;
    }
    int field = exponent - 127 + s.bias;  // of the result
    int shift = 23 - s.mantissa_bits + (field < 1 ? 1 - field : 0);
    if (shift > 25) {
      result = 0;
    } else {
      uint32_t half = (1u << shift) >> 1;
      uint32_t rounded = (mantissa + (half == 0 ? 0 : half - 1 + (mantissa >> shift & 1))) >> shift;
      // A mantissa that rounds up to the next power of two carries into the exponent by itself.
      result = field < 1 ? rounded : rounded + (static_cast<uint32_t>(field - 1) << s.mantissa_bits);
    }
  }
  if (result > s.largest()) {
    return s.special == SmallFloat::kIeee ? sign | (s.largest() + 1) : s.nan();
  }
  if (s.special == SmallFloat::kUnsignedZero && result == 0) return 0;
  return sign | result;
}

// float8_e8m0fnu: powers of two from 2^-127 to 2^127, 0xff is NaN; neither zero nor sign.
float widen_e8m0(uint32_t v) { return v == 0xff ? float_of(kFloatNan) : power_of_two(static_cast<int>(v) - 127); }

uint32_t narrow_e8m0(float f) {
  uint32_t u = bits_of(f);
  if (u == 0 || u >= 0x7f800000) return 0xff;
  uint32_t exponent = u >> 23, mantissa = u & 0x7fffff;
  // To the nearer power; halfway, at 1.5 times one, to the larger: the rule of ml_dtypes for this dtype.
  if (exponent == 0) return mantissa >= 0x600000 ? 1 : 0;
  return exponent + (mantissa >= 0x400000 ? 1 : 0);
}

}  // namespace

DefaultFloatEnvironment::DefaultFloatEnvironment() : saved_(0) {
#if defined(__x86_64__)
  saved_ = _mm_getcsr();
  _mm_setcsr(0x1f80);
#elif defined(__aarch64__)
  asm volatile("mrs %0, fpcr" : "=r"(saved_));
  asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
#endif
}

DefaultFloatEnvironment::~DefaultFloatEnvironment() {
#if defined(__x86_64__)
  _mm_setcsr(static_cast<uint32_t>(saved_));
#elif defined(__aarch64__)
  asm volatile("msr fpcr, %0" : : "r"(saved_));
#endif
}

Accumulator::Accumulator(DType dtype) : dtype_(dtype) {
  if (dtype_shape(dtype).value_bytes != 1) return;
  for (uint32_t v = 0; v < 256; ++v) {
    widened_[v] = dtype == DType::kFloat8E8M0FNU ? widen_e8m0(v) : widen(small_float(dtype), v);
  }
}

void Accumulator::add(const uint8_t* values, int count, bool first) {
  auto add_all = [&](auto* sums, auto value) {
    for (int i = 0; i < count; ++i) sums[i] = first ? value(i) : sums[i] + value(i);
  };
  auto at = [&](auto sample, int i) {
    std::memcpy(&sample, values + sizeof(sample) * static_cast<size_t>(i), sizeof(sample));
    return sample;
  };
  switch (dtype_) {
    case DType::kFloat64:
      return add_all(double_, [&](int i) { return at(double{}, i); });
    case DType::kFloat32:
      return add_all(single_, [&](int i) { return at(float{}, i); });
    case DType::kBFloat16:
      return add_all(single_, [&](int i) { return float_of(static_cast<uint32_t>(at(uint16_t{}, i)) << 16); });
    case DType::kFloat16: {
      SmallFloat s = small_float(dtype_);
      return add_all(single_, [&](int i) { return widen(s, at(uint16_t{}, i)); });
    }
    default:
      return add_all(single_, [&](int i) { return widened_[values[i]]; });
  }
}

void Accumulator::round(uint8_t* values, int count) const {
  auto put = [&](int i, auto value) {
    std::memcpy(values + sizeof(value) * static_cast<size_t>(i), &value, sizeof(value));
  };
  if (dtype_ == DType::kBFloat16) {
    for (int i = 0; i < count; ++i) put(i, narrow_bfloat16(single_[i]));
    return;
  }
  const SmallFloat s = small_float(dtype_);
  for (int i = 0; i < count; ++i) {
    switch (dtype_) {
      case DType::kFloat64:
        put(i, double_[i]);
        if (double_[i] != double_[i]) put(i, uint64_t{0x7ff8000000000000});
        break;
      case DType::kFloat32:
        put(i, single_[i] != single_[i] ? kFloatNan : bits_of(single_[i]));
        break;
      case DType::kFloat16:
        put(i, static_cast<uint16_t>(narrow(s, single_[i])));
        break;
      case DType::kFloat8E8M0FNU:
        put(i, static_cast<uint8_t>(narrow_e8m0(single_[i])));
        break;
      default:
        put(i, static_cast<uint8_t>(narrow(s, single_[i])));
    }
  }
}

}  // namespace uzip
