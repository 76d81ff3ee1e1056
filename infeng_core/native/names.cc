#include "names.h"

#include <algorithm>
#include <span>

#include "error.h"

namespace infeng {
namespace {

struct Word {
  uint32_t number;
  const char* name;
};

constexpr Word kOps[] = {{INFENG_OP_EMBED, "embed"},         {INFENG_OP_RMSNORM, "rmsnorm"},
                         {INFENG_OP_LINEAR, "linear"},       {INFENG_OP_EPILOGUE, "epilogue"},
                         {INFENG_OP_ROPE, "rope"},           {INFENG_OP_KV_APPEND, "kv_append"},
                         {INFENG_OP_ATTENTION, "attention"}, {INFENG_OP_SHRINK, "shrink"}};
constexpr Word kWeights[] = {{INFENG_WEIGHT_F32, "f32"},
                             {INFENG_WEIGHT_BF16, "bf16"},
                             {INFENG_WEIGHT_INT8_ROW, "int8-row"},
                             {INFENG_WEIGHT_INT4_G64, "int4-g64"},
                             {INFENG_WEIGHT_INT4_G32, "int4-g32"},
                             {INFENG_WEIGHT_FP8_E4M3, "fp8-e4m3"},
                             {INFENG_WEIGHT_INT4_G64_ZP, "int4-g64-zp"}};
constexpr Word kActs[] = {{INFENG_ACT_F32, "f32"}, {INFENG_ACT_INT8_G64, "int8-g64"}};
constexpr Word kKvs[] = {{INFENG_KV_F32, "f32"},
                         {INFENG_KV_F16, "f16"},
                         {INFENG_KV_INT8, "int8"},
                         {INFENG_KV_FP8, "fp8"},
                         {INFENG_KV_INT4, "int4"}};
constexpr Word kEpilogues[] = {{INFENG_EPILOGUE_BIAS, "bias"},           {INFENG_EPILOGUE_LORA, "lora"},
                               {INFENG_EPILOGUE_ROW_SCALE, "row_scale"}, {INFENG_EPILOGUE_RESIDUAL, "residual"},
                               {INFENG_EPILOGUE_SILU_MUL, "silu_mul"},   {INFENG_EPILOGUE_QUANTIZE, "quantize"}};
constexpr Word kDtypes[] = {{INFENG_F32, "f32"}, {INFENG_BF16, "bf16"}, {INFENG_I8, "int8"}};
constexpr Word kNumerics[] = {{INFENG_NUMERICS_EXACT, "exact"}, {INFENG_NUMERICS_APPROX, "approx"}};
constexpr Word kKinds[] = {{INFENG_KIND_TILES, "tiles"}, {INFENG_KIND_WHOLE, "whole"}};

std::span<const Word> words(Vocabulary vocabulary) {
  switch (vocabulary) {
    case Vocabulary::op:
      return kOps;
    case Vocabulary::weight:
      return kWeights;
    case Vocabulary::act:
      return kActs;
    case Vocabulary::kv:
      return kKvs;
    case Vocabulary::epilogue:
      return kEpilogues;
    case Vocabulary::dtype:
      return kDtypes;
    case Vocabulary::numerics:
      return kNumerics;
    case Vocabulary::kind:
      return kKinds;
  }
  return {};
}

const char* title(Vocabulary vocabulary) {
  switch (vocabulary) {
    case Vocabulary::op:
      return "op";
    case Vocabulary::weight:
      return "weight format";
    case Vocabulary::act:
      return "activation type";
    case Vocabulary::kv:
      return "cache format";
    case Vocabulary::epilogue:
      return "epilogue";
    case Vocabulary::dtype:
      return "storage of adapters";
    case Vocabulary::numerics:
      return "numerics class";
    case Vocabulary::kind:
      return "kernel kind";
  }
  return "name";
}

}  // namespace

uint32_t number_of(Vocabulary vocabulary, std::string_view name) {
  std::string known;
  for (const Word& word : words(vocabulary)) {
    if (name == word.name) return word.number;
    known += (known.empty() ? "" : ", ") + std::string(word.name);
  }
  fail("unknown_name", "unknown ", title(vocabulary), " \"", name, "\"; known are ", known);
}

std::string name_of(Vocabulary vocabulary, uint32_t number) {
  for (const Word& word : words(vocabulary)) {
    if (number == word.number) return word.name;
  }
  return "unknown(" + std::to_string(number) + ")";
}

bool is_known(Vocabulary vocabulary, uint32_t number) {
  auto all = words(vocabulary);
  return std::any_of(all.begin(), all.end(), [number](const Word& word) { return word.number == number; });
}

std::vector<std::string> epilogue_names(uint32_t mask) {
  std::vector<std::string> names;
  for (uint32_t kind = 1; kind < 32; ++kind) {
    if (mask & INFENG_EPILOGUE_BIT(kind)) names.push_back(name_of(Vocabulary::epilogue, kind));
  }
  return names;
}

const char* status_code(infeng_status status) {
  switch (status) {
    case INFENG_OK:
      return "ok";
    case INFENG_UNIMPLEMENTED:
      return "unimplemented";
    case INFENG_INVALID_ARGUMENT:
      return "invalid_argument";
    case INFENG_UNSUPPORTED_ABI:
      return "unsupported_abi";
    case INFENG_OUT_OF_RANGE:
      return "out_of_range";
    case INFENG_NOT_FINITE:
      return "not_finite";
    default:
      return "internal";
  }
}

}  // namespace infeng
