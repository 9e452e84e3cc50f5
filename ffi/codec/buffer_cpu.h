// Whole messages on the CPU: values in, payload out, and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "block_walk.h"
#include "format.h"

namespace uzip {

// Runs task(0) ... task(n - 1), perhaps side by side, and returns when all are done.
using Parallel = std::function<void(uint64_t n, const std::function<void(uint64_t)>& task)>;
void run_serially(uint64_t n, const std::function<void(uint64_t)>& task);

// The dtype's name in NumPy and ml_dtypes.
const char* name_of(DType dtype);

// Bytes that encode() may write for this many values.
uint64_t capacity(DType dtype, uint64_t values, Layout layout);

// Encodes into `payload`, which has capacity() bytes, and returns the bytes used. values <= kMaxBytes / value_bytes.
// Bytes of a slotted payload that belong to no block's encoding, and all after the bytes used, are left as they are.
uint64_t encode(DType dtype, const void* values, uint64_t count, Layout layout, uint8_t* payload,
                const Parallel& parallel = run_serially);

// Decodes a payload that stands in the first bytes of `size` readable ones. Returns what is wrong with it, or nothing;
// in the first case the values are not to be used.
std::string decode(DType dtype, const uint8_t* payload, uint64_t size, void* values, uint64_t count,
                   const Parallel& parallel = run_serially);

// What decode_add() adds, in this order: rows of `count` raw values one after the other, then payloads `stride` bytes
// apart, as decode() takes them.
struct Addends {
  const uint8_t* raw;
  uint64_t raw_rows;
  const uint8_t* payloads;
  uint64_t payload_rows, stride;
};

// The sum of at least one row: 8- and 16-bit floats in float32 and rounded once, the others in their own precision;
// denormals are kept and every NaN is the dtype's one canonical quiet NaN. Returns what decode() does.
std::string decode_add(DType dtype, const Addends& addends, void* values, uint64_t count,
                       const Parallel& parallel = run_serially);

// The instruction set in use: "bmi2" (on top of AVX2), "avx2" or "portable".
const char* isa();
// Forces one, for tests: its block functions, by dtype code, or null if this machine does not have it.
const BlockWalk* select_isa(const char* name);

}  // namespace uzip
