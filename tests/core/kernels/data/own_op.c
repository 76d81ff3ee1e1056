/* A library that describes an op over rows, blend: out[m] = x[row_index[m]] * weight * factor + other[m], with a plain
 * kernel and one that is faster. Macros make it wrong in one way each:
 *   CASE_*        breaks a rule of the description; the name says which
 *   ON_PLAIN(m)   statement after row m of the plain kernel
 *   ON_FAST(m)    of the other one; `out` is the row
 *   PRIORITY      of the faster one
 *   FUSED         the factor that it takes a fused SCALE for; without, it fuses nothing */
#include <infeng/ops/library.h>
#include <stddef.h>
#include <stdlib.h>

#ifndef LIBRARY
#define LIBRARY "own_op"
#endif
#ifndef PRIORITY
#define PRIORITY 5
#endif
#ifndef ON_PLAIN
#define ON_PLAIN(m)
#endif
#ifndef ON_FAST
#define ON_FAST(m)
#endif

typedef struct blend_args {
  infeng_args common;
  infeng_tensor x;
  const int32_t* row_index;
  infeng_tensor other;
  infeng_tensor weight;
  infeng_tensor out;
  float factor;
  int32_t reserved;
} blend_args;

static infeng_operand operands[INFENG_MOST_OPERANDS + 1] = {
    {.name = "x", .kind = INFENG_OPERAND_ROWS, .offset = offsetof(blend_args, x)},
    {.name = "row_index", .kind = INFENG_OPERAND_ROW_INDEX, .offset = offsetof(blend_args, row_index)},
    {.name = "other", .kind = INFENG_OPERAND_ROWS, .offset = offsetof(blend_args, other)},
    {.name = "weight", .kind = INFENG_OPERAND_VECTOR, .offset = offsetof(blend_args, weight)},
    {.name = "factor", .kind = INFENG_OPERAND_SCALAR, .offset = offsetof(blend_args, factor), .value = 0.5f},
};
static infeng_op blend = {.struct_size = sizeof blend,
                          .name = "blend",
                          .operands = operands,
                          .operand_count = 5,
                          .operand_stride = sizeof *operands,
                          .args_size = sizeof(blend_args),
                          .out_offset = offsetof(blend_args, out)};
static infeng_op* ops[2] = {&blend, &blend};

static int32_t accepts(const infeng_problem* problem) {
  return problem->op == blend.number && problem->epilogue_count == 0;
}
/* The faster kernel may fuse SCALE. */
static int32_t accepts_fast(const infeng_problem* problem) {
  for (uint32_t i = 0; i < problem->epilogue_count; i++) {
    if (problem->epilogues[i]->kind != INFENG_EPILOGUE_SCALE) return 0;
  }
  return problem->op == blend.number;
}
static int64_t tiles(const infeng_args* args, int32_t phase) { return (void)phase, args->rows; }

static float* row(const infeng_tensor* t, int64_t m) { return (float*)t->data + m * t->strides[0]; }

static void blend_row(const blend_args* a, int64_t m) {
  const float *x = row(&a->x, a->row_index ? a->row_index[m] : m), *other = row(&a->other, m), *w = a->weight.data;
  for (int64_t i = 0; i < a->x.shape[1]; i++) row(&a->out, m)[i] = x[i] * w[i] * a->factor + other[i];
}
static infeng_status run_plain(const infeng_args* args, int32_t phase, int64_t first, int64_t last,
                               infeng_worker* worker) {
  (void)phase, (void)worker;
  for (int64_t m = first; m < last; m++) {
    blend_row((const blend_args*)args, m);
    ON_PLAIN(m);
  }
  return INFENG_OK;
}
static infeng_status run_fast(const infeng_args* args, int32_t phase, int64_t first, int64_t last,
                              infeng_worker* worker) {
  (void)phase, (void)worker;
  for (int64_t m = first; m < last; m++) {
    float* out = row(&((const blend_args*)args)->out, m);
    blend_row((const blend_args*)args, m);
#ifdef FUSED
    for (uint32_t e = 0; e < args->epilogue_count; e++) {
      for (int64_t i = 0; i < ((const blend_args*)args)->x.shape[1]; i++) out[i] *= FUSED(args->epilogues[e]->scalar);
    }
#endif
    ON_FAST(m);
    (void)out;
  }
  return INFENG_OK;
}

