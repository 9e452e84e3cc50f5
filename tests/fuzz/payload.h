// Payloads put together block by block, plainly and at any block size: encode() chooses 1024 and 2048 values a block
// only for messages that are too long to fuzz with.
#pragma once

#include <string>
#include <vector>

#include "block_walk.h"
#include "values.h"

namespace uzip::fuzz {

using Bytes = std::basic_string<uint8_t>;

template <class T>
void put(Bytes* bytes, uint64_t at, T value) {
  std::memcpy(&(*bytes)[at], &value, sizeof(T));
}

struct Block {
  BlockHeader header;
  Buffer planes, tail;  // with all the room that a block of its values can have
};

inline Block empty_block(const Geometry& g, uint64_t block, uint8_t fill) {
  const int groups = groups_of(g.values_in(block));
  return {{Mode::kConstant, 0, {0, 0}},
          Buffer(static_cast<uint64_t>(static_bytes(g.shape, groups)), fill),
          Buffer(4 * static_cast<uint64_t>(max_tail_words(g.shape, groups)), fill)};
}

inline void put_block_header(Bytes* payload, const Geometry& g, uint64_t block, const BlockHeader& h) {
  const uint64_t at = g.headers + block * static_cast<uint64_t>(g.header_bytes);
  put(payload, at, static_cast<uint16_t>(h.tail_words | static_cast<int>(h.mode) << kInfoModeShift));
  for (int i = 0; i < g.alignments(); ++i) put(payload, at + 2 + 2 * static_cast<uint64_t>(i), h.alignment[i]);
}

// docs/wire-format.md, section 2. make(b) is asked for each block in order.
template <class Make>
Bytes assemble(DType dtype, const Geometry& g, Make make) {
  Bytes front(g.planes, 0), planes, tails;
  uint32_t stored = 0;
  for (uint64_t b = 0; b < g.blocks; ++b) {
    const bool compact = g.layout == Layout::kCompact;
    if (compact && b % kChunkBlocks == 0) {
      put(&front, g.directory + b / kChunkBlocks * 8, DirectoryEntry{static_cast<uint32_t>(tails.size() / 4), stored});
    }
    const Block block = make(b);
    put_block_header(&front, g, b, block.header);
    if (!compact || block.header.mode != Mode::kConstant) {
      planes.append(block.planes.data(), block.planes.size());
      ++stored;
    }
    tails.append(block.tail.data(), compact ? 4u * block.header.tail_words : block.tail.size());
  }
  put(&front, 0,
      ContainerHeader{kMagic, kFormatVersion, static_cast<uint8_t>(dtype), static_cast<uint8_t>(g.block_log2),
                      static_cast<uint8_t>(g.layout), g.values, front.size() + planes.size() + tails.size(), stored,
                      0});
  return front + planes + tails;
}

// The payload that encode() would write, were `g` its choice.
inline Bytes assemble_values(DType dtype, const Geometry& g, const Buffer& values, const Way& way) {
  const BlockWalk& walk = follow(way)[static_cast<int>(dtype)];
  auto workspace = std::make_unique<std::aligned_storage_t<kWorkspaceBytes, 64>>();
  std::memset(workspace.get(), way.fill, kWorkspaceBytes);
  return assemble(dtype, g, [&](uint64_t b) {
    Block block = empty_block(g, b, way.fill);
    const uint64_t at = (b << g.block_log2) * g.shape.value_bytes;
    forget(&block.planes);
    forget(&block.tail);
    block.header =
        walk.encode(values.data() + at, g.values_in(b), block.planes.data(), block.tail.data(), workspace.get());
    UZIP_CHECK(4u * block.header.tail_words <= block.tail.size());
    if (block.header.mode != Mode::kConstant) require_written(block.planes.data(), block.planes.size());
    require_written(block.tail.data(), 4u * block.header.tail_words);
    remember(&block.planes);
    remember(&block.tail);
    return block;
  });
}

}  // namespace uzip::fuzz
