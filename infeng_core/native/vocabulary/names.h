// The names that manifests and Python use for the numbers of infeng/abi.h.
#pragma once

#include <infeng/abi.h>

#include <string>
#include <string_view>
#include <vector>

namespace infeng {

enum class Vocabulary { op, weight, act, kv, epilogue, function, need, mask, dtype, numerics, kind };

// Throws Error "unknown_name", whose text lists the known names.
uint32_t number_of(Vocabulary vocabulary, std::string_view name);

// Returns "unknown(7)" for a number without a name, so that error messages can always be made.
std::string name_of(Vocabulary vocabulary, uint32_t number);

bool is_known(Vocabulary vocabulary, uint32_t number);

// A step's name stands for its kind and its function: "bias", "silu_mul" (gated), "gelu", "mul", "mul_sigmoid".
// Throws Error "unknown_name".
infeng_epilogue epilogue_of(std::string_view name);
std::string name_of(const infeng_epilogue& step);

// Names of the steps in `kinds`, a mask of INFENG_EPILOGUE_BITs, with the functions in `handles`, a mask of
// INFENG_NEED_BITs; ascending.
std::vector<std::string> epilogue_names(uint32_t kinds, uint64_t handles);

// Names of a mask of INFENG_NEED_BITs without those of functions; ascending.
std::vector<std::string> need_names(uint64_t needs);

}  // namespace infeng
