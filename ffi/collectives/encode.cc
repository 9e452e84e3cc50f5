// uzip_encode: x [rows, n] -> payload u8[rows, capacity], bytes used u32[rows]. Rows are encoded one by one.
// Attribute fill: whether to write zeros after the bytes used, so that the whole result is a function of x.
#include <cstring>

#include "collectives/handler.h"
#include "collectives/targets.h"

namespace uzip {

namespace ffi = xla::ffi;

static ffi::Error encode_rows(ffi::ThreadPool pool, bool fill, ffi::AnyBuffer x, ffi::ResultBufferR2<ffi::U8> payload,
                              ffi::ResultBufferR1<ffi::U32> used) {
  std::optional<Values> values = values_of(x.element_type());
  if (!values) return invalid("uzip_encode: x has a dtype that the codec does not know");
  if (x.dimensions().size() != 2) return invalid("uzip_encode: x must have shape [rows, n]");
  const auto rows = static_cast<uint64_t>(x.dimensions()[0]);
  const uint64_t count = static_cast<uint64_t>(x.dimensions()[1]) * values->per_element;
  const auto stride = static_cast<uint64_t>(payload->dimensions()[1]);
  if (static_cast<uint64_t>(payload->dimensions()[0]) != rows || static_cast<uint64_t>(used->dimensions()[0]) != rows) {
    return invalid("uzip_encode: x, payload and bytes used must have the same number of rows");
  }
  if (stride != capacity(values->dtype, count, Layout::kCompact) || stride > UINT32_MAX) {
    return invalid("uzip_encode: a row of payload must have the capacity for a row of x, and less than 4 GiB");
  }
  const Parallel parallel = on_pool(pool);
  const uint64_t row_bytes = count * dtype_shape(values->dtype).value_bytes;
  for (uint64_t row = 0; row < rows; ++row) {
    uint8_t* to = payload->typed_data() + row * stride;
    uint64_t bytes = encode(values->dtype, static_cast<const uint8_t*>(x.untyped_data()) + row * row_bytes, count,
                            Layout::kCompact, to, parallel);
    if (fill) std::memset(to + bytes, 0, stride - bytes);
    used->typed_data()[row] = static_cast<uint32_t>(bytes);
  }
  return ffi::Error::Success();
}

static ffi::Error encode_guarded(ffi::ThreadPool pool, bool fill, ffi::AnyBuffer x,
                                 ffi::ResultBufferR2<ffi::U8> payload, ffi::ResultBufferR1<ffi::U32> used) {
  return guarded([&] { return encode_rows(pool, fill, x, payload, used); });
}

XLA_FFI_DEFINE_HANDLER(kEncodeHandler, encode_guarded,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Attr<bool>("fill")
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::BufferR2<ffi::U8>>()
                           .Ret<ffi::BufferR1<ffi::U32>>());

XLA_FFI_Handler* const kEncode = kEncodeHandler;

}  // namespace uzip
