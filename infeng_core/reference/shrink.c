/* shrink, the A half of LoRA: u[m][u_column + r] = ((x[m] . A[r]) * scaling[r]) * weight, per segment.
 * SPDX-License-Identifier: Apache-2.0 */
#include "weights.h"

#define CHAINS 8

INLINE int64_t panels_of(const infeng_lora_segment* s) { return ceil_div(s->rank, LANES); }

/* A tile is one panel of 16 rank rows of one segment, in the order of the segments. */
static int64_t shrink_tiles(const infeng_args* common, int32_t phase) {
  (void)phase;
  const infeng_shrink_args* args = (const infeng_shrink_args*)common;
  int64_t tiles = 0;
  for (int32_t i = 0; i < args->segment_count; i++)
    tiles += panels_of(lora_segment(args->segments, args->segment_stride, i));
  return common->rows == 0 ? 0 : tiles;
}

/* Chain c of eight adds k = c mod 8 ascending; then (c0+c4, c1+c5, c2+c6, c3+c7), then pairs at distance 2, then 1. */
INLINE void dot_float(const float* x, const void* panel, int64_t k, float out[LANES],
                      void (*read)(const void*, int64_t, float*)) {
  float chain[CHAINS][LANES] = {{0}};
  for (int64_t i = 0; i < k; i++) {
    float w[LANES];
    read(panel, i, w);
    for (int n = 0; n < LANES; n++) chain[i % CHAINS][n] = fmaf(x[i], w[n], chain[i % CHAINS][n]);
  }
  for (int width = CHAINS / 2; width > 0; width /= 2) {
    for (int c = 0; c < width; c++) {
      for (int n = 0; n < LANES; n++) chain[c][n] += chain[c + width][n];
    }
  }
  memcpy(out, chain[0], sizeof chain[0]);
}

/* acc += the products of a group of 64 inputs. */
INLINE void add_products(const int8_t* q, const int_group* group, int32_t acc[LANES]) {
  for (int i = 0; i < GROUP; i++) {
    for (int n = 0; n < LANES; n++) acc[n] += (int32_t)q[i] * (int32_t)group->w[i][n];
  }
}

/* A group of INFENG_I8T4: 8 lines of nibbles, in lanes 0 and 8 the upper bits of q + 128, then a line of their lower
 * bits. */
INLINE void group_tails(const uint8_t* panel, int64_t g, int_group* out) {
  const uint8_t* lines = panel + 64 + g * (9 * 64);
  memcpy(out->scale[0], panel, sizeof out->scale[0]);
  read_nibbles(lines, 8, out->w);
  for (int h = 0; h < 2; h++) {
    for (int i = 0; i < GROUP; i++) {
      const uint8_t both = lines[8 * 64 + 32 * h + i % 32];
      const int upper = out->w[i][8 * h] + 8, lower = i < 32 ? both & 15 : both >> 4;
      out->w[i][8 * h] = (int8_t)((upper << 4 | lower) - 128);
    }
  }
}

/* Like linear with an int8-row weight, over inputs [from, from + k). If the row has one scale, so has the sum. */
INLINE void dot_int8(const infeng_activation* in, int64_t row, int64_t from, const uint8_t* panel, int64_t k,
                     float out[LANES], int_group_fn read) {
  const int8_t* q = i8_row(&in->q, row) + from;
  const float* xscale = f32_row(&in->scale, row) + from / GROUP;
  const int is_whole = in->group == INFENG_GROUP_ROW;
  int_group group;
  int32_t acc[LANES] = {0};
  memset(out, 0, LANES * sizeof(float));
  for (int64_t g = 0; g * GROUP < k; g++) {
    read(panel, g, &group);
    add_products(q + g * GROUP, &group, acc);
    if (is_whole) continue;
    for (int n = 0; n < LANES; n++) out[n] = fmaf((float)acc[n], group.scale[0][n] * xscale[g], out[n]);
    memset(acc, 0, sizeof acc);
  }
  for (int n = 0; n < LANES && is_whole && k > 0; n++) out[n] = ((float)acc[n] * xscale[0]) * group.scale[0][n];
}

/* A panel over inputs [from, from + k). */
INLINE void dot(const infeng_shrink_args* args, uint32_t dtype, const void* panel, int64_t row, int64_t from, int64_t k,
                float out[LANES]) {
  if (dtype == INFENG_F32) {
    dot_float(f32_row(&args->in->x, row) + from, panel, k, out, column_f32);
  } else if (dtype == INFENG_BF16) {
    dot_float(f32_row(&args->in->x, row) + from, panel, k, out, column_bf16);
  } else {
    dot_int8(args->in, row, from, panel, k, out, dtype == INFENG_I8T4 ? group_tails : group_int8_row);
  }
}

