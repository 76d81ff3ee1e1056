// Runs the executor with real kernels from many threads at once; meant for sanitizers (make sanitize).
//
// usage: native_stress libinfeng_reference.so
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>

#include "error.h"
#include "program.h"

using namespace infeng;

namespace {

constexpr int64_t kHidden = 64, kHeads = 4, kKvHeads = 2, kHeadDim = 16, kVocab = 48, kContext = 128, kRows = 40;
constexpr int64_t kQkv = (kHeads + 2 * kKvHeads) * kHeadDim;

std::atomic<int> problems{0};

void expect(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "native_stress: %s\n", what);
  ++problems;
}

std::shared_ptr<const Library> reference;

Bindings bind(const char* name) {
  for (const auto& kernel : reference->kernels) {
    if (kernel->name == name) return {{kRows, kernel}};
  }
  fail("not_found", "no kernel ", name);
}

Constant constant(int64_t size, float value) {
  auto memory = std::make_shared<Bump>();
  auto* data = memory->take_array<float>(size);
  std::fill_n(data, size, value);
  return {data, size, memory};
}

std::shared_ptr<const Weight> weight(uint32_t format, int64_t n, int64_t k, unsigned seed) {
  const int64_t panels = n / kPanel;
  const int64_t bytes = panel_bytes_of(format, k);
  auto arena = std::make_shared<Arena>(panels * bytes);
  std::mt19937 random(seed);
  if (format == INFENG_WEIGHT_F32) {
    std::uniform_real_distribution<float> value(-0.2f, 0.2f);
    std::generate_n(reinterpret_cast<float*>(arena->data()), panels * bytes / 4, [&] { return value(random); });
  } else {
    std::generate_n(reinterpret_cast<uint8_t*>(arena->data()), panels * bytes, [&] { return uint8_t(random()); });
    for (int64_t p = 0; p < panels; ++p) {  // k is 64: one line of scales at the panel's head
      std::fill_n(reinterpret_cast<uint16_t*>(arena->data() + p * bytes), 32, uint16_t{0x211F});
    }
  }
  const void* data = arena->data();
  return make_weight(format, n, k, panels, bytes, data, arena->nbytes(), arena);
}

// embed, norm + quantize, int4 qkv, rope, append, attention, f32 o + residual, head: every kind of op and operand.
struct Model {
  std::shared_ptr<KvCache> cache = std::make_shared<KvCache>(INFENG_KV_INT8, 1, 16, kKvHeads, kHeadDim, 16);
  Program program;
  int logits;

  explicit Model(std::shared_ptr<Pool> pool) : program(std::move(pool), {kRows, kRows, 4, kContext}) {
    const int x = program.buffer(kHidden, false);
    const int q = program.activation(kHidden, false);
    const int qkv = program.buffer(kQkv, false);
    const int attended = program.buffer(kHidden, false);
    const int y = program.buffer(kHidden, true);
    logits = program.buffer(kVocab, true);
    program.embed(bind("embed_f32"), weight(INFENG_WEIGHT_F32, kVocab, kHidden, 1), x);
    program.rmsnorm(bind("rmsnorm"), x, constant(kHidden, 1.0f), 1e-5f, -1, {{INFENG_EPILOGUE_QUANTIZE, q, {}}}, false);
    program.linear(bind("linear_int4g64"), weight(INFENG_WEIGHT_INT4_G64, kQkv, kHidden, 2), q, qkv,
                   {{INFENG_EPILOGUE_BIAS, -1, constant(kQkv, 0.1f)}});
    const int64_t k = kHeads * kHeadDim;
    program.rope(bind("rope"), qkv, kHeads, kKvHeads, kHeadDim, k, constant(kContext * 8, 0.8f),
                 constant(kContext * 8, 0.6f), kContext);
    program.kv_append(bind("kv_append_int8"), qkv, cache, 0, k, k + kKvHeads * kHeadDim);
    program.attention(bind("attention_int8"), qkv, cache, 0, attended, kHeads, 0, 0.25f, {});
    program.linear(bind("linear_f32"), weight(INFENG_WEIGHT_F32, kHidden, kHidden, 3), attended, x,
                   {{INFENG_EPILOGUE_RESIDUAL, x, {}}});
    program.rmsnorm(bind("rmsnorm"), x, constant(kHidden, 1.0f), 1e-5f, y, {}, true);
    program.linear(bind("linear_f32"), weight(INFENG_WEIGHT_F32, kVocab, kHidden, 4), y, logits, {});
    program.finish();
  }

