#include "buffer_cpu.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "sum_cpu.h"

namespace uzip {
namespace {

struct InstructionSet {
  const char* name;
  const BlockWalk* walks;
  bool available, preferred;
};

// The fastest first.
const std::vector<InstructionSet>& instruction_sets() {
  static const std::vector<InstructionSet> all = [] {
    std::vector<InstructionSet> sets;
#ifdef UZIP_HAVE_AVX2
    __builtin_cpu_init();  // this may run before the constructors that would do it
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
                      __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("lzcnt");
    // PEXT and PDEP are microcode on AMD before Zen 3: dozens of cycles each.
    const bool slow_pext = __builtin_cpu_is("amdfam15h") || __builtin_cpu_is("amdfam17h");
    const bool fast_pext = (__builtin_cpu_is("intel") || __builtin_cpu_is("amd")) && !slow_pext;
    sets.push_back({"bmi2", bmi2::kBlockWalks, avx2 && __builtin_cpu_supports("bmi2"), fast_pext});
    sets.push_back({"avx2", avx2::kBlockWalks, avx2, true});
#endif
    sets.push_back({"portable", portable::kBlockWalks, true, true});
    return sets;
  }();
  return all;
}

const InstructionSet* preferred() {
  for (const InstructionSet& set : instruction_sets()) {
    if (set.available && set.preferred) return &set;
  }
  return nullptr;  // never: the portable one is there
}

std::atomic<const InstructionSet*> in_use{preferred()};

const BlockWalk& walk_of(DType dtype) { return in_use.load(std::memory_order_relaxed)->walks[static_cast<int>(dtype)]; }

struct alignas(64) Scratch {
  uint8_t bytes[kWorkspaceBytes];
};

template <class T>
T load(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// The hardware's own prefetching starts anew at every page, which is about every block.
void prefetch(const uint8_t* from, int bytes) {
  for (int i = 0; i < bytes; i += 64) __builtin_prefetch(from + i);
}

void write_header(uint8_t* to, const BlockHeader& h, int alignments) {
  uint16_t info = static_cast<uint16_t>(h.tail_words | static_cast<int>(h.mode) << kInfoModeShift);
  std::memcpy(to, &info, 2);
  std::memcpy(to + 2, h.alignment, 2 * static_cast<size_t>(alignments));
}

BlockError read_header(const uint8_t* from, int alignments, BlockHeader* h) {
  uint16_t info = load<uint16_t>(from);
  if ((info & kInfoReservedMask) != 0) return BlockError::kReserved;
  h->mode = static_cast<Mode>(info >> kInfoModeShift & 3);
  h->tail_words = info & kInfoTailMask;
  h->alignment[0] = h->alignment[1] = 0;
  std::memcpy(h->alignment, from + 2, 2 * static_cast<size_t>(alignments));
  return BlockError::kNone;
}

const char* text_of(BlockError error) {
  switch (error) {
    case BlockError::kNone:
      return "nothing is wrong";
    case BlockError::kReserved:
      return "reserved bits of its header are set";
    case BlockError::kAlignment:
      return "its header has an alignment constant that its mode or dtype does not have";
    case BlockError::kTailTooLong:
      return "its tail is longer than a raw block's, or than the payload";
    case BlockError::kTailLength:
      return "its tail has not the length that its mode and codes need";
    case BlockError::kPadding:
      return "padding bits of its tail are set";
    case BlockError::kSymbol:
      return "it has an exponent that the dtype does not have";
  }
  return "unknown error";
}

// The first error in block order, whatever the order in which the blocks are decoded.
class FirstError {
 public:
  void set(uint64_t block, std::string what) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (block < block_) {
      block_ = block;
      what_ = "malformed payload: block " + std::to_string(block) + ": " + what;
    }
  }
  std::string take() { return std::move(what_); }

 private:
  std::mutex mutex_;
  uint64_t block_ = ~0ull;
  std::string what_;
};

std::string malformed(const std::string& what) { return "malformed payload: " + what; }

// A payload whose container is sound: every size that the blocks' places follow from was checked against the others.
struct Container {
  Geometry g;
  const uint8_t* base;
  uint64_t stored;      // blocks with planes
  bool last_stored;     // whether the last block is one of them
  uint64_t tails;       // offset of the tails
  uint64_t tail_words;  // of all tails together (compact)

