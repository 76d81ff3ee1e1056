/* A kernel library with one exact kernel for `layernorm`. Macros make it wrong in one way each:
 *   INDEX(a, m)   the row of x that row m is made of
 *   SCALED(d, r)  a deviation from the mean, over the root of the variance
 *   BIAS(a, i)    the bias of column i
 *   ON_ROW(a, m)  statement after row m is written */
#include <infeng/abi.h>
#include <math.h>

#ifndef INDEX
#define INDEX(a, m) ((a)->row_index ? (a)->row_index[m] : (m))
#endif
#ifndef SCALED
#define SCALED(d, r) ((d) * (r))
#endif
#ifndef BIAS
#define BIAS(a, i) (((const float*)(a)->bias.data)[i])
#endif
#ifndef ON_ROW
#define ON_ROW(a, m)
#endif

static int32_t accepts(const infeng_problem* problem) { return problem->epilogues == 0; }

static int64_t tiles(const infeng_args* args, int32_t phase) {
  (void)phase;
  return args->rows;
}

static float tree(float lanes[16]) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

static infeng_status run(const infeng_args* args, int32_t phase, int64_t first, int64_t last, infeng_worker* worker) {
  const infeng_layernorm_args* a = (const infeng_layernorm_args*)args;
  const int64_t k = a->x.shape[1];
  (void)phase, (void)worker;
  for (int64_t m = first; m < last; ++m) {
    const float* x = (const float*)a->x.data + INDEX(a, m) * a->x.strides[0];
    const float* w = a->weight.data;
    float* out = (float*)a->out.data + m * a->out.strides[0];
    float sums[16] = {0}, squares[16] = {0};
    for (int64_t i = 0; i < k; ++i) sums[i % 16] += x[i];
    const float mean = tree(sums) / (float)k;
    for (int64_t i = 0; i < k; ++i) squares[i % 16] = fmaf(x[i] - mean, x[i] - mean, squares[i % 16]);
    const float r = 1.0f / sqrtf(tree(squares) / (float)k + a->eps);
    for (int64_t i = 0; i < k; ++i) out[i] = fmaf(SCALED(x[i] - mean, r), w[i], BIAS(a, i));
    ON_ROW(a, m);
  }
  return INFENG_OK;
}

static const infeng_kernel kernel = {
    .struct_size = sizeof(infeng_kernel),
    .op = INFENG_OP_LAYERNORM,
    .name = "layernorm_tiny",
    .features = "",
    .numerics = INFENG_NUMERICS_EXACT,
    .kind = INFENG_KIND_TILES,
    .handles = INFENG_NEED_BIT(INFENG_NEED_ROW_GATHER),
    .accepts = accepts,
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
