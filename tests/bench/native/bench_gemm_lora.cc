// Linears with adapters on one thread, measured by Google Benchmark through the kernel ABI.
//
// usage: bench_gemm_lora LIBRARY.so [LIBRARY.so ...] [--benchmark_filter=... and other options of Google Benchmark]
//
// Names are SHAPE/rows:R/base, SHAPE/rows:R/STORAGE/rank:R/fused and .../unfused. Counters: GMAC/s of the linear alone,
// bytes of weight and adapters a second, and lora_tax: the time over that of the base, less one, where the base was
// measured in the same run.
#include <infeng/extension/error.h>

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <memory>

#include "lora_case.h"
#include "machine/cpu.h"

namespace {

using infeng_bench::Case;
using infeng_bench::Libraries;
using infeng_bench::Setting;
using infeng_bench::Way;

constexpr int64_t kFootprint = 512 << 20;  // as the weights of a small model: they come from memory
constexpr int64_t kAdapters = 4;

std::map<std::string, double> base_seconds;  // by shape and rows

// Google Benchmark calls a function several times until it has found the number of iterations: the case is kept.
Case& prepared(const Libraries& libraries, const Setting& setting, const std::string& name) {
  static std::string known;
  static std::unique_ptr<Case> subject;
  if (known != name) {
    known.clear();
    subject.reset();  // before the next one takes its memory
    subject = std::make_unique<Case>(libraries, setting, kFootprint);
    subject->run();  // memory is touched
    known = name;
  }
  return *subject;
}

void measure(benchmark::State& state, const Libraries& libraries, const Setting& setting, const std::string& name,
             const std::string& base) {
  try {
    Case& subject = prepared(libraries, setting, name);
    const auto begin = std::chrono::steady_clock::now();
    for (auto _ : state) subject.run();
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    const auto calls = static_cast<double>(state.iterations());
    const double seconds = passed.count() / calls;
    const auto macs = static_cast<double>(setting.rows * setting.shape.n * setting.shape.k);
    const auto bytes = static_cast<double>(subject.weight_bytes() + subject.adapter_bytes());
    state.counters["GMAC/s"] = benchmark::Counter(macs * calls / 1e9, benchmark::Counter::kIsRate);
    state.counters["bytes/s"] = benchmark::Counter(bytes * calls, benchmark::Counter::kIsRate);
    if (setting.way == Way::base) {
      base_seconds[base] = seconds;
    } else if (base_seconds.contains(base)) {
      state.counters["lora_tax"] = seconds / base_seconds[base] - 1;
    }
  } catch (const infeng::Error& error) {
    state.SkipWithError(error.what());
  }
}

void add(const Libraries& libraries, const Setting& setting) {
  const std::string base = std::string(setting.shape.name) + "/rows:" + std::to_string(setting.rows);
  std::string name = base + "/base";
  if (setting.way != Way::base) {
    name = base + (setting.dtype == INFENG_I8 ? "/int8" : "/bf16") + "/rank:" + std::to_string(setting.rank);
    name += setting.way == Way::fused ? "/fused" : "/unfused";
  }
  const auto body = [=](benchmark::State& state) { measure(state, libraries, setting, name, base); };
  benchmark::RegisterBenchmark(name.c_str(), body)->Unit(benchmark::kMicrosecond)->UseRealTime();
}

void add_all(const Libraries& libraries) {
  for (const auto& shape : infeng_bench::shapes()) {
    for (const int64_t rows : {1, 4, 16}) {
      const int64_t adapters = std::min(rows, kAdapters);
      add(libraries, {shape, rows, adapters, 0, INFENG_I8, Way::base});
      for (const uint32_t dtype : {INFENG_I8, INFENG_BF16}) {
        for (const int64_t rank : {8, 16, 32, 64}) {
          for (const Way way : {Way::fused, Way::unfused}) add(libraries, {shape, rows, adapters, rank, dtype, way});
        }
      }
    }
  }
}

Libraries opened(int count, char** paths) {
  std::string features;
  for (const std::string& feature : infeng::detect_cpu().features) features += (features.empty() ? "" : ",") + feature;
  Libraries libraries;
  std::vector<const infeng::Library*> entered;
  for (int i = 0; i < count; ++i) {
    libraries.push_back(infeng::open_library(paths[i], features));
    entered.push_back(libraries.back().get());
  }
  const infeng::Library* culprit = nullptr;
  if (infeng::enter_thread(entered, &culprit) != INFENG_OK) infeng::fail("thread_enter", culprit->name, " refused");
  return libraries;
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);  // takes its own options out
  if (argc < 2 || argv[1][0] == '-') {
    std::fprintf(stderr, "usage: bench_gemm_lora LIBRARY.so [LIBRARY.so ...] [--benchmark_filter=REGEX ...]\n");
    return 2;
  }
  try {
    add_all(opened(argc - 1, argv + 1));
  } catch (const infeng::Error& error) {
    std::fprintf(stderr, "bench_gemm_lora: %s\n", error.what());
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