  std::string open(DType dtype, const uint8_t* payload, uint64_t size, uint64_t count) {
    if (size < sizeof(ContainerHeader)) {
      return malformed(std::to_string(size) + " bytes are too few for the header of " +
                       std::to_string(sizeof(ContainerHeader)));
    }
    ContainerHeader h;
    std::memcpy(&h, payload, sizeof(h));
    if (h.magic != kMagic) return malformed("it does not begin with \"UZIP\"");
    if (h.version != kFormatVersion) {
      return "payload has format version " + std::to_string(h.version) + ", this library reads version " +
             std::to_string(kFormatVersion);
    }
    if (h.dtype != static_cast<uint8_t>(dtype)) {
      return std::string("payload holds dtype ") + name_of(static_cast<DType>(h.dtype)) + ", " + name_of(dtype) +
             " was asked for";
    }
    if (h.values != count) {
      return "payload holds " + std::to_string(h.values) + " values, " + std::to_string(count) + " were asked for";
    }
    if (h.block_log2 < kMinBlockLog2 || h.block_log2 > kMaxBlockLog2) {
      return malformed("block size 2^" + std::to_string(h.block_log2));
    }
    if (h.layout > static_cast<uint8_t>(Layout::kSlotted)) return malformed("layout " + std::to_string(h.layout));
    if (h.reserved != 0) return malformed("reserved bytes of its header are set");
    if (h.total_bytes > size) {
      return malformed("it says that it has " + std::to_string(h.total_bytes) + " bytes, there are " +
                       std::to_string(size));
    }
    g = geometry(dtype, count, h.block_log2, static_cast<Layout>(h.layout));
    base = payload;
    stored = h.stored_blocks;
    const std::string lengths = malformed("its length does not fit its number of values and of stored blocks");
    if (stored > g.blocks || g.planes > h.total_bytes) return lengths;
    tail_words = 0;
    last_stored = g.blocks > 0;
    if (g.layout == Layout::kSlotted) {
      tails = g.blocks == 0 ? g.planes : g.tails(g.blocks, true);
      return stored != g.blocks || h.total_bytes != g.slotted_end ? lengths : "";
    }
    BlockHeader last{};
    if (g.blocks > 0) {
      BlockError error = header_of(g.blocks - 1, &last);
      if (error != BlockError::kNone) return block_error(g.blocks - 1, error);
    }
    last_stored = g.blocks > 0 && last.mode != Mode::kConstant;
    if (last_stored && stored == 0) return lengths;
    tails = g.tails(stored, last_stored);
    if (tails > h.total_bytes || (h.total_bytes - tails) % 4 != 0) return lengths;
    tail_words = (h.total_bytes - tails) / 4;
    return g.blocks == 0 && tail_words != 0 ? lengths : "";  // else the last chunk's end is compared with it
  }

  static std::string block_error(uint64_t block, BlockError error) {
    return malformed("block " + std::to_string(block) + ": " + text_of(error));
  }

  BlockError header_of(uint64_t block, BlockHeader* h) const {
    return read_header(base + g.headers + block * static_cast<uint64_t>(g.header_bytes), g.alignments(), h);
  }

