/* A library of 0.11 in C, its entry by the SDK: a weight format with minima, packed with what is known of the matrix,
 * and an op over rows with its kernel. SPDX-License-Identifier: Apache-2.0 */
#include <infeng/ops/library.h>
#include <string.h>

/* Per 64 inputs [64][16] int8, 4 x 16 scales, 4 x 16 minima, in steps of 16. Integers are 0, 1, 2, ... along an output,
 * so that unpacking shows every field; the minimum is that of the layer. */
typedef struct block {
  int8_t q[64][16];
  float scale[4][16], minimum[4][16];
} block;

static int64_t panel_bytes(int64_t k) { return (k + 63) / 64 * (int64_t)sizeof(block); }

static infeng_status pack(const infeng_source* source, const void* state, int64_t row, void* panel,
                          infeng_worker* worker) {
  const int64_t k = source->w.shape[1];
  block* blocks = panel;
  (void)state, (void)worker;
  memset(panel, 0, (size_t)panel_bytes(k));
  for (int64_t n = 0; n < 16 && row + n < source->w.shape[0]; n++) {
    const float* w = (const float*)source->w.data + (row + n) * source->w.strides[0];
    for (int64_t i = 0; i < k; i++) {
      block* b = blocks + i / 64;
      if (i % 16 == 0) b->scale[i % 64 / 16][n] = w[i], b->minimum[i % 64 / 16][n] = (float)source->layer;
      b->q[i % 64][n] = (int8_t)(i % 64);
    }
  }
  return INFENG_OK;
}

static void unpack(const void* panel, int64_t g, infeng_block* out) {
  const block* b = (const block*)panel + g;
  memcpy(out->q, b->q, sizeof b->q);
  memcpy(out->scale, b->scale, sizeof b->scale);
  memcpy(out->minimum, b->minimum, sizeof b->minimum);
}

static infeng_format format = {.struct_size = sizeof(infeng_format),
                               .name = "retained-g16",
                               .act_format = INFENG_ACT_INT8_G64,
                               .group = 16,
                               .has_minima = 1,
                               .low = 0,
                               .high = 63,
                               .scale_type = INFENG_F32,
                               .panel_bytes = panel_bytes,
                               .unpack = unpack,
                               .pack = pack};
static infeng_format* const formats[] = {&format};

/* out[m][i] = x[m][i] + factor * y[i] */
typedef struct shift_args {
  infeng_args common;
  infeng_tensor x, y, out;
  float factor;
} shift_args;

static const infeng_operand operands[] = {
    {"x", INFENG_OPERAND_ROWS, offsetof(shift_args, x), 0, 0},
    {"y", INFENG_OPERAND_VECTOR, offsetof(shift_args, y), 0, 0},
    {"factor", INFENG_OPERAND_SCALAR, offsetof(shift_args, factor), 0.5f, 0},
};
static infeng_op shift = {.struct_size = sizeof(infeng_op),
                          .name = "retained_shift",
                          .operands = operands,
                          .operand_count = 3,
                          .operand_stride = sizeof *operands,
                          .args_size = sizeof(shift_args),
                          .out_offset = offsetof(shift_args, out)};
static infeng_op* const ops[] = {&shift};

static int32_t accepts(const infeng_problem* problem) {
  return problem->op == shift.number && problem->epilogue_count == 0;
}

static int64_t tiles(const infeng_args* args, int32_t phase) {
  (void)phase;
  return args->rows;
}

static infeng_status run(const infeng_args* common, int32_t phase, int64_t first, int64_t last, infeng_worker* worker) {
  const shift_args* args = (const shift_args*)common;
  (void)phase, (void)worker;
  for (int64_t m = first; m < last; m++) {
    const float* x = (const float*)args->x.data + m * args->x.strides[0];
    float* out = (float*)args->out.data + m * args->out.strides[0];
    for (int64_t i = 0; i < args->x.shape[1]; i++) out[i] = x[i] + args->factor * ((const float*)args->y.data)[i];
  }
  return INFENG_OK;
}

static const infeng_kernel kernel = {.struct_size = sizeof(infeng_kernel),
                                     .op = INFENG_OP_FOREIGN,
                                     .name = "shift_plain",
                                     .features = "",
                                     .numerics = INFENG_NUMERICS_EXACT,
                                     .kind = INFENG_KIND_TILES,
                                     .accepts = accepts,
                                     .tiles = tiles,
                                     .run = run};
static const infeng_kernel* const kernels[] = {&kernel};

infeng_status infeng_library(const infeng_host* host, infeng_library_desc* out) {
  const infeng_status status = infeng_negotiate(host, out);
  if (status != INFENG_OK) return status;
  out->name = "retained_brought";
  out->version = "1";
  out->kernels = kernels;
  out->kernel_count = 1;
  out->formats = formats;
  out->format_count = 1;
  infeng_list_ops(out, ops, 1);
  return INFENG_OK;
}
