/* A library of 0.11 in C, its entry by hand: an approximate kernel of EPILOGUE that triples its input and one of
 * RMSNORM that takes scratch memory, two phases and an instance. SPDX-License-Identifier: Apache-2.0 */
#include <infeng/abi.h>
#include <math.h>
#include <stdlib.h>

static int32_t accepts_triple(const infeng_problem* problem) {
  return problem->op == INFENG_OP_EPILOGUE && problem->epilogue_count == 0;
}

static int64_t rows_of(const infeng_args* args, int32_t phase) {
  (void)phase;
  return args->rows;
}

static infeng_status triple(const infeng_args* common, int32_t phase, int64_t first, int64_t last,
                            infeng_worker* worker) {
  const infeng_epilogue_args* args = (const infeng_epilogue_args*)common;
  (void)phase, (void)worker;
  for (int64_t m = first; m < last; m++) {
    const float* in = (const float*)args->in.data + m * args->in.strides[0];
    float* out = (float*)args->out.data + m * args->out.strides[0];
    for (int64_t i = 0; i < args->in.shape[1]; i++) out[i] = 3 * in[i];
  }
  return INFENG_OK;
}

/* The factor of each row is computed in phase 0 and kept in the workers' shared memory for phase 1. The instance counts
 * nothing: it holds the problem's k, with which calls are compared. */
static int32_t accepts_norm(const infeng_problem* problem) {
  return problem->op == INFENG_OP_RMSNORM && problem->epilogue_count == 0;
}

static infeng_status workspace(const infeng_problem* problem, infeng_workspace* out) {
  out->shared = problem->rows_max * (int64_t)sizeof(float);
  return INFENG_OK;
}

static infeng_status create(const infeng_problem* problem, void** instance, infeng_worker* worker) {
  (void)worker;
  int64_t* k = malloc(sizeof *k);
  if (k == NULL) return INFENG_INTERNAL;
  *k = problem->k;
  *instance = k;
  return INFENG_OK;
}

static int32_t two(const infeng_args* args) {
  (void)args;
  return 2;
}

static infeng_status norm(const infeng_args* common, int32_t phase, int64_t first, int64_t last,
                          infeng_worker* worker) {
  const infeng_rmsnorm_args* args = (const infeng_rmsnorm_args*)common;
  const int64_t k = args->x.shape[1];
  float* factors = worker->shared;
  if (*(const int64_t*)common->instance != k) return INFENG_INVALID_ARGUMENT;
  for (int64_t m = first; m < last; m++) {
    const int64_t row = args->row_index != NULL ? args->row_index[m] : m;
    const float* x = (const float*)args->x.data + row * args->x.strides[0];
    float* out = (float*)args->out.data + m * args->out.strides[0];
    if (phase == 1) {
      for (int64_t i = 0; i < k; i++) out[i] = x[i] * factors[m] * ((const float*)args->weight.data)[i];
      continue;
    }
    double sum = 0;
    for (int64_t i = 0; i < k; i++) sum += (double)x[i] * (double)x[i];
    factors[m] = (float)(1 / sqrt(sum / (double)k + (double)args->eps));
  }
  return INFENG_OK;
}

static const infeng_kernel kernels_of[] = {{.struct_size = sizeof(infeng_kernel),
                                            .op = INFENG_OP_EPILOGUE,
                                            .name = "triple",
                                            .features = "",
                                            .numerics = INFENG_NUMERICS_APPROX,
                                            .kind = INFENG_KIND_TILES,
                                            .accepts = accepts_triple,
                                            .tiles = rows_of,
                                            .run = triple},
                                           {.struct_size = sizeof(infeng_kernel),
                                            .op = INFENG_OP_RMSNORM,
                                            .name = "norm_plain",
                                            .features = "",
                                            .numerics = INFENG_NUMERICS_APPROX,
                                            .kind = INFENG_KIND_TILES,
                                            .accepts = accepts_norm,
                                            .workspace = workspace,
                                            .create = create,
                                            .destroy = free,
                                            .phases = two,
                                            .tiles = rows_of,
                                            .run = norm,
                                            .bound = 0.001f}};
static const infeng_kernel* const kernels[] = {kernels_of, kernels_of + 1};

infeng_status infeng_library(const infeng_host* host, infeng_library_desc* out) {
  out->abi_major = INFENG_ABI_MAJOR;
  out->abi_minor = INFENG_ABI_MINOR;
  if (host->abi_major != INFENG_ABI_MAJOR || host->abi_minor < INFENG_ABI_MINOR) return INFENG_UNSUPPORTED_ABI;
  out->name = "retained_plain";
  out->version = "1";
  out->kernels = kernels;
  out->kernel_count = 2;
  out->numerics = INFENG_NUMERICS;
  return INFENG_OK;
}