  DirectoryEntry entry(uint64_t chunk) const {
    if (chunk == g.chunks) return {static_cast<uint32_t>(tail_words), static_cast<uint32_t>(stored)};
    return load<DirectoryEntry>(base + g.directory + chunk * sizeof(DirectoryEntry));
  }
};

// Goes through the blocks of one chunk of a sound container, and finds each one's planes and tail.
class Cursor {
 public:
  Cursor(const Container& c, uint64_t chunk) : c_(c), block_(chunk * kChunkBlocks) {
    if (c.g.layout == Layout::kCompact) at_ = chunk == 0 ? DirectoryEntry{0, 0} : c.entry(chunk);
  }

  // The place of the next block, or what is wrong with it.
  const char* next(BlockHeader* h, const uint8_t** planes, const uint8_t** tail) {
    BlockError error = c_.header_of(block_, h);
    if (error != BlockError::kNone) return text_of(error);
    if (c_.g.layout == Layout::kSlotted) {
      *planes = c_.base + c_.g.planes + block_ * static_cast<uint64_t>(c_.g.static_full);
      *tail = c_.base + c_.tails + block_ * static_cast<uint64_t>(c_.g.tail_slot);
      if (h->tail_words > max_tail_words(c_.g.shape, groups_of(c_.g.values_in(block_)))) {
        return text_of(BlockError::kTailTooLong);
      }
      ++block_;
      return nullptr;
    }
    const bool stored = h->mode != Mode::kConstant;
    if (at_.tail_words > c_.tail_words || c_.tail_words - at_.tail_words < h->tail_words) {
      return text_of(BlockError::kTailTooLong);
    }
    // The last block's planes may be shorter than the others', so no block before it may have its place.
    const bool is_last = block_ + 1 == c_.g.blocks;
    if (stored && at_.stored_blocks >= c_.stored - (c_.last_stored && !is_last ? 1 : 0))
      return "there are fewer planes than blocks that need them";
    *planes = c_.base + c_.g.planes + at_.stored_blocks * static_cast<uint64_t>(c_.g.static_full);
    *tail = c_.base + c_.tails + 4 * static_cast<uint64_t>(at_.tail_words);
    if (stored && is_last && at_.stored_blocks + 1 != c_.stored) {
      return "there are more planes than blocks that need them";
    }
    at_.tail_words += h->tail_words;
    at_.stored_blocks += stored;
    ++block_;
    return nullptr;
  }

  // After a chunk's last block: whether the directory's next entry stands where the chunk ends.
  const char* finish(uint64_t chunk) const {
    if (c_.g.layout == Layout::kSlotted) return nullptr;
    DirectoryEntry end = c_.entry(chunk + 1);
    if (end.tail_words != at_.tail_words || end.stored_blocks != at_.stored_blocks) {
      return "the directory does not fit the blocks of its chunk";
    }
    if (chunk == 0 && (c_.entry(0).tail_words | c_.entry(0).stored_blocks) != 0)
      return "the directory does not begin at 0";
    return nullptr;
  }

