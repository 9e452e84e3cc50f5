// The block functions of every dtype, compiled once for each instruction set.
#pragma once

#include "format.h"

namespace uzip {

// See encode_block() and decode_block() in block.h. `workspace` is kWorkspaceBytes of scratch, aligned to 64.
struct BlockWalk {
  BlockHeader (*encode)(const uint8_t* values, int count, uint8_t* planes, uint8_t* tail, void* workspace);
  BlockError (*decode)(const BlockHeader& header, int count, const uint8_t* planes, const uint8_t* tail,
                       uint8_t* values, void* workspace);
};

constexpr size_t kWorkspaceBytes = 32 << 10;

namespace portable {
extern const BlockWalk kBlockWalks[kDTypes];  // by dtype code; 0 is empty
}
#ifdef UZIP_HAVE_AVX2
namespace avx2 {
extern const BlockWalk kBlockWalks[kDTypes];
}
namespace bmi2 {  // and AVX2
extern const BlockWalk kBlockWalks[kDTypes];
}
#endif

}  // namespace uzip
