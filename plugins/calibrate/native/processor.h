// Features of this processor, for code with variants for some instruction sets. All variants give equal bytes.
#pragma once

#include <cstdlib>
#include <initializer_list>
#include <string_view>

// Intrinsics, and GCC's pragmas that compile part of a file for another processor.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define INFENG_X86_PARTS 1
#else
#define INFENG_X86_PARTS 0
#endif

namespace infeng::calibration {

// Whether INFENG_CPU_FEATURES (docs/cli.md) disables one of these features.
inline bool is_masked(std::initializer_list<std::string_view> features) {
  const char* const text = std::getenv("INFENG_CPU_FEATURES");
  std::string_view rest = text == nullptr ? "" : text;
  while (!rest.empty()) {
    const size_t end = rest.find(',');
    std::string_view item = rest.substr(0, end);
    while (item.starts_with(' ')) item.remove_prefix(1);
    while (item.ends_with(' ')) item.remove_suffix(1);
    for (const std::string_view feature : features) {
      if (item.starts_with('-') && item.substr(1) == feature) return true;
    }
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
  return false;
}

#if INFENG_X86_PARTS
inline bool has_avx2() {
  static const bool known =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && !is_masked({"avx", "avx2", "fma"});
  return known;
}

inline bool has_avx512() {
  static const bool known = has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            !is_masked({"avx512f", "avx512bw"});
  return known;
}

inline bool has_vnni() {
  static const bool known = has_avx512() && __builtin_cpu_supports("avx512vnni") && !is_masked({"avx512_vnni"});
  return known;
}
#endif

}  // namespace infeng::calibration
