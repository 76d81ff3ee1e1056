// Runs the executor with real kernels from many threads at once; meant for sanitizers (make sanitize).
//
// usage: native_stress libinfeng_reference.so
#include <infeng/extension/error.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>

#include "program/program.h"

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

// embed, norm + quantize, int4 qkv, rope, append, attention, f32 o + residual, head: every kind of op and operand, and
// all that adapters may change.
struct Model {
  std::shared_ptr<KvCache> cache = std::make_shared<KvCache>(INFENG_KV_INT8, 1, 16, kKvHeads, kHeadDim, kHeadDim, 16);
  Program program;
  int logits;

  explicit Model(std::shared_ptr<Pool> pool) : program(std::move(pool), {kRows, kRows, 4, kContext}) {
    program.open_adapters(INFENG_F32, 64, kRows);
    const int x = program.buffer(kHidden, false);
    const int normed = program.buffer(kHidden, false);
    const int q = program.activation(kHidden, false);
    const int qkv = program.buffer(kQkv, false);
    const int attended = program.buffer(kHidden, false);
    const int y = program.buffer(kHidden, true);
    logits = program.buffer(kVocab, true);
    program.embed(bind("embed_f32"), weight(INFENG_WEIGHT_F32, kVocab, kHidden, 1), x, "embed");
    program.epilogue(bind("epilogue"), x, kHidden, x,
                     {{INFENG_EPILOGUE_LORA, program.embedding_slot(kVocab, kHidden / kPanel), {}}});
    program.rmsnorm(bind("rmsnorm"), x, constant(kHidden, 1.0f), 1e-5f, normed, {{INFENG_EPILOGUE_QUANTIZE, q, {}}}, {},
                    "norm");
    const int qkv_slot = program.shrink(bind("shrink_f32"), "qkv", normed, kHidden, kQkv / kPanel);
    program.linear(bind("linear_int4g64"), weight(INFENG_WEIGHT_INT4_G64, kQkv, kHidden, 2), q, qkv,
                   {{INFENG_EPILOGUE_LORA, qkv_slot, {}}, {INFENG_EPILOGUE_BIAS, -1, constant(kQkv, 0.1f)}});
    const int64_t k = kHeads * kHeadDim;
    program.rope(bind("rope"), qkv, kHeads, kKvHeads, kHeadDim, k, constant(kContext * 8, 0.8f),
                 constant(kContext * 8, 0.6f), kContext);
    program.kv_append(bind("kv_append_int8"), qkv, cache, 0, k, k + kKvHeads * kHeadDim);
    AttentionSpec attention;
    attention.heads = kHeads;
    attention.scale = 0.25f;
    program.attention(bind("attention_int8"), qkv, cache, 0, attended, attention, {});
    const int o_slot = program.shrink(bind("shrink_f32"), "o", attended, kHidden, kHidden / kPanel);
    program.linear(bind("linear_f32"), weight(INFENG_WEIGHT_F32, kHidden, kHidden, 3), attended, x,
                   {{INFENG_EPILOGUE_LORA, o_slot, {}}, {INFENG_EPILOGUE_RESIDUAL, x, {}}});
    program.rmsnorm(bind("rmsnorm"), x, constant(kHidden, 1.0f), 1e-5f, y, {}, {.gather = true}, "final_norm");
    const int head_slot = program.shrink(bind("shrink_f32"), "head", y, kHidden, kVocab / kPanel);
    program.linear(bind("linear_f32"), weight(INFENG_WEIGHT_F32, kVocab, kHidden, 4), y, logits,
                   {{INFENG_EPILOGUE_LORA, head_slot, {}}}, "head");
    program.finish();
  }

  // One sequence of kRows tokens in chunks of `chunk`, with adapters on its rows; returns all logits.
  std::vector<float> run(int chunk, const std::vector<AdapterRows>& adapters = {}) {
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
      std::vector<AdapterRows> here;
      for (AdapterRows each : adapters) {
        each.begin = std::max(each.begin - begin, 0);
        each.end = std::min(each.end - begin, rows);
        if (each.begin < each.end) here.push_back(each);
      }
      program.run({tokens, positions, segment, table, samples, here});
      const Value& value = program.value(logits);
      for (int32_t r = 0; r < rows; ++r) {
        out.insert(out.end(), value.x + r * value.stride, value.x + r * value.stride + kVocab);
      }
    }
    return out;
  }
};

using AdapterPtr = std::shared_ptr<const Adapter>;

