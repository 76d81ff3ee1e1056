// The steps behind a product, by the SDK's loops. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <infeng/ops/epilogue.h>

namespace infeng::onednn {

// The steps that these loops support, and their needs.
constexpr uint32_t kFuses = kFusedEpilogues;
constexpr uint64_t kHandles = kHandlesLora | kHandlesGates | kHandlesWide | kHandlesRows;

// Whether the steps of a problem are supported.
bool finishes(const infeng_problem& problem);

// Scratch memory that a thread needs for the steps of a problem, in bytes; a multiple of 64.
int64_t finishing_bytes(const infeng_problem& problem);

// Applies the steps of `linear` to the rows of `product`, (rows, panels * 16) f32, on all threads of the team and
// writes them to the call's output. `scratch`: finishing_bytes for each thread. Called within a task of the team.
infeng_status finish(const infeng_linear_args& linear, const infeng_tensor& product, char* scratch,
                     int64_t scratch_bytes, int threads, infeng_worker* worker);

}  // namespace infeng::onednn
