// The words that manifests and Python use for the numbers of infeng/abi.h.
#pragma once

#include <infeng/abi.h>

#include <string>
#include <string_view>
#include <vector>

namespace infeng {

enum class Vocabulary { op, weight, act, kv, epilogue, function, need, mask, dtype, numerics, kind };

// Throws Error "unknown_name" that lists the words of the vocabulary.
uint32_t number_of(Vocabulary vocabulary, std::string_view name);

// "unknown(7)" for a number without a word, so that a text can always be made.
std::string name_of(Vocabulary vocabulary, uint32_t number);

bool is_known(Vocabulary vocabulary, uint32_t number);

// Steps have one word for a kind and its function: "bias", "silu_mul" (gated), "gelu", "mul", "mul_sigmoid".
// Throws Error "unknown_name".
infeng_epilogue epilogue_of(std::string_view name);
std::string name_of(const infeng_epilogue& step);

// All steps of a mask of INFENG_EPILOGUE_BITs, with the functions that a mask of INFENG_NEED_BITs has, ascending.
std::vector<std::string> epilogue_names(uint32_t kinds, uint64_t handles);

// Words of INFENG_NEED_BITs that are no functions, ascending.
std::vector<std::string> need_names(uint64_t needs);

}  // namespace infeng
