#include "vocabulary/names.h"

#include <infeng/extension/error.h>

#include <optional>

#include "vocabulary/cache_formats.h"
#include "vocabulary/op_kinds.h"
#include "weights/formats.h"

namespace infeng {
namespace {

struct Word {
  uint32_t number;
  const char* name;
};

constexpr Word kActs[] = {{INFENG_ACT_F32, "f32"},
                          {INFENG_ACT_INT8_G64, "int8-g64"},
                          {INFENG_ACT_INT8_G128, "int8-g128"},
                          {INFENG_ACT_INT8_G256, "int8-g256"},
                          {INFENG_ACT_INT8_ROW, "int8-row"}};
constexpr Word kEpilogues[] = {{INFENG_EPILOGUE_BIAS, "bias"},           {INFENG_EPILOGUE_LORA, "lora"},
                               {INFENG_EPILOGUE_ROW_SCALE, "row_scale"}, {INFENG_EPILOGUE_RESIDUAL, "residual"},
                               {INFENG_EPILOGUE_GATED_MUL, "gated_mul"}, {INFENG_EPILOGUE_QUANTIZE, "quantize"},
                               {INFENG_EPILOGUE_SCALE, "scale"},         {INFENG_EPILOGUE_SOFTCAP, "softcap"},
                               {INFENG_EPILOGUE_ACTIVATE, "activate"},   {INFENG_EPILOGUE_MUL, "mul"}};
constexpr Word kFunctions[] = {
    {INFENG_FUNCTION_IDENTITY, "identity"},   {INFENG_FUNCTION_SILU, "silu"},   {INFENG_FUNCTION_GELU, "gelu"},
    {INFENG_FUNCTION_GELU_TANH, "gelu_tanh"}, {INFENG_FUNCTION_RELU2, "relu2"}, {INFENG_FUNCTION_SIGMOID, "sigmoid"},
    {INFENG_FUNCTION_SWIGLU, "swiglu"},       {INFENG_FUNCTION_WIDE, "wide"},   {INFENG_FUNCTION_ROW, "row"}};
constexpr Word kNeeds[] = {{INFENG_NEED_WINDOW, "window"},
                           {INFENG_NEED_SOFTCAP, "softcap"},
                           {INFENG_NEED_SINKS, "sinks"},
                           {INFENG_NEED_ALIBI, "alibi"},
                           {INFENG_NEED_MASK, "mask"},
                           {INFENG_NEED_HEAD_SIZES, "head_sizes"},
                           {INFENG_NEED_ROW_GATHER, "row_gather"},
                           {INFENG_NEED_NORM_HEADS, "norm_heads"},
                           {INFENG_NEED_NORM_PLAIN, "norm_plain"},
                           {INFENG_NEED_NORM_OFFSET, "norm_offset"},
                           {INFENG_NEED_ROPE_NORM, "rope_norm"},
                           {INFENG_NEED_ROPE_SCALE, "rope_scale"},
                           {INFENG_NEED_LORA_F32, "lora_f32"},
                           {INFENG_NEED_LORA_BF16, "lora_bf16"},
                           {INFENG_NEED_LORA_I8, "lora_int8"},
                           {INFENG_NEED_LORA_I8T4, "lora_int8t4"}};
constexpr Word kMasks[] = {{INFENG_MASK_CAUSAL, "causal"}, {INFENG_MASK_FULL, "full"}};
constexpr Word kDtypes[] = {{INFENG_F32, "f32"}, {INFENG_BF16, "bf16"}, {INFENG_I8, "int8"}, {INFENG_I8T4, "int8t4"}};
constexpr Word kNumerics[] = {{INFENG_NUMERICS_EXACT, "exact"}, {INFENG_NUMERICS_APPROX, "approx"}};
constexpr Word kKernelKinds[] = {{INFENG_KIND_TILES, "tiles"}, {INFENG_KIND_WHOLE, "whole"}};

// Names of cache formats come from their descriptors.
template <class Described>
std::vector<Word> words_of(const Described& all) {
  std::vector<Word> words;
  for (const auto& each : all) words.push_back({each.number, each.name});
  return words;
}

struct Section {
  const char* title;
  std::vector<Word> words;
};

// Indexed by Vocabulary. Libraries may add ops and weight formats, so each_word() looks them up each time.
const std::vector<Section>& sections() {
  const auto listed = [](const auto& words) { return std::vector<Word>(std::begin(words), std::end(words)); };
  static const auto& all = *new std::vector<Section>{
      {"op", {}},
      {"weight format", {}},
      {"activation type", listed(kActs)},
      {"cache format", words_of(cache_formats())},
      {"epilogue", listed(kEpilogues)},
      {"function", listed(kFunctions)},
      {"need", listed(kNeeds)},
      {"mask", listed(kMasks)},
      {"storage of adapters", listed(kDtypes)},
      {"numerics class", listed(kNumerics)},
      {"kernel kind", listed(kKernelKinds)},
  };
  return all;
}

// Calls found(word) for each word until it returns true.
template <class Found>
void each_word(Vocabulary vocabulary, const Found& found) {
  if (vocabulary == Vocabulary::op) {
    for (const OpKind* kind : all_op_kinds()) {
      if (found(Word{kind->number, kind->name})) return;
    }
  }
  if (vocabulary == Vocabulary::weight) {
    for (const WeightFormat* format : all_formats()) {
      if (found(Word{format->abi.number, format->abi.name})) return;
    }
  }
  for (const Word& word : sections()[static_cast<size_t>(vocabulary)].words) {
    if (found(word)) return;
  }
}

// Whether a kind of step may have a function; docs/numerics.md lists the combinations.
bool may_have(uint32_t kind, uint32_t function) {
  if (function == INFENG_FUNCTION_WIDE || function == INFENG_FUNCTION_ROW) return kind == INFENG_EPILOGUE_QUANTIZE;
  if (kind == INFENG_EPILOGUE_GATED_MUL) return function != INFENG_FUNCTION_IDENTITY;
  if (kind == INFENG_EPILOGUE_MUL) return function != INFENG_FUNCTION_SWIGLU;
  if (kind != INFENG_EPILOGUE_ACTIVATE) return function == INFENG_FUNCTION_IDENTITY;
  return function != INFENG_FUNCTION_IDENTITY && function != INFENG_FUNCTION_SWIGLU;
}

// Calls found(kind, function) for every step.
template <class Found>
void each_step(const Found& found) {
  for (const Word& kind : kEpilogues) {
    for (const Word& function : kFunctions) {
      if (may_have(kind.number, function.number)) found(kind.number, function.number);
    }
  }
}

infeng_epilogue step_of(uint32_t kind, uint32_t function) {
  infeng_epilogue step{};
  step.struct_size = sizeof step;
  step.kind = kind;
  step.function = function;
  return step;
}

}  // namespace

uint32_t number_of(Vocabulary vocabulary, std::string_view name) {
  std::string known;
  std::optional<uint32_t> found;
  each_word(vocabulary, [&](const Word& word) {
    known += (known.empty() ? "" : ", ") + std::string(word.name);
    if (name != word.name) return false;
    found = word.number;
    return true;
  });
  if (!found) {
    const char* title = sections()[static_cast<size_t>(vocabulary)].title;
    fail("unknown_name", "unknown ", title, " \"", name, "\"; known are ", known);
  }
  return *found;
}

std::string name_of(Vocabulary vocabulary, uint32_t number) {
  std::string name;
  each_word(vocabulary, [&](const Word& word) {
    if (number == word.number) name = word.name;
    return number == word.number;
  });
  return name.empty() ? "unknown(" + std::to_string(number) + ")" : name;
}

bool is_known(Vocabulary vocabulary, uint32_t number) {
  bool known = false;
  each_word(vocabulary, [&](const Word& word) { return known = word.number == number; });
  return known;
}

std::string name_of(const infeng_epilogue& step) {
  const std::string function = name_of(Vocabulary::function, step.function);
  switch (step.kind) {
    case INFENG_EPILOGUE_GATED_MUL:
      return function + "_mul";
    case INFENG_EPILOGUE_ACTIVATE:
      return function;
    case INFENG_EPILOGUE_MUL:
      return step.function == INFENG_FUNCTION_IDENTITY ? "mul" : "mul_" + function;
    case INFENG_EPILOGUE_QUANTIZE:
      return step.function == INFENG_FUNCTION_IDENTITY ? "quantize" : "quantize_" + function;
    default:
      return name_of(Vocabulary::epilogue, step.kind);
  }
}

infeng_epilogue epilogue_of(std::string_view name) {
  infeng_epilogue result{};
  std::string known;
  each_step([&](uint32_t kind, uint32_t function) {
    const infeng_epilogue step = step_of(kind, function);
    if (name == name_of(step)) result = step;
    known += (known.empty() ? "" : ", ") + name_of(step);
  });
  if (result.kind == 0) fail("unknown_name", "unknown epilogue \"", name, "\"; known are ", known);
  return result;
}

std::vector<std::string> epilogue_names(uint32_t kinds, uint64_t handles) {
  std::vector<std::string> names;
  each_step([&](uint32_t kind, uint32_t function) {
    const bool known = function == 0 || (handles & INFENG_NEED_BIT(INFENG_NEED_FUNCTION(function))) != 0;
    if ((kinds & INFENG_EPILOGUE_BIT(kind)) && known) names.push_back(name_of(step_of(kind, function)));
  });
  return names;
}

std::vector<std::string> need_names(uint64_t needs) {
  std::vector<std::string> names;
  for (uint32_t need = 0; need < INFENG_NEED_FUNCTION(0); ++need) {
    if (needs & INFENG_NEED_BIT(need)) names.push_back(name_of(Vocabulary::need, need));
  }
  return names;
}

}  // namespace infeng