// An adapter of a seed: products everywhere, and with an odd one modules of its own and DoRA's scales.
AdapterPtr adapter(const Program& program, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> value(-0.2f, 0.2f);
  std::vector<std::vector<float>> memory;
  const auto floats = [&](int64_t count) {
    std::vector<float>& made = memory.emplace_back(static_cast<size_t>(count));
    std::generate(made.begin(), made.end(), [&] { return value(random); });
    return Bytes{made.data(), count * 4};
  };
  const int64_t rank = 3 + seed % 14;
  const auto part = [&](int64_t panels) {
    AdapterSpec::Part out;
    out.rank = rank;
    out.panels = panels;
    out.b = floats(panels * kPanel * rank);
    if (seed % 2 == 1) out.row_scale = floats(panels * kPanel);
    return out;
  };
  AdapterSpec spec;
  spec.dtype = INFENG_F32;
  for (const auto& [name, outputs] : {std::pair{"qkv", kQkv}, {"o", kHidden}, {"head", kVocab}}) {
    const int64_t rows = round_up(rank, kPanel);
    spec.tensors.push_back({name,
                            rank,
                            floats(rows / kPanel * panel_bytes_of(INFENG_WEIGHT_F32, kHidden) / 4),
                            floats(rows),
                            {part(outputs / kPanel)}});
  }
  spec.embedding = AdapterSpec::Embedding{rank, floats(kVocab * rank), 0.5f, part(kHidden / kPanel)};
  if (seed % 2 == 1) {
    spec.saved_tensors.push_back({"embed", weight(INFENG_WEIGHT_F32, kVocab, kHidden, seed)});
    spec.saved_tensors.push_back({"head", weight(INFENG_WEIGHT_F32, kVocab, kHidden, seed + 1)});
    spec.saved_vectors.push_back({"norm", floats(kHidden)});
    spec.saved_vectors.push_back({"final_norm", floats(kHidden)});
  }
  return std::make_shared<Adapter>(program, spec);
}

constexpr int kKinds = 5;

// Ways in which a sequence may use adapters of seeds 1 to 4.
std::vector<AdapterRows> kind_of(int kind, const std::vector<AdapterPtr>& a) {
  switch (kind) {
    case 0:
      return {{0, kRows, 1, a[0]}};
    case 1:
      return {{5, 17, 0.5f, a[1]}, {17, 18, 1, a[2]}, {20, kRows, -1, a[3]}};
    case 2:
      return {{0, 31, 1, a[0]}, {0, 31, 0.25f, a[1]}, {33, 37, 2, a[3]}, {33, 37, 1, a[1]}};
    case 3:
      return {{kRows - 1, kRows, 1, a[2]}};
    default:
      return {};
  }
}

std::vector<AdapterPtr> adapters_of(const Program& program) {
  std::vector<AdapterPtr> made;
  for (unsigned seed = 1; seed <= 4; ++seed) made.push_back(adapter(program, seed));
  return made;
}

// Adapters are made and dropped by two threads while steps use them, and a step holds the last reference.
void attach_and_drop(const std::vector<std::vector<float>>& expected) {
  Model model(std::make_shared<Pool>(3, false, 20));
  std::vector<AdapterPtr> current = adapters_of(model.program);
  std::mutex mutex;
  std::atomic<bool> done{false};
  std::vector<std::thread> makers;
  for (unsigned thread = 0; thread < 2; ++thread) {
    makers.emplace_back([&, thread] {
      for (unsigned round = 0; !done; ++round) {
        const unsigned seed = 1 + (round * 2 + thread) % 4;
        AdapterPtr fresh = adapter(model.program, seed);
        const std::lock_guard lock(mutex);
        current[seed - 1].swap(fresh);
      }
    });
  }
  for (int round = 0; round < 25; ++round) {
    const int kind = round % kKinds;
    std::vector<AdapterRows> rows;
    {
      const std::lock_guard lock(mutex);
      rows = kind_of(kind, current);
    }
    const int chunk = round % 3 == 0 ? kRows : 7 + round;
    expect(model.run(chunk, rows) == expected[static_cast<size_t>(kind)], "a swap of adapters changed the logits");
  }
  done = true;
  for (std::thread& maker : makers) maker.join();
}

// Arrays of nonsense: run either works or throws an Error.
void fuzz(Model& model, unsigned seed, int rounds) {
  std::mt19937 random(seed);
  const std::vector<AdapterPtr> made = adapters_of(model.program);
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
    std::vector<AdapterRows> adapters;
    for (size_t i = random() % 4, row = 0; i-- > 0; row += random() % 3) {
      const auto begin = static_cast<int32_t>(random() % 8 ? row : random() % 9);
      adapters.push_back({begin, begin + static_cast<int32_t>(random() % 3), random() % 4 ? 1 : 0.5f,
                          random() % 16 ? made[random() % 4] : nullptr});
    }
    try {
      model.program.run(
          {array(rows, 3), positions, segments, array(random() % 4, 2), array(random() % 5, 0), adapters});
    } catch (const Error& error) {
      expect(error.code() == "invalid_argument", error.what());
    }
  }
}

