// The wire format, version 1: every size, offset and constant of it. docs/wire-format.md says the same in words; the
// two change together, with a new golden file.
//
// Units: a value is one float; a group is eight values that follow each other; a block is 512, 1024 or 2048 values and
// is coded alone. A lane is one of 32: group g belongs to lane g % 32 and is piece g / 32 of it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace uzip {

constexpr uint32_t kMagic = 0x50495A55;  // "UZIP"
constexpr uint8_t kFormatVersion = 1;

enum class DType : uint8_t {
  kBFloat16 = 1,
  kFloat16 = 2,
  kFloat32 = 3,
  kFloat64 = 4,
  kFloat8E4M3FN = 5,
  kFloat8E4M3FNUZ = 6,
  kFloat8E4M3B11FNUZ = 7,
  kFloat8E4M3 = 8,
  kFloat8E5M2 = 9,
  kFloat8E5M2FNUZ = 10,
  kFloat8E3M4 = 11,
  kFloat8E8M0FNU = 12,
};
constexpr int kDTypes = 13;  // one more than the last code

enum class Layout : uint8_t {
  kCompact = 0,  // constant blocks take no static planes, tails follow each other
  kSlotted = 1,  // every block's planes and tail at a place of its own that no other block's size moves
};

enum class Mode : uint8_t {
  kAligned = 0,   // exponents coded with the fixed symbol table, after the alignment constant was added
  kRanked = 1,    // as kAligned, but the 13 symbols are in the tail, by falling frequency
  kRaw = 2,       // the block's bytes as they are
  kConstant = 3,  // every value has the same bits, which are in the tail
};

// What can be wrong with a block.
enum class BlockError : uint8_t {
  kNone,
  kReserved,     // reserved bits are set
  kAlignment,    // an alignment constant that the dtype or the mode does not have
  kTailTooLong,  // longer than that of a raw block
  kTailLength,   // not the length that the mode or the codes need
  kPadding,      // padding bits are set
  kSymbol,       // a symbol that the dtype does not have
};

constexpr int kLaneCount = 32;
constexpr int kGroupValues = 8;
constexpr int kMinBlockLog2 = 9;
constexpr int kMaxBlockLog2 = 11;
constexpr int kMaxBlockValues = 1 << kMaxBlockLog2;
constexpr int kMaxBlockGroups = kMaxBlockValues / kGroupValues;
constexpr int kChunkBlocks = 8;             // blocks for which the directory has one entry
constexpr int kAlignmentPieces = 4;         // pieces (1024 values) that share an alignment constant
constexpr int kMaxAlignments = 2;           // alignment constants of the largest block
constexpr int kTableSymbols = 13;           // 3 in level 1, 3 in level 2, 7 in level 3
constexpr int kTableWords = 4;              // 13 symbols and three zero bytes
constexpr uint64_t kMaxBytes = 1ull << 34;  // of values in one message, so that the words of all tails fit 32 bits

// The first 32 bytes of a payload. All integers of the format are little-endian.
struct ContainerHeader {
  uint32_t magic;
  uint8_t version;
  uint8_t dtype;
  uint8_t block_log2;
  uint8_t layout;
  uint64_t values;
  uint64_t total_bytes;    // of the payload, this header included
  uint32_t stored_blocks;  // blocks that have static planes: in the compact layout all but the constant ones
  uint32_t reserved;       // 0
};
static_assert(sizeof(ContainerHeader) == 32);

// One entry for each kChunkBlocks blocks (compact layout only): what stands before its first block.
struct DirectoryEntry {
  uint32_t tail_words;
  uint32_t stored_blocks;
};
static_assert(sizeof(DirectoryEntry) == 8);

// A block's header on the wire: u16 info, then one u16 alignment constant for each 1024 values of a full block.
// info: bits 0-11 tail length in 32-bit words, bits 12-13 mode, bits 14-15 zero.
struct BlockHeader {
  Mode mode;
  uint16_t tail_words;
  uint16_t alignment[kMaxAlignments];
};
constexpr int kInfoModeShift = 12;
constexpr uint16_t kInfoTailMask = 0x0fff;
constexpr uint16_t kInfoReservedMask = 0xc000;

// What the format needs to know of a dtype. The planes of a stored block, in this order, for `groups` groups:
// words (4 bytes a value), halves (2), bytes (1), low bits (low_bits / 8), codes (1/4).
struct DTypeShape {
  uint8_t value_bytes;
  uint8_t words, halves, bytes;  // 1 where the plane exists
  uint8_t low_bits;              // bits of the exponent's byte that are not exponent
};

