// How a fuzz target checks its promise, and the buffers that let the sanitizers see when the codec breaks it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>

#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
#include <sanitizer/msan_interface.h>
#define UZIP_MSAN 1
#endif
#endif

#include "buffer_cpu.h"

// A promise that is not kept ends the process, which the fuzzer takes for a crash.
#define UZIP_CHECK(promise)                                                      \
  do {                                                                           \
    if (!(promise)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #promise); \
      std::abort();                                                              \
    }                                                                            \
  } while (false)

namespace uzip::fuzz {

// Bytes on the heap with nothing after the last one, so that AddressSanitizer sees every access beyond it. `shift`
// moves the first byte off the allocation's alignment.
class Buffer {
 public:
  explicit Buffer(uint64_t size, uint8_t fill = 0, int shift = 0)
      : size_(size), shift_(shift), bytes_(new uint8_t[size + static_cast<uint64_t>(shift)]) {
    if (size > 0) std::memset(data(), fill, size);
  }
  Buffer(const uint8_t* from, uint64_t size, int shift = 0) : Buffer(size, 0, shift) {
    if (size > 0) std::memcpy(data(), from, size);
  }

  uint8_t* data() { return bytes_.get() + shift_; }
  const uint8_t* data() const { return bytes_.get() + shift_; }
  uint64_t size() const { return size_; }
  bool operator==(const Buffer& other) const {
    return size_ == other.size_ && (size_ == 0 || std::memcmp(data(), other.data(), size_) == 0);
  }

 private:
  uint64_t size_;
  int shift_;
  std::unique_ptr<uint8_t[]> bytes_;
};

// For MemorySanitizer: from here on these bytes count as never written, and: all of these must have been.
inline void forget([[maybe_unused]] Buffer* buffer) {
#ifdef UZIP_MSAN
  __msan_poison(buffer->data(), buffer->size());
#endif
}
inline void require_written([[maybe_unused]] const uint8_t* bytes, [[maybe_unused]] uint64_t size) {
#ifdef UZIP_MSAN
  __msan_check_mem_is_initialized(bytes, size);
#endif
}
inline void remember([[maybe_unused]] Buffer* buffer) {
#ifdef UZIP_MSAN
  __msan_unpoison(buffer->data(), buffer->size());
#endif
}

// What must not matter to the codec. Each check is made in all ways.
struct Way {
  const char* isa;  // the portable one where the machine has no other
  Parallel order;
  uint8_t fill;  // of buffers before they are written
  int shift;     // off alignment
};

inline void run_backwards(uint64_t n, const std::function<void(uint64_t)>& task) {
  while (n > 0) task(--n);
}

inline const Way kWays[] = {
    {"portable", run_serially, 0x5a, 0},
#ifdef UZIP_MSAN
    {"portable", run_backwards, 0xa5, 1},  // MemorySanitizer does not follow shuffles byte by byte
#else
    {"avx2", run_backwards, 0xa5, 1},
    {"bmi2", run_serially, 0xc3, 2},
#endif
};

// The block functions, by dtype code.
inline const BlockWalk* follow(const Way& way) {
  const BlockWalk* walks = select_isa(way.isa);
  return walks != nullptr ? walks : select_isa("portable");
}

}  // namespace uzip::fuzz