  // One sequence of kRows tokens in chunks of `chunk`; returns all logits.
  std::vector<float> run(int chunk) {
    std::vector<float> out;
    const int32_t table[] = {5, 0, 9};
    for (int32_t begin = 0; begin < kRows; begin += chunk) {
      const int32_t rows = std::min<int32_t>(chunk, kRows - begin);
      std::vector<int32_t> tokens, positions, samples;
      for (int32_t r = 0; r < rows; ++r) {
        tokens.push_back((begin + r) * 7 % kVocab);
        positions.push_back(begin + r);
        samples.push_back(r);
      }
      const int32_t segment[] = {0, rows, begin, 0};
      program.run({tokens, positions, segment, table, samples});
      const Value& value = program.value(logits);
      for (int32_t r = 0; r < rows; ++r) {
        out.insert(out.end(), value.x + r * value.stride, value.x + r * value.stride + kVocab);
      }
    }
    return out;
  }
};

// Arrays of nonsense: run either works or throws an Error.
void fuzz(Model& model, unsigned seed, int rounds) {
  std::mt19937 random(seed);
  const auto pick = [&](std::vector<int32_t> choices) { return choices[random() % choices.size()]; };
  for (int round = 0; round < rounds; ++round) {
    const auto array = [&](size_t size, int32_t usual) {
      std::vector<int32_t> values(size);
      for (int32_t& v : values)
        v = random() % 4 ? usual : pick({-1, 0, 1, 15, 16, 47, 48, 127, 128, INT32_MAX, INT32_MIN});
      return values;
    };
    const size_t rows = random() % 8;
    std::vector<int32_t> positions = array(rows, 0);
    for (size_t r = 0; r < rows; ++r) positions[r] = random() % 8 ? int32_t(r) : positions[r];
    std::vector<int32_t> segments = array(4 * (random() % 3), 0);
    if (segments.size() >= 4 && random() % 4) segments[1] = int32_t(rows);
    try {
      model.program.run({array(rows, 3), positions, segments, array(random() % 4, 2), array(random() % 5, 0)});
    } catch (const Error& error) {
      expect(error.code() == "invalid_argument", error.what());
    }
  }
}

void share_a_pool(const std::vector<float>& expected) {
  const auto pool = std::make_shared<Pool>(2, false, 20);
  std::vector<std::unique_ptr<Model>> models;
  for (int i = 0; i < 3; ++i) models.push_back(std::make_unique<Model>(pool));
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (auto& model : models) {
    threads.emplace_back([&expected, &model] {
      for (int chunk : {40, 7, 1, 16, 40}) {
        try {
          expect(model->run(chunk) == expected, "a neighbour or a thread changed the logits");
        } catch (const Error& error) {
          expect(error.code() == "cancelled", error.what());
        }
      }
    });
  }
  std::thread canceller([&] {
    while (!done) {
      models[0]->program.cancel();
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  canceller.join();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    reference = open_library(argv[1], "");
    const std::vector<float> expected = Model(std::make_shared<Pool>(1, false, 0)).run(kRows);
    for (int threads = 1; threads <= 4; ++threads) {
      for (int spin : {0, 50}) {
        Model model(std::make_shared<Pool>(threads, spin == 0, spin));
        model.program.profile(threads % 2 == 0, 100, {});
        for (int chunk : {40, 13, 1}) expect(model.run(chunk) == expected, "threads or chunks changed the logits");
        fuzz(model, static_cast<unsigned>(threads), 300);
      }
    }
    share_a_pool(expected);
    for (int i = 0; i < 100; ++i) Pool(1 + i % 4, false, i % 2 * 50);
  } catch (const Error& error) {
    expect(false, error.what());
  }
  std::printf("native_stress: %s\n", problems == 0 ? "ok" : "FAILED");
  return problems == 0 ? 0 : 1;
}