// Blocks that steps do not use are copied to and fro by a thread while they run, and those that they use are read.
void move_blocks(const std::vector<float>& expected) {
  Model model(std::make_shared<Pool>(3, false, 20));
  KvCache& cache = *model.cache;
  std::atomic<bool> done{false};
  std::thread mover([&] {
    std::mt19937 random(7);
    std::vector<std::byte> data(static_cast<size_t>(3 * cache.block_bytes()));
    const std::vector<int32_t> used{5, 0, 9}, free{1, 2, 3}, others{4, 6, 7};
    while (!done) {
      model.program.between_steps([&] { cache.read_blocks(used, data.data(), cache.block_bytes()); });
      model.program.between_steps([&] { cache.write_blocks(free, data.data(), cache.block_bytes()); });
      model.program.between_steps([&] { cache.copy_blocks(free, others); });
      const std::vector<int32_t> odd{static_cast<int32_t>(random() % 20) - 2};
      const bool exists = odd[0] >= 0 && odd[0] < 16;
      try {
        model.program.between_steps([&] { cache.read_blocks(odd, data.data(), cache.block_bytes()); });
        expect(exists, "a block that does not exist was read");
      } catch (const Error& error) {
        expect(!exists && error.code() == "invalid_argument", error.what());
      }
    }
  });
  for (int chunk : {40, 7, 1, 16, 40}) expect(model.run(chunk) == expected, "moving blocks changed the logits");
  done = true;
  mover.join();
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

// Phases of all workers and phases of one that lends the others in turn; every worker counts each of its shares.
class Lender final : public Job {
 public:
  Lender(Pool& pool, int phases) : pool_(pool), left_(phases), counts_(static_cast<size_t>(pool.threads())) {}

  Next advance(int) override {
    if (left_-- == 0) return Next::end;
    is_alone_ = left_ % 2 != 0;
    return is_alone_ && pool_.threads() > 1 ? Next::alone : Next::everyone;
  }
  void work(int worker) override {
    if (!is_alone_) return count(this, worker);
    for (int i = 0; i < 3; ++i) pool_.lend(&Lender::count, this);
  }
  bool counted(int64_t times) const {
    return std::all_of(counts_.begin(), counts_.end(), [&](int64_t count) { return count == times; });
  }

 private:
  static void count(void* self, int worker) { ++static_cast<Lender*>(self)->counts_[static_cast<size_t>(worker)]; }

  Pool& pool_;
  int left_;
  bool is_alone_ = false;
  std::vector<int64_t> counts_;  // plain numbers: a phase and a loan must each be seen as ended by the next
};

void lend_workers() {
  for (int threads = 1; threads <= 5; ++threads) {
    for (int spin : {0, 50}) {
      Pool pool(threads, false, spin);
      for (int phases : {1, 2, 400}) {
        Lender job(pool, phases);
        pool.run(pool.lock(), job);
        expect(job.counted((phases + 1) / 2 + 3 * (phases / 2)),
               "a worker missed its share of a loan, or had it twice");
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    reference = open_library(argv[1], "");
    Model alone(std::make_shared<Pool>(1, false, 0));
    const std::vector<float> expected = alone.run(kRows);
    std::vector<std::vector<float>> adapted;
    for (int kind = 0; kind < kKinds; ++kind) {
      adapted.push_back(alone.run(kRows, kind_of(kind, adapters_of(alone.program))));
      expect((adapted.back() == expected) == (kind == kKinds - 1), "adapters change nothing, or too much");
    }
    for (int threads = 1; threads <= 4; ++threads) {
      for (int spin : {0, 50}) {
        Model model(std::make_shared<Pool>(threads, spin == 0, spin));
        model.program.profile(threads % 2 == 0, 100, {});
        for (int chunk : {40, 13, 1}) expect(model.run(chunk) == expected, "threads or chunks changed the logits");
        const std::vector<AdapterPtr> made = adapters_of(model.program);
        for (int chunk : {40, 13, 1}) {
          for (size_t kind = 0; kind < kKinds; ++kind) {
            expect(model.run(chunk, kind_of(static_cast<int>(kind), made)) == adapted[kind],
                   "threads or chunks changed the logits of adapters");
          }
        }
        fuzz(model, static_cast<unsigned>(threads), 300);
      }
    }
    lend_workers();
    share_a_pool(expected);
    move_blocks(expected);
    attach_and_drop(adapted);
    for (int i = 0; i < 100; ++i) Pool(1 + i % 4, false, i % 2 * 50);
  } catch (const Error& error) {
    expect(false, error.what());
  }
  std::printf("native_stress: %s\n", problems == 0 ? "ok" : "FAILED");
  return problems == 0 ? 0 : 1;
}
