// Plays the core: opens a library, runs a kernel over its tiles, compares it with the reference.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "memory.h"

inline bool serves(const infeng_kernel& kernel, const infeng_problem& problem) {
  return kernel.op == problem.op && (problem.needs & ~kernel.handles) == 0 && kernel.accepts(&problem);
}

// A kernel library opened like the core does.
struct Library {
  infeng_library_desc desc{};
  std::string path;
  explicit Library(const char* file, const char* features) : path(file) {
    void* handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!handle) die("%s", dlerror());
    const auto entry = reinterpret_cast<infeng_library_fn>(dlsym(handle, "infeng_library"));
    if (!entry) die("%s: no infeng_library", file);
    infeng_host host{};
    host.struct_size = sizeof host;
    host.abi_major = INFENG_ABI_MAJOR;
    host.abi_minor = INFENG_ABI_MINOR;
    host.version = "conformance";
    host.features = features;
    desc.struct_size = sizeof desc;
    if (entry(&host, &desc) != INFENG_OK) die("%s: infeng_library failed", file);
  }
  const infeng_kernel* find(const infeng_problem& problem) const {
    for (int32_t i = 0; i < desc.kernel_count; ++i)
      if (serves(*desc.kernels[i], problem)) return desc.kernels[i];
    return nullptr;
  }
  template <class... A>
  [[noreturn]] static void die(const char* format, A... a) {
    fprintf(stderr, format, a...);
    fputc('\n', stderr);
    exit(2);
  }
};

// Three workers that take turns: scratch memory full of rubbish, and for a WHOLE kernel the team.
class Workers {
 public:
  static constexpr int kCount = 3;

  explicit Workers(const infeng_workspace& space)
      : shared_(space.shared, 0xFF),
        scratch_(kCount, Bytes(space.per_worker, 0xFF)),
        team_{{sizeof(infeng_team), 1, &cpu_, &Workers::each, &Workers::is_cancelled}, this} {}
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  infeng_worker next(bool with_team) {
    const int index = turn_++ % kCount;
    return {sizeof(infeng_worker),
            index,
            kCount,
            sizeof message,
            shared_.as<void>(),
            scratch_[size_t(index)].as<void>(),
            message,
            with_team ? &team_.abi : nullptr};
  }
  bool intact() const {
    return shared_.intact() && std::all_of(scratch_.begin(), scratch_.end(), [](const Bytes& b) { return b.intact(); });
  }

  char message[256] = "";

 private:
  struct Team {
    infeng_team abi;
    Workers* workers;
  };
  // Parts run one after the other, the last one first.
  static infeng_status each(const infeng_team* team, int64_t count, infeng_part part, void* context) {
    infeng_status status = INFENG_OK;
    for (int64_t i = count; status == INFENG_OK && i-- > 0;) {
      infeng_worker worker = reinterpret_cast<const Team*>(team)->workers->next(false);
      status = part(context, i, &worker);
    }
    return status;
  }
  static int32_t is_cancelled(const infeng_team*) { return 0; }

  Bytes shared_;
  std::vector<Bytes> scratch_;
  int32_t cpu_ = 0;
  Team team_;
  int turn_ = 0;
};

// The kernel's state for one call.
class Instance {
 public:
  Instance(const infeng_kernel& kernel, const infeng_problem& problem, const infeng_args& args, Workers& workers)
      : kernel_(kernel) {
    if (kernel.create == nullptr) return;
    infeng_worker worker = workers.next(false);
    check(kernel.create(&problem, &state_, &worker), "create", workers);
    if (kernel.prepare != nullptr) check(kernel.prepare(state_, args.rows, &worker), "prepare", workers);
  }
  ~Instance() {
    if (kernel_.destroy != nullptr) kernel_.destroy(state_);
  }
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;
  void* state() const { return state_; }

 private:
  void check(infeng_status status, const char* function, const Workers& workers) const {
    if (status != INFENG_OK) Library::die("%s: %s: status %d: %s", kernel_.name, function, status, workers.message);
  }
  const infeng_kernel& kernel_;
  void* state_ = nullptr;
};

// The tiles of a phase in ranges of random length and order.
inline std::vector<std::pair<int64_t, int64_t>> ranges_of(const infeng_kernel& kernel, int64_t tiles) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (int64_t first = 0; first < tiles;) {
    const int64_t last = kernel.kind == INFENG_KIND_WHOLE ? tiles : std::min(tiles, first + pick(1, 3));
    ranges.emplace_back(first, last);
    first = last;
  }
  std::shuffle(ranges.begin(), ranges.end(), rng);
  return ranges;
}

// Plays the core: runs all phases of a call.
inline void execute(const infeng_kernel& kernel, const infeng_problem& problem, infeng_args& args) {
  infeng_workspace space{};
  space.struct_size = sizeof space;
  if (kernel.workspace && kernel.workspace(&problem, &space) != INFENG_OK)
    Library::die("%s: workspace failed", kernel.name);
  Workers workers(space);
  const Instance instance(kernel, problem, args, workers);
  args.instance = instance.state();
  const int32_t phases = kernel.phases ? kernel.phases(&args) : 1;
  for (int32_t phase = 0; phase < phases; ++phase) {
    for (const auto& [first, last] : ranges_of(kernel, kernel.tiles(&args, phase))) {
      infeng_worker worker = workers.next(kernel.kind == INFENG_KIND_WHOLE);
      const infeng_status status = kernel.run(&args, phase, first, last, &worker);
      if (status != INFENG_OK) Library::die("%s: status %d: %s", kernel.name, status, workers.message);
    }
  }
  if (!workers.intact()) Library::die("%s wrote past the end of its scratch memory", kernel.name);
}

struct Checker {
  const Library& reference;
  const infeng_kernel& kernel;
  double share;  // of the cases to run
  int cases = 0;
  int failures = 0;

  // Called before inputs are made, because making them takes most of the time.
  bool skips() const { return cases > 0 && !chance(share); }
  bool wants(const infeng_problem& problem) const { return serves(kernel, problem) && !skips(); }

  // Runs the kernel and the reference on copies of a state, which provides arguments and compares outputs.
  template <class State>
  void compare(const infeng_problem& problem, const State& input, const std::string& what) {
    const infeng_kernel* judge = reference.find(problem);
    if (!judge) Library::die("the reference has no kernel for %s", kernel.name);
    State expected = input, actual = input;
    execute(*judge, problem, expected.args());
    execute(kernel, problem, actual.args());
    ++cases;
    const bool same = expected.same(actual), intact = actual.intact();
    if (same && intact) return;
    if (failures++ < 5) printf("  %s: %s %s\n", kernel.name, what.c_str(), intact ? "differs" : "wrote past the end");
  }
};

inline infeng_problem problem_of(const infeng_kernel& kernel, int64_t rows) {
  infeng_problem p{};
  p.struct_size = sizeof p;
  p.op = kernel.op;
  p.rows_min = rows;
  p.rows_max = rows;
  p.workers = 3;
  return p;
}

inline std::string text(const char* format, long a, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0,
                        long g = 0) {
  char buffer[160];
  snprintf(buffer, sizeof buffer, format, a, b, c, d, e, f, g);
  return buffer;
}