 private:
  const Container& c_;
  uint64_t block_;
  DirectoryEntry at_{0, 0};
};

}  // namespace

const char* name_of(DType dtype) {
  static constexpr const char* kNames[kDTypes] = {
      "of an unknown code", "bfloat16",           "float16",     "float32",     "float64",         "float8_e4m3fn",
      "float8_e4m3fnuz",    "float8_e4m3b11fnuz", "float8_e4m3", "float8_e5m2", "float8_e5m2fnuz", "float8_e3m4",
      "float8_e8m0fnu"};
  auto code = static_cast<unsigned>(dtype);
  return kNames[code < kDTypes ? code : 0];
}

void run_serially(uint64_t n, const std::function<void(uint64_t)>& task) {
  for (uint64_t i = 0; i < n; ++i) task(i);
}

const char* isa() { return in_use.load()->name; }

const BlockWalk* select_isa(const char* name) {
  for (const InstructionSet& set : instruction_sets()) {
    if (set.available && std::strcmp(set.name, name) == 0) {
      in_use = &set;
      return set.walks;
    }
  }
  return nullptr;
}

uint64_t capacity(DType dtype, uint64_t values, Layout layout) {
  return geometry(dtype, values, block_log2_for(values), layout).slotted_end;
}

uint64_t encode(DType dtype, const void* values, uint64_t count, Layout layout, uint8_t* payload,
                const Parallel& parallel) {
  const int width = dtype_shape(dtype).value_bytes;
  const Geometry g = geometry(dtype, count, block_log2_for(count), layout);
  const BlockWalk& walk = walk_of(dtype);
  const auto* from = static_cast<const uint8_t*>(values);
  const uint64_t slots = g.blocks == 0 ? g.planes : g.tails(g.blocks, true);
  const auto static_full = static_cast<uint64_t>(g.static_full), slot = static_cast<uint64_t>(g.tail_slot);

  // 1. Every block into its slot. A compact payload has the same room, for no compact encoding is longer.
  parallel(g.chunks, [&](uint64_t chunk) {
    Scratch scratch;
    for (uint64_t b = chunk * kChunkBlocks; b < g.blocks && b < (chunk + 1) * kChunkBlocks; ++b) {
      const uint8_t* block = from + (b << g.block_log2) * static_cast<uint64_t>(width);
      if (b + 1 < g.blocks) prefetch(block + (width << g.block_log2), width * g.values_in(b + 1));
      BlockHeader h = walk.encode(block, g.values_in(b), payload + g.planes + b * static_full,
                                  payload + slots + b * slot, &scratch);
      write_header(payload + g.headers + b * static_cast<uint64_t>(g.header_bytes), h, g.alignments());
    }
  });

  // 2. Compact: planes close up over constant blocks, then tails over all that is free before them.
  ContainerHeader head{kMagic,
                       kFormatVersion,
                       static_cast<uint8_t>(dtype),
                       static_cast<uint8_t>(g.block_log2),
                       static_cast<uint8_t>(layout),
                       count,
                       g.slotted_end,
                       static_cast<uint32_t>(g.blocks),
                       0};
  const uint64_t header_end = g.headers + g.blocks * static_cast<uint64_t>(g.header_bytes);
  std::memset(payload + header_end, 0, g.planes - header_end);
  if (layout == Layout::kCompact) {
    DirectoryEntry at{0, 0};
    bool stored = false;
    for (uint64_t b = 0; b < g.blocks; ++b) {
      if (b % kChunkBlocks == 0) {
        std::memcpy(payload + g.directory + b / kChunkBlocks * sizeof(at), &at, sizeof(at));
      }
      BlockHeader h{};
      read_header(payload + g.headers + b * static_cast<uint64_t>(g.header_bytes), g.alignments(), &h);
      stored = h.mode != Mode::kConstant;
      if (stored && at.stored_blocks != b) {
        std::memmove(payload + g.planes + at.stored_blocks * static_full, payload + g.planes + b * static_full,
                     b + 1 == g.blocks ? static_cast<uint64_t>(g.static_last) : static_full);
      }
      at.stored_blocks += stored;
      at.tail_words += h.tail_words;
    }
    head.stored_blocks = at.stored_blocks;
    uint8_t* tail = payload + g.tails(at.stored_blocks, stored);
    for (uint64_t b = 0; b < g.blocks; ++b) {
      BlockHeader h{};
      read_header(payload + g.headers + b * static_cast<uint64_t>(g.header_bytes), g.alignments(), &h);
      const uint8_t* slotted = payload + slots + b * slot;
      if (tail != slotted) std::memmove(tail, slotted, 4u * h.tail_words);
      tail += 4 * h.tail_words;
    }
    head.total_bytes = static_cast<uint64_t>(tail - payload);
  }
  std::memcpy(payload, &head, sizeof(head));
  return head.total_bytes;
}

std::string decode(DType dtype, const uint8_t* payload, uint64_t size, void* values, uint64_t count,
                   const Parallel& parallel) {
  Container c;
  std::string error = c.open(dtype, payload, size, count);
  if (!error.empty()) return error;
  const Geometry& g = c.g;
  const BlockWalk& walk = walk_of(dtype);
  auto* to = static_cast<uint8_t*>(values);
  FirstError first;
  parallel(g.chunks, [&](uint64_t chunk) {
    Scratch scratch;
    Cursor cursor(c, chunk);
    for (uint64_t b = chunk * kChunkBlocks; b < g.blocks && b < (chunk + 1) * kChunkBlocks; ++b) {
      BlockHeader h;
      const uint8_t *planes, *tail;
      if (const char* wrong = cursor.next(&h, &planes, &tail)) return first.set(b, wrong);
      if (b + 1 < g.blocks) prefetch(planes + g.static_full, g.static_full);
      BlockError e = walk.decode(h, g.values_in(b), planes, tail,
                                 to + (b << g.block_log2) * static_cast<uint64_t>(g.shape.value_bytes), &scratch);
      if (e != BlockError::kNone) return first.set(b, text_of(e));
    }
    if (const char* wrong = cursor.finish(chunk)) first.set(chunk * kChunkBlocks, wrong);
  });
  return first.take();
}

std::string decode_add(DType dtype, const Addends& addends, void* values, uint64_t count, const Parallel& parallel) {
  const uint64_t payloads = addends.payload_rows;
  if (addends.raw_rows + payloads == 0) return "decode_add needs at least one row";
  auto of = [](uint64_t r) { return "payload " + std::to_string(r); };
  std::vector<Container> c(payloads);
  for (uint64_t r = 0; r < payloads; ++r) {
    std::string error = c[r].open(dtype, addends.payloads + r * addends.stride, addends.stride, count);
    if (!error.empty()) return of(r) + ": " + error;
    if (c[r].g.block_log2 != c[0].g.block_log2) {
      return of(r) + ": " + malformed("its block size is not that of payload 0");
    }
  }
  const Geometry g = payloads > 0 ? c[0].g : geometry(dtype, count, block_log2_for(count), Layout::kCompact);
  const auto width = static_cast<uint64_t>(g.shape.value_bytes);
  const BlockWalk& walk = walk_of(dtype);
  auto* to = static_cast<uint8_t*>(values);
  FirstError first;
  parallel(g.chunks, [&](uint64_t chunk) {
    DefaultFloatEnvironment environment;
    Scratch scratch;
    alignas(64) uint8_t decoded[8 * kMaxBlockValues];
    Accumulator sum(dtype);
    std::vector<Cursor> cursors;
    for (uint64_t r = 0; r < payloads; ++r) cursors.emplace_back(c[r], chunk);
    for (uint64_t b = chunk * kChunkBlocks; b < g.blocks && b < (chunk + 1) * kChunkBlocks; ++b) {
      const uint64_t at = (b << g.block_log2) * width;
      for (uint64_t r = 0; r < addends.raw_rows; ++r) {
        sum.add(addends.raw + r * count * width + at, g.values_in(b), r == 0);
      }
      for (uint64_t r = 0; r < payloads; ++r) {
        BlockHeader h;
        const uint8_t *planes, *tail;
        const char* wrong = cursors[r].next(&h, &planes, &tail);
        if (wrong == nullptr) {
          BlockError e = walk.decode(h, g.values_in(b), planes, tail, decoded, &scratch);
          if (e != BlockError::kNone) wrong = text_of(e);
        }
        if (wrong != nullptr) return first.set(b, wrong + (" (" + of(r) + ")"));
        sum.add(decoded, g.values_in(b), addends.raw_rows + r == 0);
      }
      sum.round(to + at, g.values_in(b));
    }
    for (uint64_t r = 0; r < payloads; ++r) {
      if (const char* wrong = cursors[r].finish(chunk)) {
        first.set(chunk * kChunkBlocks, wrong + (" (" + of(r) + ")"));
      }
    }
  });
  return first.take();
}

}  // namespace uzip
