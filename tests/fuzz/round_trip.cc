// Promise: whatever the values, their encoding fits capacity(), depends on nothing but them, and decodes to the same
// bits; decode_add() gives the sum that adding them one by one gives.
//
// Input: dtype, options, three bytes of size, then a program that makes the values (values.h).

#include <cmath>

#include "payload.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace uzip::fuzz {
namespace {

struct Case {
  DType dtype;
  Layout layout;
  int ranks;
  uint64_t count;
  int block_log2;
  Input program;
};

// A message of more than 2^19 values takes as long as a thousand small ones, so one in 256 inputs that ask gets one.
bool may_be_large(const uint8_t* data, size_t size) {
  uint32_t hash = 0x811c9dc5;
  for (size_t i = 0; i < size; ++i) hash = (hash ^ data[i]) * 0x01000193;
  return (hash >> 16) % 256 == 0;
}

Case read_case(const uint8_t* data, size_t size) {
  Input in(data, size);
  Case c{dtype_of(in.byte()), Layout::kCompact, 1, 0, 0, in};
  const uint8_t options = in.byte(), magnitude = in.byte();
  const uint64_t low = in.word();
  c.layout = options & 1 ? Layout::kSlotted : Layout::kCompact;
  c.ranks = std::max(1, options >> 1 & 3);
  c.count = low >> (3 + magnitude % 8);
  if (magnitude >= 0xf0 && may_be_large(data, size)) {
    // On both sides of where the block size changes; 2^21 values only of the narrow dtypes.
    const bool narrow = dtype_shape(c.dtype).value_bytes <= 2;
    c.count = (narrow && magnitude & 1 ? 1u << 21 : 1u << 19) + low % 2048 - 1024;
  }
  const int forced = options >> 3 & 3;
  c.block_log2 = forced == 0 ? block_log2_for(c.count) : kMinBlockLog2 - 1 + forced;
  c.program = in;
  return c;
}

Buffer encode_in(const Case& c, const Buffer& values, const Way& way) {
  Buffer payload(capacity(c.dtype, c.count, c.layout), way.fill, way.shift);
  if (c.layout == Layout::kCompact) forget(&payload);
  follow(way);
  const uint64_t used = encode(c.dtype, values.data(), c.count, c.layout, payload.data(), way.order);
  UZIP_CHECK(used <= payload.size());
  UZIP_CHECK(c.layout == Layout::kCompact || used == payload.size());
  require_written(payload.data(), used);
  return Buffer(payload.data(), used);
}

void check_decode(const Case& c, const Bytes& bytes, const Buffer& values, const Way& way) {
  Buffer payload(bytes.data(), bytes.size(), way.shift), decoded(values.size(), way.fill, way.shift);
  follow(way);
  const std::string error = decode(c.dtype, payload.data(), payload.size(), decoded.data(), c.count, way.order);
  UZIP_CHECK(error.empty());
  UZIP_CHECK(decoded == values);
}

// --- Sums ---

template <class T>
T value_at(const Buffer& values, uint64_t i) {
  T value;
  std::memcpy(&value, values.data() + i * sizeof(T), sizeof(T));
  return value;
}

template <class T, class Bits>
void model_sum(const std::vector<Buffer>& addends, Bits nan, Buffer* sums) {
  for (uint64_t i = 0; i < sums->size() / sizeof(T); ++i) {
    T sum = value_at<T>(addends[0], i);
    for (size_t r = 1; r < addends.size(); ++r) sum += value_at<T>(addends[r], i);
    if (std::isnan(sum)) std::memcpy(&sum, &nan, sizeof(sum));
    std::memcpy(sums->data() + i * sizeof(T), &sum, sizeof(T));
  }
}

void model_sum_bfloat16(const std::vector<Buffer>& addends, Buffer* sums) {
  for (uint64_t i = 0; i < sums->size() / 2; ++i) {
    float sum = 0;
    for (size_t r = 0; r < addends.size(); ++r) {
      uint32_t bits = static_cast<uint32_t>(value_at<uint16_t>(addends[r], i)) << 16;
      float addend;
      std::memcpy(&addend, &bits, 4);
      sum = r == 0 ? addend : sum + addend;
    }
    uint32_t bits;
    std::memcpy(&bits, &sum, 4);
    uint16_t rounded = std::isnan(sum) ? 0x7fc0 : static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    std::memcpy(sums->data() + 2 * i, &rounded, 2);
  }
}

// Whether there is a model; the sums of the other dtypes are only checked to be the same in both ways.
bool model_sums(DType dtype, const std::vector<Buffer>& addends, Buffer* sums) {
  if (dtype == DType::kFloat64) return model_sum<double>(addends, uint64_t{0x7ff8000000000000}, sums), true;
  if (dtype == DType::kFloat32) return model_sum<float>(addends, uint32_t{0x7fc00000}, sums), true;
  if (dtype == DType::kBFloat16) return model_sum_bfloat16(addends, sums), true;
  return false;
}

// Calls with denormals flushed, as XLA's threads are.
template <class F>
void with_denormals_flushed(F f) {
#if defined(__x86_64__)
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);
  f();
  UZIP_CHECK((_mm_getcsr() & 0xffc0) == ((before | 0x8040) & 0xffc0));
  _mm_setcsr(before);
#else
  f();
#endif
}

