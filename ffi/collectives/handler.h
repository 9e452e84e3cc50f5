// What the handlers share: XLA's dtypes in the codec's terms, and XLA's thread pool as the codec's Parallel.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include "codec/buffer_cpu.h"
#include "xla/ffi/api/ffi.h"

namespace uzip {

// A buffer's elements as values of the wire: complex numbers are pairs.
struct Values {
  DType dtype;
  uint64_t per_element;
};
std::optional<Values> values_of(xla::ffi::DataType dtype);

// An error of the program, and one of the bytes that it was given.
xla::ffi::Error invalid(const std::string& what);
xla::ffi::Error malformed(const std::string& what);

// body(), with what it throws (there may be no memory) as an error: nothing may be thrown into XLA.
template <class Body>
xla::ffi::Error guarded(Body body) {
  try {
    return body();
  } catch (const std::exception& e) {
    return xla::ffi::Error(xla::ffi::ErrorCode::kResourceExhausted, std::string("jax_uzip: ") + e.what());
  }
}

// `pool` is used by reference: it must outlive what is returned.
Parallel on_pool(xla::ffi::ThreadPool& pool);

}  // namespace uzip
