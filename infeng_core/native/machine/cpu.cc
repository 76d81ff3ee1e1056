// CPU features. CPUID tells what the processor supports, XCR0 which registers the operating system saves on a context
// switch. A feature needs both: code that trusts CPUID alone dies with SIGILL if a kernel or hypervisor masks the
// state.
#include "machine/cpu.h"

#include <cerrno>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace infeng {
namespace {

#if defined(__x86_64__) || defined(__i386__)

struct Registers {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(uint32_t leaf, uint32_t subleaf = 0) {
  Registers r;
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}

uint64_t read_xcr0() {
  uint32_t low = 0;
  uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

// Linux (since 5.16) grants the 8 KB of tile state only to a process that asks for it.
bool ask_for_amx() {
#if defined(__linux__) && defined(__x86_64__)
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

enum Register { kLeaf1C, kLeaf7B, kLeaf7C, kLeaf7D, kLeaf71A };  // leaf and register, such as ECX of leaf 1
enum State { kNone, kYmm, kZmm, kTiles };

// Bit positions: Intel SDM volume 2A, CPUID. `needs`: the feature on which the instruction encoding builds.
struct Feature {
  const char* name;
  Register where;
  int bit;
  State state;
  const char* needs;
};
constexpr Feature kFeatures[] = {
    {"avx", kLeaf1C, 28, kYmm, nullptr},
    {"avx2", kLeaf7B, 5, kYmm, "avx"},
    {"fma", kLeaf1C, 12, kYmm, "avx"},
    {"f16c", kLeaf1C, 29, kYmm, "avx"},
    {"bmi2", kLeaf7B, 8, kNone, nullptr},
    {"avx512f", kLeaf7B, 16, kZmm, "avx2"},
    {"avx512bw", kLeaf7B, 30, kZmm, "avx512f"},
    {"avx512vl", kLeaf7B, 31, kZmm, "avx512f"},
    {"avx512dq", kLeaf7B, 17, kZmm, "avx512f"},
    {"avx512cd", kLeaf7B, 28, kZmm, "avx512f"},
    {"avx512_vnni", kLeaf7C, 11, kZmm, "avx512f"},
    {"avx512_vbmi", kLeaf7C, 1, kZmm, "avx512bw"},
    {"avx512_bf16", kLeaf71A, 5, kZmm, "avx512f"},
    {"avx512_fp16", kLeaf7D, 23, kZmm, "avx512bw"},
    {"gfni", kLeaf7C, 8, kYmm, "avx"},
    {"avx_vnni", kLeaf71A, 4, kYmm, "avx2"},
    {"amx_tile", kLeaf7D, 24, kTiles, nullptr},
    {"amx_int8", kLeaf7D, 25, kTiles, "amx_tile"},
    {"amx_bf16", kLeaf7D, 22, kTiles, "amx_tile"},
};

bool contains(const std::vector<std::string>& list, const char* name) {
  for (const std::string& item : list) {
    if (item == name) return true;
  }
  return false;
}

// Why the register state of a feature is not usable; NULL if it is.
const char* state_problem(State state, bool osxsave, uint64_t xcr0) {
  const auto saves = [xcr0](uint64_t bits) { return (xcr0 & bits) == bits; };
  if (state == kNone) return nullptr;
  if (!osxsave) return "the operating system does not use XSAVE";
  if (state == kYmm && !saves(0x6)) {
    return "the operating system does not save the 256-bit registers (XCR0 bits 1 and 2)";
  }
  if (state == kZmm && !saves(0xE6)) {
    return "the operating system does not save the 512-bit registers (XCR0 bits 5, 6 and 7)";
  }
  if (state == kTiles && !saves(0x60000)) {
    return "the operating system does not save tile registers (XCR0 bits 17 and 18)";
  }
  if (state == kTiles && !ask_for_amx()) {
    return "the kernel refused the permission to use tiles (arch_prctl ARCH_REQ_XCOMP_PERM)";
  }
  return nullptr;
}

void detect_features(CpuInfo& info) {
  const uint32_t top = cpuid(0).eax;
  const Registers leaf1 = cpuid(1);
  const Registers leaf7 = top >= 7 ? cpuid(7, 0) : Registers{};
  const Registers leaf71 = top >= 7 && leaf7.eax >= 1 ? cpuid(7, 1) : Registers{};
  const bool osxsave = (leaf1.ecx >> 27 & 1) != 0;
  const uint64_t xcr0 = osxsave ? read_xcr0() : 0;
  const uint32_t registers[] = {leaf1.ecx, leaf7.ebx, leaf7.ecx, leaf7.edx, leaf71.eax};  // in the order of Register
  for (const Feature& feature : kFeatures) {
    if ((registers[feature.where] >> feature.bit & 1) == 0) continue;
    if (const char* problem = state_problem(feature.state, osxsave, xcr0)) {
      info.masked[feature.name] = problem;
    } else if (feature.needs != nullptr && !contains(info.features, feature.needs)) {
      info.masked[feature.name] = std::string("it needs ") + feature.needs + ", which is not usable here";
    } else {
      info.features.emplace_back(feature.name);
    }
  }
}

void detect_names(CpuInfo& info) {
  const Registers leaf0 = cpuid(0);
  char vendor[13] = {};
  std::memcpy(vendor, &leaf0.ebx, 4);
  std::memcpy(vendor + 4, &leaf0.edx, 4);
  std::memcpy(vendor + 8, &leaf0.ecx, 4);
  info.vendor = vendor;
  if (cpuid(0x80000000).eax < 0x80000004) return;
  char brand[49] = {};
  for (uint32_t i = 0; i < 3; ++i) {
    const Registers r = cpuid(0x80000002 + i);
    std::memcpy(brand + 16 * i, &r, 16);
  }
  info.model = brand + std::strspn(brand, " ");
  while (!info.model.empty() && info.model.back() == ' ') info.model.pop_back();
}

#endif

}  // namespace

CpuInfo detect_cpu() {
  CpuInfo info;
#if defined(__x86_64__) || defined(__i386__)
#if defined(__x86_64__)
  info.arch = "x86_64";
#else
  info.arch = "i386";
#endif
  detect_names(info);
  detect_features(info);
#elif defined(__aarch64__)
  info.arch = "aarch64";
#if defined(__linux__)
  // Values: Linux arch/arm64/include/uapi/asm/hwcap.h.
  const unsigned long hwcap = getauxval(AT_HWCAP);
  const unsigned long hwcap2 = getauxval(AT_HWCAP2);
  if (hwcap & (1UL << 1)) info.features.emplace_back("neon");
  if (hwcap & (1UL << 20)) info.features.emplace_back("dotprod");
  if (hwcap2 & (1UL << 13)) info.features.emplace_back("i8mm");
  if (hwcap & (1UL << 22)) info.features.emplace_back("sve");
#else
  info.features.emplace_back("neon");  // part of every 64-bit Arm processor that runs macOS
#endif
#elif defined(__riscv)
  info.arch = "riscv64";
#elif defined(__powerpc64__)
  info.arch = "ppc64";
#elif defined(__s390x__)
  info.arch = "s390x";
#else
  info.arch = "unknown";
#endif
  return info;
}

}  // namespace infeng
