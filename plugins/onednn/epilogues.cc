// SPDX-License-Identifier: Apache-2.0
#include "epilogues.h"

#include <infeng/simd/avx2.h>

#include <atomic>

#include "team.h"

namespace infeng::onednn {
namespace {

using Loops = Epilogue<avx2::Avx2>;

static_assert(kFuses == Loops::kFuses && kHandles == Loops::kHandles);

struct Call {
  infeng_epilogue_args args;
  char* scratch;
  int64_t scratch_bytes;
  int threads;
  std::atomic<infeng_status> status;
};

void finish_part(void* context, int thread) {
  auto& call = *static_cast<Call*>(context);
  infeng_worker worker = {};
  worker.struct_size = sizeof worker;
  worker.index = thread;
  worker.count = call.threads;
  worker.private_ = call.scratch + thread * call.scratch_bytes;
  const infeng_args& args = call.args.common;
  const int64_t first = args.rows * thread / call.threads, last = args.rows * (thread + 1) / call.threads;
  const infeng_status status = Loops::run(&args, 0, first, last, &worker);
  if (status != INFENG_OK) call.status.store(status);
}

}  // namespace

bool finishes(const infeng_problem& problem) { return Loops::fuses(problem); }

int64_t finishing_bytes(const infeng_problem& problem) {
  infeng_workspace needed = {};
  Loops::workspace(&problem, &needed);
  return round_up(needed.per_worker, kLine);
}

infeng_status finish(const infeng_linear_args& linear, const infeng_tensor& product, char* scratch,
                     int64_t scratch_bytes, int threads, infeng_worker* worker) {
  Call call = {{}, scratch, scratch_bytes, threads, INFENG_OK};
  call.args.common = linear.common;
  call.args.common.struct_size = sizeof call.args;
  call.args.in = product;
  call.args.out = linear.out;
  on_every_thread(threads, &finish_part, &call);
  const infeng_status status = call.status.load();
  return status == INFENG_OK ? status : fail(worker, status, "the steps behind a product of oneDNN failed");
}

}  // namespace infeng::onednn