/* An op of the engine, so that a library whose own op is broken still has a kernel. */
static int32_t accepts_none(const infeng_problem* problem) { return (void)problem, 0; }
static infeng_kernel usual = {.struct_size = sizeof usual,
                              .op = INFENG_OP_EPILOGUE,
                              .name = "usual",
                              .numerics = INFENG_NUMERICS_EXACT,
                              .kind = INFENG_KIND_TILES,
                              .accepts = accepts_none,
                              .tiles = tiles,
                              .run = run_plain};
static infeng_kernel plain = {.struct_size = sizeof plain,
                              .op = INFENG_OP_FOREIGN,
                              .name = "blend_plain",
                              .numerics = INFENG_NUMERICS_EXACT,
                              .kind = INFENG_KIND_TILES,
                              .handles = INFENG_NEED_BIT(INFENG_NEED_ROW_GATHER),
                              .accepts = accepts,
                              .tiles = tiles,
                              .run = run_plain};
static infeng_kernel fast = {.struct_size = sizeof fast,
                             .op = INFENG_OP_FOREIGN,
                             .name = "blend_fast",
                             .numerics = INFENG_NUMERICS_EXACT,
                             .kind = INFENG_KIND_TILES,
                             .priority = PRIORITY,
                             .handles = INFENG_NEED_BIT(INFENG_NEED_ROW_GATHER),
                             .accepts = accepts_fast,
                             .tiles = tiles,
                             .run = run_fast};
static const infeng_kernel* const kernels[] = {&usual, &plain, &fast};

infeng_status infeng_library(const infeng_host* host, infeng_library_desc* out) {
  const infeng_status status = infeng_negotiate(host, out);
  if (status != INFENG_OK) return status;
  out->name = LIBRARY;
  out->version = "1.0";
  out->kernels = kernels;
  out->kernel_count = 3;
  infeng_list_ops(out, ops, 1);
#ifdef FUSED
  fast.fuses = INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_SCALE);
#endif
#if defined(CASE_SIZE)
  blend.struct_size = 16;
#elif defined(CASE_HUGE)
  blend.struct_size = 1u << 30;
#elif defined(CASE_NULL)
  ops[0] = NULL;
#elif defined(CASE_NO_NAME)
  blend.name = NULL;
#elif defined(CASE_NAME)
  blend.name = "Blend 2";
#elif defined(CASE_OWN)
  blend.name = "linear";
#elif defined(CASE_EMPTY)
  blend.operand_count = 0;
#elif defined(CASE_MANY)
  blend.operand_count = INFENG_MOST_OPERANDS + 1;
#elif defined(CASE_NULL_OPERANDS)
  blend.operands = NULL;
#elif defined(CASE_STRIDE)
  blend.operand_stride = 8;
#elif defined(CASE_SMALL)
  blend.args_size = 16;
#elif defined(CASE_LARGE)
  blend.args_size = INFENG_MOST_ARGS + 8;
#elif defined(CASE_OUTSIDE)
  operands[3].offset = sizeof(blend_args) - 8;
#elif defined(CASE_FAR)
  operands[3].offset = 0xfffffff8u;
#elif defined(CASE_HEAD)
  operands[0].offset = offsetof(infeng_args, rows);
#elif defined(CASE_MISALIGNED)
  operands[4].offset = offsetof(blend_args, factor) + 1;
#elif defined(CASE_OVERLAP)
  operands[2].offset = operands[0].offset;
#elif defined(CASE_OUT)
  blend.out_offset = operands[3].offset;
#elif defined(CASE_FIRST)
  operands[0].kind = INFENG_OPERAND_VECTOR;
#elif defined(CASE_KIND)
  operands[3].kind = 9;
#elif defined(CASE_INDICES)
  operands[4].kind = INFENG_OPERAND_ROW_INDEX;
#elif defined(CASE_SAME)
  operands[2].name = "x";
#elif defined(CASE_OPERAND)
  operands[2].name = "other rows";
#elif defined(CASE_INFINITE)
  operands[4].value = 1e30f * 1e30f;
#elif defined(CASE_COUNT)
  out->op_count = -1;
#elif defined(CASE_NO_LIST)
  out->ops = NULL;
#elif defined(CASE_TWICE)
  out->op_count = 2;
#elif defined(CASE_OTHERWISE)
  operands[4].value = 0.25f; /* another op of the same name */
#elif defined(CASE_BEYOND)
  fast.op = INFENG_OP_FOREIGN + 1;
#endif
  return INFENG_OK;
}