/* The bytes of a panel over k inputs. */
INLINE int64_t bytes_of(uint32_t dtype, int64_t k) {
  const int64_t lanes = ceil_div(k, GROUP) * GROUP * LANES;
  if (dtype == INFENG_I8T4) return 64 + lanes / 16 * 9;
  return dtype == INFENG_F32 ? 4 * lanes : dtype == INFENG_BF16 ? 2 * lanes : 64 + lanes;
}

CLONED static void shrink_row(const infeng_shrink_args* args, const infeng_lora_segment* s, int64_t panel,
                              int64_t row) {
  const int64_t k = args->in->x.data ? args->in->x.shape[1] : args->in->q.shape[1];
  const void* a = (const char*)s->a + panel * bytes_of(s->dtype, k);
  float* u = f32_row(&args->u, row) + s->u_column + panel * LANES;
  float sum[LANES];
  if (s->rank - panel * LANES <= LANES / 2) { /* folded: lanes 0 to 7 over inputs [0, half), 8 to 15 over the others */
    const int64_t half = ceil_div(k, 2 * GROUP) * GROUP;
    float others[LANES];
    dot(args, s->dtype, a, row, 0, min_i64(k, half), sum);
    dot(args, s->dtype, a, row, half, k > half ? k - half : 0, others);
    for (int n = 0; n < LANES; n++) sum[n] = n < LANES / 2 ? sum[n] + others[n + LANES / 2] : 0;
  } else {
    dot(args, s->dtype, a, row, 0, k, sum);
  }
  for (int n = 0; n < LANES; n++) u[n] = (sum[n] * s->scaling[panel * LANES + n]) * s->weight;
}

static infeng_status shrink_run(const infeng_args* common, int32_t phase, int64_t first, int64_t last,
                                infeng_worker* worker) {
  (void)phase;
  const infeng_shrink_args* args = (const infeng_shrink_args*)common;
  int64_t tile = 0;
  for (int32_t i = 0; i < args->segment_count; i++) {
    const infeng_lora_segment* s = lora_segment(args->segments, args->segment_stride, i);
    const int integer = s->dtype == INFENG_I8 || s->dtype == INFENG_I8T4;
    if (!integer && s->dtype != INFENG_F32 && s->dtype != INFENG_BF16) {
      return fail(worker, INFENG_UNIMPLEMENTED, "adapter is stored in a type that shrink does not know");
    }
    if (integer ? !args->in->q.data : !args->in->x.data) {
      return fail(worker, INFENG_INVALID_ARGUMENT, "the input has no values of the type that the adapter's A needs");
    }
    for (int64_t panel = 0; panel < panels_of(s); panel++, tile++) {
      if (tile < first || tile >= last) continue;
      for (int64_t row = s->row_begin; row < s->row_end; row++) shrink_row(args, s, panel, row);
    }
  }
  return INFENG_OK;
}

INLINE int32_t accepts(const infeng_problem* p, uint32_t weight, uint32_t act) {
  return p->op == INFENG_OP_SHRINK && p->weight_format == weight && p->act_format == act && fuses_only(p, 0);
}
static int32_t accepts_f32(const infeng_problem* p) { return accepts(p, INFENG_WEIGHT_F32, INFENG_ACT_F32); }
static int32_t accepts_bf16(const infeng_problem* p) { return accepts(p, INFENG_WEIGHT_BF16, INFENG_ACT_F32); }
static int32_t accepts_int8(const infeng_problem* p) {
  return accepts(p, INFENG_WEIGHT_INT8_ROW, INFENG_ACT_INT8_G64) ||
         accepts(p, INFENG_WEIGHT_INT8_ROW, INFENG_ACT_INT8_ROW);
}

KERNEL(reference_shrink_f32, INFENG_OP_SHRINK, "shrink_f32", 0, 0, accepts_f32, shrink_tiles, shrink_run);
KERNEL(reference_shrink_bf16, INFENG_OP_SHRINK, "shrink_bf16", 0, 0, accepts_bf16, shrink_tiles, shrink_run);
KERNEL(reference_shrink_int8, INFENG_OP_SHRINK, "shrink_int8", 0, NEED(LORA_I8T4), accepts_int8, shrink_tiles,
       shrink_run);
