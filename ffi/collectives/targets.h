// The FFI targets of platform cpu. Their names are a serialised ABI (compilation caches, jax.export): a target whose
// operands, results, attributes or wire format change gets a new version number.
#pragma once

#include "xla/ffi/api/c_api.h"

namespace uzip {

struct Target {
  const char* name;
  XLA_FFI_Handler* handler;
};

extern XLA_FFI_Handler* const kEncode;
extern XLA_FFI_Handler* const kDecode;
extern XLA_FFI_Handler* const kDecodeAdd;

inline constexpr int kTargetCount = 3;
inline const Target* targets() {
  static const Target kTargets[kTargetCount] = {
      {"uzip_encode.v1", kEncode},
      {"uzip_decode.v1", kDecode},
      {"uzip_decode_add.v1", kDecodeAdd},
  };
  return kTargets;
}

}  // namespace uzip
