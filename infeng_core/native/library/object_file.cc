// Checks of an ELF file's headers before it is mapped.
#include <infeng/extension/error.h>

#include <cstring>
#include <fstream>

#include "library/library.h"

#if defined(__linux__)
#include <elf.h>
#endif

namespace infeng {

#if defined(__linux__) && defined(__LP64__)

namespace {

#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
constexpr const char* kMachineName = "x86-64";
#elif defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
constexpr const char* kMachineName = "aarch64";
#else
constexpr uint16_t kMachine = EM_NONE;  // not checked
constexpr const char* kMachineName = "this machine";
#endif

}  // namespace

void check_object_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) fail("not_found", path, ": cannot be read");
  const auto size = static_cast<uint64_t>(file.tellg());
  const auto read = [&](uint64_t at, void* into, size_t bytes) {
    if (at > size || bytes > size - at) {
      fail("truncated", path, ": is truncated, ", size, " bytes are not the whole library; install it again");
    }
    file.seekg(static_cast<std::streamoff>(at));
    file.read(static_cast<char*>(into), static_cast<std::streamsize>(bytes));
  };
  unsigned char ident[EI_NIDENT] = {};
  if (size < SELFMAG) fail("bad_file", path, ": is not a shared library (", size, " bytes)");
  read(0, ident, SELFMAG);
  if (std::memcmp(ident, ELFMAG, SELFMAG) != 0) fail("bad_file", path, ": is not a shared library (no ELF header)");
  read(0, ident, EI_NIDENT);
  if (ident[EI_CLASS] != ELFCLASS64) fail("wrong_arch", path, ": is a 32-bit library, this process has 64 bits");
  Elf64_Ehdr header{};
  read(0, &header, sizeof header);
  if (kMachine != EM_NONE && header.e_machine != kMachine) {
    fail("wrong_arch", path, ": was built for ELF machine ", header.e_machine, ", this process runs on ", kMachineName);
  }
  if (header.e_type != ET_DYN) fail("bad_file", path, ": is an ELF file but not a shared library");
  if (header.e_phentsize != sizeof(Elf64_Phdr)) fail("bad_file", path, ": has program headers of an unknown size");
  for (uint16_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment{};
    read(header.e_phoff + uint64_t{i} * sizeof segment, &segment, sizeof segment);
    if (segment.p_offset > size || segment.p_filesz > size - segment.p_offset) {
      fail("truncated", path, ": is truncated, a segment ends at byte ", segment.p_offset + segment.p_filesz, " of ",
           size, "; install it again");
    }
  }
}

#else

void check_object_file(const std::string& path) {
  if (!std::ifstream(path)) fail("not_found", path, ": cannot be read");
}

#endif

}  // namespace infeng
