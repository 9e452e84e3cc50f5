// Stands in for libFuzzer where there is none: gives each file that is named to the target once.

#include <cstdint>
#include <cstdio>
#include <memory>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

// The input is in a buffer of exactly its size, so that AddressSanitizer sees every read past its end.
bool replay(const char* path) {
  std::FILE* file = std::fopen(path, "rb");
  if (file == nullptr || std::fseek(file, 0, SEEK_END) != 0) return false;
  const long size = std::ftell(file);
  if (size < 0) return false;
  std::rewind(file);
  std::unique_ptr<uint8_t[]> bytes(new uint8_t[static_cast<size_t>(size)]);
  const bool whole = std::fread(bytes.get(), 1, static_cast<size_t>(size), file) == static_cast<size_t>(size);
  std::fclose(file);
  if (whole) LLVMFuzzerTestOneInput(bytes.get(), static_cast<size_t>(size));
  return whole;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s FILE...\n", argv[0]);
    return 1;
  }
  for (int i = 1; i < argc; ++i) {
    std::fprintf(stderr, "%s\n", argv[i]);  // the last one named is the one that failed
    if (!replay(argv[i])) {
      std::fprintf(stderr, "cannot read it\n");
      return 1;
    }
  }
  std::printf("%d files replayed\n", argc - 1);
  return 0;
}
