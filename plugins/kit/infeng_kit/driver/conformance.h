// Runs every kernel of a library on random problems of awkward sizes and compares each result with the reference
// kernels', byte for byte. Prints one line per kernel. SPDX-License-Identifier: Apache-2.0
#pragma once

#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "cache.h"
#include "experts.h"
#include "rows.h"

inline void check(Checker& c) {
  switch (c.kernel.op) {
    case INFENG_OP_EMBED:
      return check_embed(c);
    case INFENG_OP_RMSNORM:
      return check_rmsnorm(c);
    case INFENG_OP_LAYERNORM:
      return check_layernorm(c);
    case INFENG_OP_LINEAR:
      return check_linear(c);
    case INFENG_OP_EPILOGUE:
      return check_epilogue(c);
    case INFENG_OP_ROPE:
      return check_rope(c);
    case INFENG_OP_KV_APPEND:
      return check_kv_append(c);
    case INFENG_OP_ATTENTION:
      return check_attention(c);
    case INFENG_OP_SHRINK:
      return check_shrink(c);
    case INFENG_OP_ROUTE:
      return check_route(c);
    case INFENG_OP_COMBINE:
      return check_combine(c);
  }
}

// Whether each of the `needed` features, separated by commas, is in the list `have`.
inline bool all_in(std::string needed, const std::string& have) {
  if (needed.empty()) return true;
  needed += ',';
  for (size_t begin = 0, end; (end = needed.find(',', begin)) != std::string::npos; begin = end + 1)
    if (("," + have + ",").find("," + needed.substr(begin, end - begin) + ",") == std::string::npos) return false;
  return true;
}

// Returns why a kernel is not compared here; "" for one that is.
inline std::string omission(const infeng_kernel& kernel, const std::string& features) {
  if (kernel.op >= INFENG_OP_FOREIGN) return "of an op of the library's own";
  if (kernel.numerics != INFENG_NUMERICS_EXACT) return "close results, not equal ones";
  if (!all_in(kernel.features, features)) return std::string("needs ") + kernel.features;
  return "";
}

// A process must request tiles with ARCH_REQ_XCOMP_PERM, as the core does. If Linux refuses, libraries with tiles are
// not run.
inline void ask_for_tiles() {
#if defined(__linux__) && defined(__x86_64__)
  syscall(SYS_arch_prctl, 0x1023, 18);
#endif
}

// Which kernels of a library are compared, and on how many of the cases.
struct Request {
  std::string features;  // of the processor, separated by commas
  double share = 1.0;
  std::string part;  // of the kernels' names
};

struct Outcome {
  int compared = 0;  // kernels
  int failures = 0;  // kernels that differ, or accept no case
};

inline Outcome conformance(const char* judge, const char* path, const Request& request) {
  ask_for_tiles();
  const Library reference(judge, ""), candidate(path, request.features.c_str());
  Outcome outcome;
  for (int32_t i = 0; i < candidate.desc.kernel_count; ++i) {
    const infeng_kernel& kernel = *candidate.desc.kernels[i];
    if (std::string(kernel.name).find(request.part) == std::string::npos) continue;
    if (const std::string why = omission(kernel, request.features); !why.empty()) {
      printf("%-28s skipped: %s\n", kernel.name, why.c_str());
      continue;
    }
    Checker checker{reference, kernel, request.share};
    check(checker);
    printf("%-28s %d of %d cases equal\n", kernel.name, checker.cases - checker.failures, checker.cases);
    fflush(stdout);
    ++outcome.compared;
    outcome.failures += checker.failures || !checker.cases;
  }
  return outcome;
}
