/* An op over rows and its kernel, in plain C11: out[m][i] = max(-limit, min(limit, x[m][i])) * gain[i].
 * SPDX-License-Identifier: Apache-2.0 */
#include <infeng/ops/library.h>
#include <math.h>

/* What the host passes: infeng_args, then the operands and the result, each at the offset that is told below. */
typedef struct op_args {
  infeng_args common;
  infeng_tensor x;    /* (rows, k) f32 */
  infeng_tensor gain; /* (k) f32 */
  infeng_tensor out;  /* (rows, k) f32 */
  float limit;
  int32_t reserved;
} op_args;

static const infeng_operand operands[] = {
    {.name = "x", .kind = INFENG_OPERAND_ROWS, .offset = offsetof(op_args, x)},
    {.name = "gain", .kind = INFENG_OPERAND_VECTOR, .offset = offsetof(op_args, gain)},
    {.name = "limit", .kind = INFENG_OPERAND_SCALAR, .offset = offsetof(op_args, limit), .value = 6},
};

static infeng_op op = {.struct_size = sizeof(infeng_op),
                       .name = "clip",
                       .operands = operands,
                       .operand_count = sizeof operands / sizeof *operands,
                       .operand_stride = sizeof *operands,
                       .args_size = sizeof(op_args),
                       .out_offset = offsetof(op_args, out)};
static infeng_op* const ops[] = {&op};

/* The number is the host's, of this process. A kernel that fuses no step refuses problems that ask for one: the host
 * runs the step as an op of its own. */
static int32_t accepts(const infeng_problem* problem) {
  return problem->op == op.number && problem->epilogue_count == 0;
}

/* A tile is one row. */
static int64_t tiles(const infeng_args* args, int32_t phase) {
  (void)phase;
  return args->rows;
}

static infeng_status run(const infeng_args* common, int32_t phase, int64_t first, int64_t last, infeng_worker* worker) {
  (void)phase, (void)worker;
  const op_args* args = (const op_args*)common;
  const float* gain = args->gain.data;
  for (int64_t m = first; m < last; m++) {
    const float* x = (const float*)args->x.data + m * args->x.strides[0];
    float* out = (float*)args->out.data + m * args->out.strides[0];
    for (int64_t i = 0; i < args->x.shape[1]; i++) {
      out[i] = fmaxf(-args->limit, fminf(args->limit, x[i])) * gain[i];
    }
  }
  return INFENG_OK;
}

/* The plain kernel: it has the lowest priority of all kernels of the op, and the host compares the others with it. */
static const infeng_kernel plain = {.struct_size = sizeof(infeng_kernel),
                                    .op = INFENG_OP_FOREIGN + 0, /* place in `ops` */
                                    .name = "clip_plain",
                                    .features = "",
                                    .numerics = INFENG_NUMERICS_EXACT,
                                    .kind = INFENG_KIND_TILES,
                                    .priority = 0,
                                    .accepts = accepts,
                                    .tiles = tiles,
                                    .run = run};
static const infeng_kernel* const kernels[] = {&plain};

infeng_status infeng_library(const infeng_host* host, infeng_library_desc* out) {
  const infeng_status status = infeng_negotiate(host, out);
  if (status != INFENG_OK) return status;
  out->name = "clip"; /* as in plugin.yaml */
  out->version = "0.1.0";
  out->kernels = kernels;
  out->kernel_count = sizeof kernels / sizeof *kernels;
  infeng_list_ops(out, ops, sizeof ops / sizeof *ops);
  return INFENG_OK;
}
