// What the handlers share: XLA's dtypes in the codec's terms, and XLA's thread pool as the codec's Parallel.
#pragma once

#include <cstdint>
#include <optional>

#include "codec/buffer_cpu.h"
#include "xla/ffi/api/ffi.h"

namespace uzip {

// A buffer's elements as values of the wire: complex numbers are pairs.
struct Values {
  DType dtype;
  uint64_t per_element;
};
std::optional<Values> values_of(xla::ffi::DataType dtype);

xla::ffi::Error invalid(const std::string& what);

// `pool` is used by reference: it must outlive what is returned.
Parallel on_pool(xla::ffi::ThreadPool& pool);

}  // namespace uzip
