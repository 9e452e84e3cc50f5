// Compiled once for each instruction set: CMakeLists.txt names the namespace in UZIP_ISA.
#include "block_walk.h"

#include "block.h"

namespace uzip::UZIP_ISA {

static_assert(sizeof(Workspace) <= kWorkspaceBytes);

template <class D>
constexpr BlockWalk walk() {
  return {[](const uint8_t* values, int count, uint8_t* planes, uint8_t* tail, void* workspace) {
            return encode_block<D>(values, count, planes, tail, *static_cast<Workspace*>(workspace));
          },
          [](const BlockHeader& header, int count, const uint8_t* planes, const uint8_t* tail, uint8_t* values,
             void* workspace) {
            return decode_block<D>(header, count, planes, tail, values, *static_cast<Workspace*>(workspace));
          }};
}

extern const BlockWalk kBlockWalks[kDTypes];
const BlockWalk kBlockWalks[kDTypes] = {
    {nullptr, nullptr},
    walk<TwoByte<0>>(),  // bfloat16
    walk<TwoByte<3>>(),  // float16
    walk<FourByte>(),    // float32
    walk<EightByte>(),   // float64
    walk<OneByte<4>>(),  // float8_e4m3fn
    walk<OneByte<4>>(),  // float8_e4m3fnuz
    walk<OneByte<4>>(),  // float8_e4m3b11fnuz
    walk<OneByte<4>>(),  // float8_e4m3
    walk<OneByte<3>>(),  // float8_e5m2
    walk<OneByte<3>>(),  // float8_e5m2fnuz
    walk<OneByte<5>>(),  // float8_e3m4
    walk<OneByte<0>>(),  // float8_e8m0fnu
};

}  // namespace uzip::UZIP_ISA
