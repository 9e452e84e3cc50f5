// Sums of decoded values: the one place where a value is more than its bits.
#pragma once

#include "format.h"

namespace uzip {

// Round to nearest even, denormals kept, for as long as it lives: XLA runs its threads with denormals flushed.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment();
  ~DefaultFloatEnvironment();
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  uint64_t saved_;
};

// One block of sums: 8- and 16-bit floats are added in float32 and rounded once, the others in their own precision.
class Accumulator {
 public:
  explicit Accumulator(DType dtype);
  // Adds `count` values to the sums; the first of several addends replaces them, so that -0 stays -0.
  void add(const uint8_t* values, int count, bool first);
  // Writes the sums, rounded to nearest even (float8_e8m0fnu: halfway up); a NaN becomes the dtype's canonical quiet
  // NaN.
  void round(uint8_t* values, int count) const;

 private:
  DType dtype_;
  float widened_[256];  // of the 8-bit dtypes, by bits
  union {
    float single_[kMaxBlockValues];
    double double_[kMaxBlockValues];
  };
};

}  // namespace uzip