// The sum of all addends, the first `raw` of them as they are.
Buffer decode_add_in(const Case& c, const std::vector<Buffer>& values, const std::vector<Bytes>& payloads, size_t raw,
                     const Way& way) {
  uint64_t stride = 0;
  for (const Bytes& p : payloads) stride = std::max<uint64_t>(stride, p.size());
  const uint64_t row = c.count * dtype_shape(c.dtype).value_bytes, encoded = payloads.size() - raw;
  Buffer rows(row * raw, way.fill, way.shift), all(stride * encoded, way.fill, way.shift);
  for (size_t r = 0; r < raw && row > 0; ++r) std::memcpy(rows.data() + r * row, values[r].data(), row);
  for (size_t r = raw; r < payloads.size(); ++r) {
    std::memcpy(all.data() + (r - raw) * stride, payloads[r].data(), payloads[r].size());
  }
  Buffer sums(row, way.fill, way.shift);
  std::string error;
  follow(way);
  with_denormals_flushed([&] {
    error = decode_add(c.dtype, {rows.data(), raw, all.data(), encoded, stride}, sums.data(), c.count, way.order);
  });
  UZIP_CHECK(error.empty());
  return sums;
}

void check_sum(const Case& c, const std::vector<Buffer>& addends, const std::vector<Bytes>& payloads) {
  Buffer sums = decode_add_in(c, addends, payloads, 0, kWays[0]);
  for (const Way& way : kWays) {
    for (size_t raw = 0; raw <= payloads.size(); ++raw) {
      UZIP_CHECK(sums == decode_add_in(c, addends, payloads, raw, way));
    }
  }
  Buffer expected(sums.size());
  if (model_sums(c.dtype, addends, &expected)) UZIP_CHECK(sums == expected);
}

void check(const Case& c) {
  const Geometry g = geometry(c.dtype, c.count, c.block_log2, c.layout);
  std::vector<Buffer> addends;
  std::vector<Bytes> payloads;
  for (int r = 0; r < c.ranks; ++r) {
    addends.push_back(make_values(c.dtype, c.count, c.program, static_cast<uint64_t>(r)));
    const Buffer& values = addends.back();
    for (const Way& way : kWays) {
      const Bytes bytes = assemble_values(c.dtype, g, values, way);
      if (c.block_log2 == block_log2_for(c.count)) {
        UZIP_CHECK(encode_in(c, values, way) == Buffer(bytes.data(), bytes.size()));
      }
      check_decode(c, bytes, values, way);
      if (&way == &kWays[0]) payloads.push_back(bytes);
      UZIP_CHECK(c.layout == Layout::kSlotted || bytes == payloads.back());
    }
  }
  check_sum(c, addends, payloads);
}

}  // namespace
}  // namespace uzip::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uzip::fuzz::check(uzip::fuzz::read_case(data, size));
  return 0;
}
