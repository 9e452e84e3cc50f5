// uzip_decode: payload u8[rows, bytes] -> x [rows, n]. Each row's payload may be followed by anything.
#include "collectives/handler.h"
#include "collectives/targets.h"

namespace uzip {

namespace ffi = xla::ffi;

static ffi::Error decode_rows(ffi::ThreadPool pool, ffi::BufferR2<ffi::U8> payload, ffi::Result<ffi::AnyBuffer> x) {
  std::optional<Values> values = values_of(x->element_type());
  if (!values) return invalid("uzip_decode: x has a dtype that the codec does not know");
  if (x->dimensions().size() != 2 || x->dimensions()[0] != payload.dimensions()[0]) {
    return invalid("uzip_decode: x must have shape [rows, n] with as many rows as payload");
  }
  const auto rows = static_cast<uint64_t>(x->dimensions()[0]);
  const uint64_t count = static_cast<uint64_t>(x->dimensions()[1]) * values->per_element;
  const auto stride = static_cast<uint64_t>(payload.dimensions()[1]);
  const uint64_t row_bytes = count * dtype_shape(values->dtype).value_bytes;
  const Parallel parallel = on_pool(pool);
  for (uint64_t row = 0; row < rows; ++row) {
    std::string wrong = decode(values->dtype, payload.typed_data() + row * stride, stride,
                               static_cast<uint8_t*>(x->untyped_data()) + row * row_bytes, count, parallel);
    if (!wrong.empty()) return malformed("uzip_decode: row " + std::to_string(row) + ": " + wrong);
  }
  return ffi::Error::Success();
}

static ffi::Error decode_guarded(ffi::ThreadPool pool, ffi::BufferR2<ffi::U8> payload, ffi::Result<ffi::AnyBuffer> x) {
  return guarded([&] { return decode_rows(pool, payload, x); });
}

XLA_FFI_DEFINE_HANDLER(kDecodeHandler, decode_guarded,
                       ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::BufferR2<ffi::U8>>().Ret<ffi::AnyBuffer>());

XLA_FFI_Handler* const kDecode = kDecodeHandler;

}  // namespace uzip
