// The Python module _uzip_cpu: the codec on host memory, and the FFI targets as capsules.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "codec/buffer_cpu.h"
#include "collectives/targets.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace {

using uzip::DType;
using uzip::Layout;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using NewBytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;

DType dtype_of(int code) {
  if (code <= 0 || code >= uzip::kDTypes) throw nb::value_error("dtype: not a dtype's code");
  return static_cast<DType>(code);
}

Layout layout_of(int layout) {
  if (layout != 0 && layout != 1) throw nb::value_error("layout: 0 is compact, 1 is slotted");
  return static_cast<Layout>(layout);
}

uint64_t checked_bytes(DType dtype, uint64_t values) {
  auto width = static_cast<uint64_t>(uzip::dtype_shape(dtype).value_bytes);
  if (values > uzip::kMaxBytes / width) {
    throw nb::value_error("more than 16 GiB in one message: encode it in parts");
  }
  return values * width;
}

struct Free {
  void operator()(uint8_t* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<uint8_t[], Free>;

// Large buffers in huge pages: half of the time that a fresh one takes to fill went into page faults.
Buffer allocate(size_t size) {
  constexpr size_t kHugePage = 2 << 20;
  void* data = nullptr;
#ifdef MADV_HUGEPAGE
  if (size >= 2 * kHugePage && posix_memalign(&data, kHugePage, size) == 0) madvise(data, size, MADV_HUGEPAGE);
#endif
  if (data == nullptr) data = std::malloc(size + 1);  // one more, so that nothing is not null
  if (data == nullptr) throw std::bad_alloc();
  return Buffer(static_cast<uint8_t*>(data));
}

NewBytes hand_over(Buffer buffer, size_t size) {
  uint8_t* data = buffer.release();
  nb::capsule owner(data, [](void* p) noexcept { std::free(p); });
  return NewBytes(data, {size}, owner);
}

uint64_t capacity(uint64_t values, int code, int layout) {
  DType dtype = dtype_of(code);
  checked_bytes(dtype, values);
  return uzip::capacity(dtype, values, layout_of(layout));
}

NewBytes encode(const Bytes& raw, int code, uint64_t values, int layout) {
  DType dtype = dtype_of(code);
  if (raw.size() != checked_bytes(dtype, values)) throw nb::value_error("raw: not the bytes of that many values");
  size_t room = uzip::capacity(dtype, values, layout_of(layout)), used;
  // The gaps of a slotted payload are nobody's: zero, lest they carry what was in memory before.
  Buffer payload = allocate(room);
  if (layout != 0) std::memset(payload.get(), 0, room);
  {
    nb::gil_scoped_release release;
    used = uzip::encode(dtype, raw.data(), values, layout_of(layout), payload.get());
  }
  // Shrinking a large allocation gives pages back and copies nothing.
  if (void* smaller = std::realloc(payload.get(), used)) {
    payload.release();
    payload.reset(static_cast<uint8_t*>(smaller));
  }
  return hand_over(std::move(payload), used);
}

NewBytes decode(const Bytes& payload, int code, uint64_t values) {
  DType dtype = dtype_of(code);
  size_t size = checked_bytes(dtype, values);
  Buffer out = allocate(size);
  std::string wrong;
  {
    nb::gil_scoped_release release;
    wrong = uzip::decode(dtype, payload.data(), payload.size(), out.get(), values);
  }
  if (!wrong.empty()) throw nb::value_error(wrong.c_str());
  return hand_over(std::move(out), size);
}

nb::dict dtype_codes() {
  nb::dict codes;
  for (int code = 1; code < uzip::kDTypes; ++code) codes[uzip::name_of(static_cast<DType>(code))] = code;
  return codes;
}

nb::dict targets() {
  nb::dict capsules;
  for (int i = 0; i < uzip::kTargetCount; ++i) {
    const uzip::Target& target = uzip::targets()[i];
    capsules[target.name] = nb::capsule(reinterpret_cast<void*>(target.handler));
  }
  return capsules;
}

}  // namespace

NB_MODULE(_uzip_cpu, m) {
  m.def("format_version", [] { return uzip::kFormatVersion; });
  m.def("dtype_codes", dtype_codes);
  m.def("capacity", capacity, "values"_a, "dtype"_a, "layout"_a);
  m.def("encode", encode, "raw"_a, "dtype"_a, "values"_a, "layout"_a);
  m.def("decode", decode, "payload"_a, "dtype"_a, "values"_a);
  m.def("isa", [] { return std::string(uzip::isa()); });
  m.def("select_isa", [](const std::string& name) { return uzip::select_isa(name.c_str()) != nullptr; }, "name"_a);
  m.def("targets", targets);
}
