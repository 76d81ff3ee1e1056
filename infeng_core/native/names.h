// The words that manifests and Python use for the numbers of infeng/abi.h.
#pragma once

#include <infeng/abi.h>

#include <string>
#include <string_view>
#include <vector>

namespace infeng {

enum class Vocabulary { op, weight, act, kv, epilogue, dtype, numerics, kind };

// Throws Error "unknown_name" that lists the words of the vocabulary.
uint32_t number_of(Vocabulary vocabulary, std::string_view name);

// "unknown(7)" for a number without a word, so that a text can always be made.
std::string name_of(Vocabulary vocabulary, uint32_t number);

bool is_known(Vocabulary vocabulary, uint32_t number);

// Words of a mask of INFENG_EPILOGUE_BITs, in ascending order of the numbers.
std::vector<std::string> epilogue_names(uint32_t mask);

// The error code of an infeng_status, such as "not_finite".
const char* status_code(infeng_status status);

}  // namespace infeng
