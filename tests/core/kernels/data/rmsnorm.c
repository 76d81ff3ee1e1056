/* A kernel library with one exact kernel for `rmsnorm`. Macros make it wrong in one way each:
 *   INDEX(a, m)         the row of x that row m is made of
 *   ON_ROW(a, m, out)   statement after row m is written to out
 *   ON_ACCEPTS(p)       statement at the start of accepts
 *   ON_WORKSPACE(p)     statement at the start of workspace
 *   ON_TILES(a)         statement at the start of tiles
 *   RECORD              file to which accepts and workspace append their problem, with the id of the process */
#include <infeng/abi.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#ifndef INDEX
#define INDEX(a, m) ((a)->row_index ? (a)->row_index[m] : (m))
#endif
#ifndef ON_ROW
#define ON_ROW(a, m, out)
#endif
#ifndef ON_ACCEPTS
#define ON_ACCEPTS(p)
#endif
#ifndef ON_WORKSPACE
#define ON_WORKSPACE(p)
#endif
#ifndef ON_TILES
#define ON_TILES(a)
#endif

static void record(const char* what, const infeng_problem* p) {
#ifdef RECORD
  FILE* file = fopen(RECORD, "a");
  fprintf(file, "%d %s %lld %lld %lld %lld %d\n", (int)getpid(), what, (long long)p->rows_min, (long long)p->rows_max,
          (long long)p->n, (long long)p->k, (int)p->workers);
  fclose(file);
#else
  (void)what, (void)p;
#endif
}

static int32_t accepts(const infeng_problem* problem) {
  record("accepts", problem);
  ON_ACCEPTS(problem);
  return problem->epilogues == 0;
}

static infeng_status workspace(const infeng_problem* problem, infeng_workspace* out) {
  record("workspace", problem);
  ON_WORKSPACE(problem);
  out->shared = 64;
  return INFENG_OK;
}

static int64_t tiles(const infeng_args* args, int32_t phase) {
  (void)phase;
  ON_TILES(args);
  return args->rows;
}

static infeng_status run(const infeng_args* args, int32_t phase, int64_t first, int64_t last, infeng_worker* worker) {
  const infeng_rmsnorm_args* a = (const infeng_rmsnorm_args*)args;
  const int64_t k = a->x.shape[1];
  const float* w = a->weight.data;
  (void)phase, (void)worker;
  for (int64_t m = first; m < last; ++m) {
    const float* x = (const float*)a->x.data + INDEX(a, m) * a->x.strides[0];
    float* out = (float*)a->out.data + m * a->out.strides[0];
    float lanes[16] = {0};
    for (int64_t i = 0; i < k; ++i) lanes[i % 16] = fmaf(x[i], x[i], lanes[i % 16]);
    for (int half = 8; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    const float r = 1.0f / sqrtf(lanes[0] / (float)k + a->eps);
    for (int64_t i = 0; i < k; ++i) out[i] = (x[i] * r) * w[i];
    ON_ROW(a, m, out);
  }
  return INFENG_OK;
}

static const infeng_kernel kernel = {
    .struct_size = sizeof(infeng_kernel),
    .op = INFENG_OP_RMSNORM,
    .name = "rmsnorm_tiny",
    .features = "",
    .numerics = INFENG_NUMERICS_EXACT,
    .kind = INFENG_KIND_TILES,
    .handles = INFENG_NEED_BIT(INFENG_NEED_ROW_GATHER),
    .accepts = accepts,
    .workspace = workspace,
    .tiles = tiles,
    .run = run,
};
static const infeng_kernel* const kernels[] = {&kernel};

infeng_status infeng_library(const infeng_host* host, infeng_library_desc* out) {
  (void)host;
  out->abi_major = INFENG_ABI_MAJOR;
  out->abi_minor = INFENG_ABI_MINOR;
  out->name = LIBRARY;
  out->version = "1.0";
  out->kernels = kernels;
  out->kernel_count = 1;
  return INFENG_OK;
}
