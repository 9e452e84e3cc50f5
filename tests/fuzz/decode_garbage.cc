// Promise: whatever the bytes, decode() and decode_add() never read outside of them nor crash; they say what is wrong
// with a payload or give values that depend on nothing but it. A payload that follows docs/wire-format.md is accepted,
// also one that no encoder writes; one whose lengths and sums do not follow from its blocks is refused.
//
// Input: the kind of payload, then
//   kind 0    the payload as it is; dtype and number of values are what its header says
//   kind 1    size and edits (below), then what is in the blocks, put together to a payload that is well formed
//   kind 2    size and edits, then a program that makes the values to encode (values.h)

#include "payload.h"

namespace uzip::fuzz {
namespace {

constexpr uint64_t kMaxValues = 1 << 16;

struct Case {
  DType dtype;
  uint64_t count;
  Bytes payload;
  Bytes sound;  // a payload of as many values that must be accepted, or nothing
};

// --- Kind 1: blocks from the input ---

uint64_t mask_of(int bits) { return (1ull << bits) - 1; }

uint32_t code_at(const uint8_t* codes, int bits, int i) {
  uint32_t code = 0;
  for (int b = 0; b < bits; ++b) {
    const int at = bits * i + b;
    code |= (codes[at / 8] >> (at % 8) & 1u) << b;
  }
  return code;
}

int zero_codes(const uint8_t* codes, int bits, int n) {
  int zeros = 0;
  for (int i = 0; i < n; ++i) zeros += code_at(codes, bits, i) == 0;
  return zeros;
}

void clear_padding(uint8_t* field, int words, int used) {
  for (int bit = used; bit < 32 * words; ++bit) field[bit / 8] &= static_cast<uint8_t>(~(1u << (bit % 8)));
}

uint8_t symbol_mask(DTypeShape s) {
  if (s.value_bytes == 1) return static_cast<uint8_t>(mask_of(8 - s.low_bits));
  return static_cast<uint8_t>(s.value_bytes == 2 && s.low_bits == 3 ? 31 : 255);
}

// Makes a coded block's tail what its codes need it to be: section 5. False if it would be longer than a raw one's.
bool fit_tail(const Geometry& g, int groups, uint8_t mask, Block* block) {
  const int room = raw_tail_words(g.shape, groups);
  uint8_t* tail = block->tail.data();
  int words = 0;
  if (block->header.mode == Mode::kRanked) {
    words = kTableWords;
    if (words > room) return false;
    for (int i = 0; i < 16; ++i) tail[i] &= i < kTableSymbols ? mask : 0;
  }
  const uint8_t* codes =
      block->planes.data() + groups * (32 * g.shape.words + 16 * g.shape.halves + 8 * g.shape.bytes + g.shape.low_bits);
  int escapes = zero_codes(codes, 2, 8 * groups);
  for (int bits : {2, 3, 8}) {
    const int more = (bits * escapes + 31) / 32;
    if (words + more > room) return false;
    uint8_t* level = tail + 4 * words;
    clear_padding(level, more, bits * escapes);
    if (bits == 8) {
      for (int i = 0; i < escapes; ++i) level[i] &= mask;
    } else {
      escapes = zero_codes(level, bits, escapes);
    }
    words += more;
  }
  block->header.tail_words = static_cast<uint16_t>(words);
  return true;
}

// Bytes of the input, over and over. Few are zero where many levels of escapes would make the block raw.
void fill(Buffer* buffer, Input from, uint8_t flip, uint64_t begin) {
  for (uint64_t i = 0; i < buffer->size(); ++i) {
    buffer->data()[i] = from.left() == 0 ? flip : static_cast<uint8_t>(from.data()[(begin + i) % from.left()] ^ flip);
  }
}

Block block_from(Input* in, const Geometry& g, uint64_t b) {
  const int groups = groups_of(g.values_in(b));
  Block block = empty_block(g, b, 0);
  const uint8_t mode = in->byte(), flip = in->byte();
  fill(&block.planes, *in, flip, 0);
  fill(&block.tail, *in, flip, block.planes.size());
  block.header.mode = static_cast<Mode>(mode & 3);
  if (block.header.mode == Mode::kAligned || block.header.mode == Mode::kRanked) {
    const auto wire_mask = static_cast<uint16_t>(g.shape.value_bytes == 1 ? 0xff : 0xffff);
    for (int i = 0; i < g.alignments(); ++i) block.header.alignment[i] = in->word() & wire_mask;
    if (fit_tail(g, groups, symbol_mask(g.shape), &block)) return block;
    block.header = {Mode::kRaw, 0, {0, 0}};
  }
  if (block.header.mode == Mode::kRaw) {
    block.header.tail_words = static_cast<uint16_t>(raw_tail_words(g.shape, groups));
  } else {
    block.header.tail_words = static_cast<uint16_t>(constant_tail_words(g.shape));
    clear_padding(block.tail.data(), block.header.tail_words, 8 * g.shape.value_bytes);
  }
  return block;
}

// --- Kinds 1 and 2: edits ---

// Where a part of the payload begins and how long it is.
struct Part {
  uint64_t begin, size;
};

Part part_of(const Geometry& g, const Bytes& payload, uint8_t which) {
  ContainerHeader h;
  std::memcpy(&h, payload.data(), sizeof(h));
  const uint64_t tails =
      std::min<uint64_t>(g.planes + h.stored_blocks * static_cast<uint64_t>(g.static_full), payload.size());
  switch (which % 5) {
    case 0:
      return {0, sizeof(ContainerHeader)};
    case 1:
      return {g.directory, g.headers - g.directory};
    case 2:
      return {g.headers, g.planes - g.headers};
    case 3:
      return {g.planes, tails - g.planes};
    default:
      return {tails, payload.size() - tails};
  }
}

void edit(Input* in, const Geometry& g, Bytes* payload) {
  const uint8_t how = in->byte(), value = in->byte();
  const uint64_t offset = in->word();
  const Part part = part_of(g, *payload, how);
  if (part.size == 0) return;
  uint8_t& byte = (*payload)[part.begin + offset % part.size];
  switch (how / 5 % 3) {
    case 0:
      byte = value;
      break;
    case 1:
      byte = static_cast<uint8_t>(byte ^ 1u << value % 8);
      break;
    default:
      byte = static_cast<uint8_t>(byte + value);
  }
}

// Makes the sums of a compact payload follow from its block headers again, so that edits of these go further.
void repair(const Geometry& g, Bytes* payload) {
  DirectoryEntry at{0, 0};
  bool last_stored = false;
  for (uint64_t b = 0; b < g.blocks; ++b) {
    if (b % kChunkBlocks == 0) put(payload, g.directory + b, at);
    uint16_t info;
    std::memcpy(&info, &(*payload)[g.headers + b * static_cast<uint64_t>(g.header_bytes)], 2);
    last_stored = info >> kInfoModeShift != static_cast<int>(Mode::kConstant);
    at.stored_blocks += last_stored;
    at.tail_words += info & kInfoTailMask;
  }
  const uint64_t total = g.tails(at.stored_blocks, last_stored) + 4ull * at.tail_words;
  payload->resize(total, 0x55);
  put(payload, offsetof(ContainerHeader, total_bytes), total);
  put(payload, offsetof(ContainerHeader, stored_blocks), at.stored_blocks);
}

// Cuts the payload off or lets bytes follow it, and perhaps has its header say so.
void resize(int how, uint64_t amount, Bytes* payload) {
  if (how >= 6) payload->resize(payload->size() - amount % (payload->size() + 1));
  if (how == 5) payload->append(amount % 64, 0xff);
  if (how == 4) payload->append(4 * (1 + amount % 16), 0);
  if ((how == 4 || how == 7) && payload->size() >= sizeof(ContainerHeader)) {
    put(payload, offsetof(ContainerHeader, total_bytes), uint64_t{payload->size()});
  }
}

Case make_case(uint8_t kind, Input in) {
  const DType dtype = dtype_of(in.byte());
  const uint8_t options = in.byte(), edits = in.byte();
  const uint64_t count = in.word() >> (3 + (options >> 2 & 7));
  const int block_log2 = kMinBlockLog2 + edits / 16 % 3;
  const Geometry g = geometry(dtype, count, block_log2, options & 1 ? Layout::kSlotted : Layout::kCompact);
  Input script = in;
  for (int i = 0; i < 4 * (edits % 16) + 2; ++i) in.byte();

  Case c{dtype, count, {}, {}};
  if (kind == 1) {
    c.sound = assemble(dtype, g, [&](uint64_t b) { return block_from(&in, g, b); });
  } else {
    c.sound = assemble_values(dtype, g, make_values(dtype, count, in), kWays[0]);
  }
  c.payload = c.sound;
  const uint64_t amount = script.word();
  for (int i = 0; i < edits % 16; ++i) edit(&script, g, &c.payload);
  if (options & 2 && g.layout == Layout::kCompact) repair(g, &c.payload);
  resize(options >> 5, amount, &c.payload);
  return c;
}

// Kind 0. No more values than fit a small buffer, unless the payload is too short for that many.
Case case_as_it_is(Input in) {
  Case c{DType::kBFloat16, 0, Bytes(in.data(), in.left()), {}};
  ContainerHeader h;
  if (c.payload.size() < sizeof(h)) return c;
  std::memcpy(&h, c.payload.data(), sizeof(h));
  c.dtype = dtype_of(static_cast<uint8_t>(h.dtype - 1));
  const uint64_t limit = kMaxBytes / dtype_shape(c.dtype).value_bytes;
  if (h.values <= kMaxValues) {
    c.count = h.values;
  } else if (h.values <= limit &&
             geometry(c.dtype, h.values, kMaxBlockLog2, Layout::kSlotted).planes > c.payload.size()) {
    c.count = h.values;
  }
  return c;
}

// --- The checks ---

struct Outcome {
  std::string error;
  Buffer values;
};

Outcome decode_in(const Way& way, const Case& c) {
  Buffer payload(c.payload.data(), c.payload.size(), way.shift);
  const uint64_t writable = c.count <= kMaxValues ? c.count : 0;
  Outcome out{"", Buffer(writable * dtype_shape(c.dtype).value_bytes, way.fill, way.shift)};
  forget(&out.values);
  follow(way);
  out.error = decode(c.dtype, payload.data(), payload.size(), out.values.data(), c.count, way.order);
  return out;
}

// The sum of the payload and, if there is one, the sound payload; else of the payload with itself.
Outcome decode_add_in(const Way& way, const Case& c, uint64_t ranks) {
  const uint64_t stride = std::max(c.sound.size(), c.payload.size());
  Buffer all(ranks * stride, way.fill, way.shift);
  for (uint64_t r = 0; r < ranks; ++r) {
    const Bytes& payload = r == 1 && !c.sound.empty() ? c.sound : c.payload;
    std::memcpy(all.data() + r * stride, payload.data(), payload.size());
    std::memset(all.data() + r * stride + payload.size(), 0, stride - payload.size());
  }
  const uint64_t writable = c.count <= kMaxValues ? c.count : 0;
  Outcome out{"", Buffer(writable * dtype_shape(c.dtype).value_bytes, way.fill, way.shift)};
  forget(&out.values);
  follow(way);
  out.error = decode_add(c.dtype, {nullptr, 0, all.data(), ranks, stride}, out.values.data(), c.count, way.order);
  return out;
}

// Returns whether the payload was accepted.
bool check_same(const Outcome& a, const Outcome& b) {
  UZIP_CHECK(a.error == b.error);
  if (!a.error.empty()) return false;
  require_written(a.values.data(), a.values.size());
  UZIP_CHECK(a.values == b.values);
  return true;
}

uint8_t block_size_of(const Bytes& payload) {
  return payload.size() < sizeof(ContainerHeader) ? 0 : payload[offsetof(ContainerHeader, block_log2)];
}

bool sums_follow_from_blocks(const Case& c) {
  ContainerHeader h;
  std::memcpy(&h, c.payload.data(), sizeof(h));
  const Geometry g = geometry(c.dtype, c.count, h.block_log2, static_cast<Layout>(h.layout));
  if (g.layout == Layout::kSlotted) return h.total_bytes == g.slotted_end && h.stored_blocks == g.blocks;
  Bytes payload = c.payload.substr(0, h.total_bytes), repaired = payload;
  repair(g, &repaired);
  return repaired == payload;
}

// Whether it is accepted: in all ways or in none.
template <class Run>
bool check_all_ways(Run run) {
  const auto first = run(kWays[0]);
  bool accepted = false;
  for (const Way& way : kWays) accepted = check_same(first, run(way));
  return accepted;
}

void check(const Case& c) {
  const bool accepted = check_all_ways([&](const Way& way) { return decode_in(way, c); });
  UZIP_CHECK(!accepted || sums_follow_from_blocks(c));
  UZIP_CHECK(c.count <= kMaxValues || !accepted);
  UZIP_CHECK(accepted || c.sound.empty() || c.payload != c.sound);
  for (uint64_t ranks : {1, 2}) {
    const bool summed = check_all_ways([&](const Way& way) { return decode_add_in(way, c, ranks); });
    const bool mixed = ranks > 1 && !c.sound.empty() && block_size_of(c.payload) != block_size_of(c.sound);
    UZIP_CHECK(summed || !accepted || mixed);
  }
}

}  // namespace
}  // namespace uzip::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace uzip::fuzz;
  Input in(data, size);
  const uint8_t kind = in.byte() % 3;
  check(kind == 0 ? case_as_it_is(in) : make_case(kind, in));
  return 0;
}
