/* rmsnorm in plain C11, exact: y[i] = (x[i] * (1 / sqrt(mean(x^2) + eps))) * weight[i], as docs/numerics.md orders it.
 * Everything a kernel needs is in <infeng/abi.h>. SPDX-License-Identifier: Apache-2.0 */
#include <infeng/abi.h>
#include <math.h>

static const float* row_of(const infeng_tensor* t, int64_t row) { return (const float*)t->data + row * t->strides[0]; }

/* Can the kernel do this problem? It fuses no epilogue, so it refuses problems that ask for one. What a problem needs
 * beyond its op (a gather of rows, `1 + weight`) is not its business: the host looks at `handles`. */
static int32_t accepts(const infeng_problem* problem) {
  return problem->op == INFENG_OP_RMSNORM && problem->epilogue_count == 0;
}

/* Work is cut into tiles that any worker may take in any order: here one tile is one row. */
static int64_t tiles(const infeng_args* args, int32_t phase) {
  (void)phase;
  return args->rows;
}

static infeng_status run(const infeng_args* common, int32_t phase, int64_t first, int64_t last, infeng_worker* worker) {
  (void)phase, (void)worker;
  const infeng_rmsnorm_args* args = (const infeng_rmsnorm_args*)common;
  const int64_t k = args->x.shape[1];
  const float* weight = row_of(&args->weight, 0);
  for (int64_t row = first; row < last; row++) {
    const float* x = row_of(&args->x, args->row_index ? args->row_index[row] : row);
    float* y = (float*)row_of(&args->out, row);
    /* Sixteen virtual lanes and a fixed tree: every vector width can add in this order. */
    float lanes[16] = {0};
    for (int64_t i = 0; i < k; i++) lanes[i % 16] = fmaf(x[i], x[i], lanes[i % 16]);
    for (int half = 8; half > 0; half /= 2) {
      for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    }
    const float r = 1.0f / sqrtf(lanes[0] / (float)k + args->eps);
    for (int64_t i = 0; i < k; i++) y[i] = (x[i] * r) * weight[i];
  }
  return INFENG_OK;
}

const infeng_kernel example_rmsnorm = {.struct_size = sizeof(infeng_kernel),
                                       .op = INFENG_OP_RMSNORM,
                                       .name = "rmsnorm_c",
                                       .features = "",
                                       .numerics = INFENG_NUMERICS_EXACT,
                                       .kind = INFENG_KIND_TILES,
                                       .handles = INFENG_NEED_BIT(INFENG_NEED_ROW_GATHER),
                                       .accepts = accepts,
                                       .tiles = tiles,
                                       .run = run};
