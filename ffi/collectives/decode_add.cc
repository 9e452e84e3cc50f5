// uzip_decode_add: rows [raw, n], payload u8[encoded, bytes] -> x [n], the sum of the rows and then of the payloads'
// values, in their order.
#include "collectives/handler.h"
#include "collectives/targets.h"

namespace uzip {

namespace ffi = xla::ffi;

static ffi::Error decode_add_rows(ffi::ThreadPool pool, ffi::AnyBuffer rows, ffi::BufferR2<ffi::U8> payload,
                                  ffi::Result<ffi::AnyBuffer> x) {
  std::optional<Values> values = values_of(x->element_type());
  if (!values) return invalid("uzip_decode_add: x has a dtype that the codec does not know");
  if (x->dimensions().size() != 1) return invalid("uzip_decode_add: x must have shape [n]");
  if (rows.element_type() != x->element_type() || rows.dimensions().size() != 2 ||
      rows.dimensions()[1] != x->dimensions()[0]) {
    return invalid("uzip_decode_add: rows must have shape [raw, n] and the dtype of x");
  }
  const uint64_t count = static_cast<uint64_t>(x->dimensions()[0]) * values->per_element;
  const Addends addends{static_cast<const uint8_t*>(rows.untyped_data()), static_cast<uint64_t>(rows.dimensions()[0]),
                        payload.typed_data(), static_cast<uint64_t>(payload.dimensions()[0]),
                        static_cast<uint64_t>(payload.dimensions()[1])};
  std::string wrong = decode_add(values->dtype, addends, x->untyped_data(), count, on_pool(pool));
  if (!wrong.empty()) return malformed("uzip_decode_add: " + wrong);
  return ffi::Error::Success();
}

static ffi::Error decode_add_guarded(ffi::ThreadPool pool, ffi::AnyBuffer rows, ffi::BufferR2<ffi::U8> payload,
                                     ffi::Result<ffi::AnyBuffer> x) {
  return guarded([&] { return decode_add_rows(pool, rows, payload, x); });
}

XLA_FFI_DEFINE_HANDLER(
    kDecodeAddHandler, decode_add_guarded,
    ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::BufferR2<ffi::U8>>().Ret<ffi::AnyBuffer>());

XLA_FFI_Handler* const kDecodeAdd = kDecodeAddHandler;

}  // namespace uzip