static constexpr DTypeShape dtype_shape(DType t) {
  switch (t) {
    case DType::kBFloat16:
      return {2, 0, 0, 1, 0};
    case DType::kFloat16:
      return {2, 0, 0, 1, 3};
    case DType::kFloat32:
      return {4, 0, 1, 1, 0};
    case DType::kFloat64:
      return {8, 1, 1, 0, 5};
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E4M3FNUZ:
    case DType::kFloat8E4M3B11FNUZ:
    case DType::kFloat8E4M3:
      return {1, 0, 0, 0, 4};
    case DType::kFloat8E5M2:
    case DType::kFloat8E5M2FNUZ:
      return {1, 0, 0, 0, 3};
    case DType::kFloat8E3M4:
      return {1, 0, 0, 0, 5};
    case DType::kFloat8E8M0FNU:
      return {1, 0, 0, 0, 0};
  }
  return {0, 0, 0, 0, 0};
}

static constexpr uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }
static constexpr uint64_t ceil_div(uint64_t n, uint64_t by) { return (n + by - 1) / by; }

static constexpr int groups_of(int values) { return (values + kGroupValues - 1) / kGroupValues; }

// Bytes of all planes of a block of `groups` groups.
static constexpr int static_bytes(DTypeShape s, int groups) {
  int per_group = 32 * s.words + 16 * s.halves + 8 * s.bytes + s.low_bits + 2;
  return static_cast<int>(round_up(static_cast<uint64_t>(per_group) * groups, 4));
}

// Words that a raw block has in its tail: what its planes' room does not hold. No coded block's tail is as long.
static constexpr int raw_tail_words(DTypeShape s, int groups) {
  return static_cast<int>(ceil_div(
      static_cast<uint64_t>(s.value_bytes) * kGroupValues * groups - static_cast<uint64_t>(static_bytes(s, groups)),
      4));
}

static constexpr int constant_tail_words(DTypeShape s) { return s.value_bytes == 8 ? 2 : 1; }

static constexpr int max_tail_words(DTypeShape s, int groups) {
  int raw = raw_tail_words(s, groups), constant = constant_tail_words(s);
  return raw > constant ? raw : constant;
}

// Words of a tail's three levels for K2 escapes of level 1, K3 of level 2 and K4 of level 3.
static constexpr int level2_words(int k2) { return (2 * k2 + 31) / 32; }
static constexpr int level3_words(int k3) { return (3 * k3 + 31) / 32; }
static constexpr int level4_words(int k4) { return (k4 + 3) / 4; }

// The block size for a message: small blocks for small messages, where latency rules.
static constexpr int block_log2_for(uint64_t values) {
  return values <= (1u << 19) ? 9 : values <= (1u << 21) ? 10 : 11;
}

// Where everything of one message stands.
struct Geometry {
  DTypeShape shape;
  Layout layout;
  int block_log2;
  uint64_t values;
  uint64_t blocks, chunks;
  int last_values;       // values of the last block
  int header_bytes;      // of one block
  int static_full;       // bytes of a full block's planes
  int static_last;       // of the last block's
  int tail_slot;         // bytes of a full block's tail slot
  uint64_t directory;    // offset of the directory
  uint64_t headers;      // offset of the block headers
  uint64_t planes;       // offset of the planes
  uint64_t slotted_end;  // bytes of the payload when every block is stored and every tail has its slot

  constexpr int values_in(uint64_t block) const { return block + 1 == blocks ? last_values : 1 << block_log2; }
  constexpr int alignments() const { return (header_bytes - 2) / 2; }
  // Offset of the tails when `stored` blocks have planes, the last one among them or not.
  constexpr uint64_t tails(uint64_t stored, bool last_stored) const {
    return planes + stored * static_cast<uint64_t>(static_full) -
           (last_stored ? static_cast<uint64_t>(static_full - static_last) : 0);
  }
};

static constexpr Geometry geometry(DType dtype, uint64_t values, int block_log2, Layout layout) {
  Geometry g{};
  g.shape = dtype_shape(dtype);
  g.layout = layout;
  g.block_log2 = block_log2;
  g.values = values;
  g.blocks = ceil_div(values, 1ull << block_log2);
  g.chunks = ceil_div(g.blocks, kChunkBlocks);
  g.last_values = g.blocks == 0 ? 0 : static_cast<int>(values - ((g.blocks - 1) << block_log2));
  g.header_bytes = block_log2 == kMaxBlockLog2 ? 6 : 4;
  int groups = (1 << block_log2) / kGroupValues;
  g.static_full = static_bytes(g.shape, groups);
  g.static_last = static_bytes(g.shape, groups_of(g.last_values));
  g.tail_slot = 4 * max_tail_words(g.shape, groups);
  g.directory = sizeof(ContainerHeader);
  g.headers = g.directory + (layout == Layout::kCompact ? g.chunks * sizeof(DirectoryEntry) : 0);
  g.planes = round_up(g.headers + g.blocks * static_cast<uint64_t>(g.header_bytes), 32);
  g.slotted_end = g.planes;
  if (g.blocks > 0) {
    g.slotted_end = g.tails(g.blocks, true) + (g.blocks - 1) * static_cast<uint64_t>(g.tail_slot) +
                    4 * static_cast<uint64_t>(max_tail_words(g.shape, groups_of(g.last_values)));
  }
  return g;
}

}  // namespace uzip
