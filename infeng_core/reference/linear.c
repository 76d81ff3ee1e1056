/* linear: cur = x W^T, then the epilogues, then out. One accumulator per output, outputs in lanes, K ascending.
 * SPDX-License-Identifier: Apache-2.0 */
#include "epilogue.h"
#include "weights.h"

/* A tile is 64 outputs, or as many as the widest group that the list quantizes; twice as many before GATED_MUL. */
static int64_t linear_tiles(const infeng_args* common, int32_t phase) {
  (void)phase;
  const infeng_linear_args* args = (const infeng_linear_args*)common;
  return common->rows == 0 ? 0 : ceil_div(args->weight->panels * LANES, reference_tile_columns(common));
}

/* One panel of integers for the rows of a block: out = fma(float(acc), wscale * xscale, out) per group, ascending. */
INLINE void panel_int(const infeng_linear_args* args, const uint8_t* panel, block* b, int64_t column, int_group_fn read,
                      int steps) {
  const int64_t groups = ceil_div(args->weight->k, GROUP);
  for (int64_t m = 0; m < b->rows; m++) memset(b->cur[m] + column, 0, LANES * sizeof(float));
  for (int64_t g = 0; g < groups; g++) {
    int_group group;
    read(panel, g, &group);
    for (int64_t m = 0; m < b->rows; m++) {
      const int8_t* q = i8_row(&args->in->q, b->row + m) + g * GROUP;
      const float xscale = f32_row(&args->in->scale, b->row + m)[g];
      float* out = b->cur[m] + column;
      for (int s = 0; s < steps; s++) {
        int32_t acc[LANES] = {0};
        for (int k = s * GROUP / steps; k < (s + 1) * GROUP / steps; k++) {
          for (int n = 0; n < LANES; n++) acc[n] += (int32_t)q[k] * (int32_t)group.w[k][n];
        }
        for (int n = 0; n < LANES; n++) out[n] = fmaf((float)acc[n], group.scale[s][n] * xscale, out[n]);
      }
    }
  }
}

/* The same with integer sub-scales: out = fma(float(acc), xscale, out) per group of the activation (64, 128 or 256
 * inputs), ascending, then out * d. If a row has one scale, out = (float(acc) * xscale) * d; there a row of int8
 * weights is one with sub-scales of 1. */
INLINE void panel_sub_scaled(const infeng_linear_args* args, const uint8_t* panel, block* b, int64_t column,
                             int_group_fn read) {
  const int64_t groups = ceil_div(args->weight->k, GROUP), wide = args->in->group / GROUP;
  const int is_whole = args->in->group == INFENG_GROUP_ROW;
  int_group group;
  int32_t acc[BLOCK_ROWS][LANES];
  for (int64_t m = 0; m < b->rows; m++) memset(b->cur[m] + column, 0, LANES * sizeof(float));
  for (int64_t g = 0; g < groups; g++) {
    read(panel, g, &group);
    if (g % wide == 0) memset(acc, 0, sizeof acc);
    const int is_last = (g + 1) % wide == 0 || g + 1 == groups;
    for (int64_t m = 0; m < b->rows; m++) {
      const int8_t* q = i8_row(&args->in->q, b->row + m) + g * GROUP;
      const float xscale = f32_row(&args->in->scale, b->row + m)[g];
      float* out = b->cur[m] + column;
      for (int k = 0; k < GROUP; k++) {
        for (int n = 0; n < LANES; n++) acc[m][n] += (int32_t)q[k] * (int32_t)group.w[k][n];
      }
      for (int n = 0; n < LANES && is_last; n++) {
        out[n] = is_whole ? (float)acc[m][n] * xscale : fmaf((float)acc[m][n], xscale, out[n]);
      }
    }
  }
  for (int64_t m = 0; m < b->rows; m++) {
    for (int n = 0; n < LANES; n++) b->cur[m][column + n] *= group.scale[0][n];
  }
}

/* The same with sub-scales and minima. Within a superblock, a = fma(float(acc), xscale, a) and, per step, b = fma(t, y,
 * b), where y is the rounded product of minus the step's sum of x and xscale. At its end, out = fma(d, a, out), out =
 * fma(e, b, out). */
INLINE void panel_affine(const infeng_linear_args* args, const void* panel, block* b, int64_t column,
                         int64_t superblock, int step, int has_minima) {
  const int64_t groups = ceil_div(args->weight->k, GROUP), wide = superblock / GROUP;
  float sums[2][BLOCK_ROWS][LANES];
  for (int64_t m = 0; m < b->rows; m++) memset(b->cur[m] + column, 0, LANES * sizeof(float));
  for (int64_t g = 0; g < groups; g++) {
    _Alignas(64) infeng_block group;
    read_block(args->weight, panel, g, superblock, &group);
    if (g % wide == 0) memset(sums, 0, sizeof sums);
    for (int64_t m = 0; m < b->rows; m++) {
      const int8_t* q = i8_row(&args->in->q, b->row + m) + g * GROUP;
      const float xscale = f32_row(&args->in->scale, b->row + m)[g];
      int32_t acc[LANES] = {0}, minus[MOST_STEPS] = {0};
      for (int k = 0; k < GROUP; k++) {
        minus[k / step] -= q[k];
        for (int n = 0; n < LANES; n++) acc[n] += (int32_t)q[k] * (group.sub_scale[k / step][n] * group.q[k][n]);
      }
      for (int n = 0; n < LANES; n++) sums[0][m][n] = fmaf((float)acc[n], xscale, sums[0][m][n]);
      for (int s = 0; s < GROUP / step && has_minima; s++) {
        const float y = (float)minus[s] * xscale;
        for (int n = 0; n < LANES; n++) sums[1][m][n] = fmaf((float)group.sub_minimum[s][n], y, sums[1][m][n]);
      }
      if (g % wide != wide - 1 && g != groups - 1) continue;
      float* out = b->cur[m] + column;
      for (int n = 0; n < LANES; n++) {
        out[n] = fmaf(group.scale[0][n], sums[0][m][n], out[n]);
        if (has_minima) out[n] = fmaf(group.minimum[0][n], sums[1][m][n], out[n]);
      }
    }
  }
}

/* The same in a library's format with a scale, and perhaps a minimum, for each group: out = fma(float(acc), wscale *
 * xscale, out) per step, ascending, then out = fma(minimum, y, out) with y as above. */
INLINE void panel_foreign_int(const infeng_linear_args* args, const void* panel, block* b, int64_t column) {
  const int step = step_of(args->weight->foreign), has_minima = args->weight->foreign->has_minima != 0;
  for (int64_t m = 0; m < b->rows; m++) memset(b->cur[m] + column, 0, LANES * sizeof(float));
  for (int64_t g = 0; g * GROUP < args->weight->k; g++) {
    _Alignas(64) infeng_block group;
    read_block(args->weight, panel, g, 0, &group);
    for (int64_t m = 0; m < b->rows; m++) {
      const int8_t* q = i8_row(&args->in->q, b->row + m) + g * GROUP;
      const float xscale = f32_row(&args->in->scale, b->row + m)[g];
      float* out = b->cur[m] + column;
      for (int s = 0; s < GROUP / step; s++) {
        int32_t acc[LANES] = {0}, minus = 0;
        for (int k = s * step; k < (s + 1) * step; k++) {
          minus -= q[k];
          for (int n = 0; n < LANES; n++) acc[n] += (int32_t)q[k] * (int32_t)group.q[k][n];
        }
        const float y = (float)minus * xscale;
        for (int n = 0; n < LANES; n++) {
          out[n] = fmaf((float)acc[n], group.scale[s][n] * xscale, out[n]);
          if (has_minima) out[n] = fmaf(group.minimum[s][n], y, out[n]);
        }
      }
    }
  }
}

/* One panel of floats for the rows of a block: acc = fma(x[k], w[n][k], acc), k ascending over K without padding. */
INLINE void panel_float(const infeng_linear_args* args, const void* panel, block* b, int64_t column,
                        void (*read)(const void*, int64_t, float*)) {
  for (int64_t m = 0; m < b->rows; m++) {
    const float* x = f32_row(&args->in->x, b->row + m);
    float acc[LANES] = {0};
    for (int64_t k = 0; k < args->weight->k; k++) {
      float w[LANES];
      read(panel, k, w);
      for (int n = 0; n < LANES; n++) acc[n] = fmaf(x[k], w[n], acc[n]);
    }
    memcpy(b->cur[m] + column, acc, sizeof acc);
  }
}

/* The same in a format that a library registered, unpacked 64 inputs at a time. */
INLINE void panel_foreign_float(const infeng_linear_args* args, const void* panel, block* b, int64_t column) {
  const int64_t k = args->weight->k;
  for (int64_t m = 0; m < b->rows; m++) memset(b->cur[m] + column, 0, LANES * sizeof(float));
  for (int64_t g = 0; g * GROUP < k; g++) {
    _Alignas(64) infeng_block group;
    read_block(args->weight, panel, g, 0, &group);
    for (int64_t m = 0; m < b->rows; m++) {
      const float* x = f32_row(&args->in->x, b->row + m) + g * GROUP;
      float* acc = b->cur[m] + column;
      for (int64_t i = 0; i < min_i64(GROUP, k - g * GROUP); i++) {
        for (int n = 0; n < LANES; n++) acc[n] = fmaf(x[i], group.w[i][n], acc[n]);
      }
    }
  }
}

#define PANEL_INT(arg, name, number, text, steps)                                                                \
  CLONED static void panel_##name(const infeng_linear_args* args, const void* panel, block* b, int64_t column) { \
    if (args->in->group == INFENG_GROUP_ROW)                                                                     \
      panel_sub_scaled(args, panel, b, column, group_##name);                                                    \
    else                                                                                                         \
      panel_int(args, panel, b, column, group_##name, steps);                                                    \
  }
SCALED_FORMATS(PANEL_INT, )

#define PANEL_SUB_SCALED(arg, name, number, text, steps)                                                         \
  CLONED static void panel_##name(const infeng_linear_args* args, const void* panel, block* b, int64_t column) { \
    panel_sub_scaled(args, panel, b, column, group_##name);                                                      \
  }
SUB_SCALED_FORMATS(PANEL_SUB_SCALED, )

#define PANEL_AFFINE(arg, name, number, text, superblock)                                                        \
  CLONED static void panel_##name(const infeng_linear_args* args, const void* panel, block* b, int64_t column) { \
    panel_affine(args, panel, b, column, superblock, 32, 1);                                                     \
  }
AFFINE_FORMATS(PANEL_AFFINE, )

#define PANEL_FLOAT(arg, name, number, text, steps)                                                              \
  CLONED static void panel_##name(const infeng_linear_args* args, const void* panel, block* b, int64_t column) { \
    panel_float(args, panel, b, column, column_##name);                                                          \
  }
FLOAT_FORMATS(PANEL_FLOAT, )

CLONED static void panel_foreign(const infeng_linear_args* args, const void* panel, block* b, int64_t column) {
  const infeng_format* format = args->weight->foreign;
  if (format->group == 0)
    panel_foreign_float(args, panel, b, column);
  else if (format->superblock != 0)
    panel_affine(args, panel, b, column, format->superblock, step_of(format), format->has_minima != 0);
  else
    panel_foreign_int(args, panel, b, column);
}

typedef void (*panel_fn)(const infeng_linear_args* args, const void* panel, block* b, int64_t column);

static panel_fn panel_function(const infeng_weight* weight) {
  switch (weight->format) {
#define CASE(arg, name, number, text, steps) \
  case number:                               \
    return panel_##name;
    WEIGHT_FORMATS(CASE, )
    default:
      return weight->foreign ? panel_foreign : NULL;
  }
}

static infeng_status linear_run(const infeng_args* common, int32_t phase, int64_t first, int64_t last,
                                infeng_worker* worker) {
  (void)phase;
  const infeng_linear_args* args = (const infeng_linear_args*)common;
  const panel_fn compute = panel_function(args->weight);
  if (!compute || args->weight->layout != 0)
    return fail(worker, INFENG_INVALID_ARGUMENT, "weight is not in a native layout");
  const infeng_status status = reference_check_list(common, worker);
  const int64_t tile_columns = reference_tile_columns(common);
  const int64_t columns = args->weight->panels * LANES;
  for (int64_t tile = first; tile < last; tile++) {
    for (int64_t row = 0; row < common->rows && status == INFENG_OK; row += BLOCK_ROWS) {
      block b;
      b.row = row;
      b.rows = min_i64(BLOCK_ROWS, common->rows - row);
      b.column = tile * tile_columns;
      b.width = min_i64(tile_columns, columns - b.column);
      for (int64_t c = 0; c < b.width; c += LANES) {
        const int64_t panel = (b.column + c) / LANES;
        compute(args, (const char*)args->weight->data + panel * args->weight->panel_bytes, &b, c);
      }
      reference_finish_block(common, &args->out, &b);
    }
  }
  return status;
}

INLINE int32_t accepts(const infeng_problem* p, uint32_t weight, uint32_t act) {
  return p->op == INFENG_OP_LINEAR && p->weight_format == weight && p->act_format == act &&
         fuses_only(p, ALL_EPILOGUES);
}
INLINE int32_t reads_f32(const infeng_problem* p, uint32_t weight) { return accepts(p, weight, INFENG_ACT_F32); }
INLINE int32_t reads_int8(const infeng_problem* p, uint32_t weight) { return accepts(p, weight, INFENG_ACT_INT8_G64); }
INLINE int32_t reads_wide(const infeng_problem* p, uint32_t weight) {
  const int is_wide = p->act_format >= INFENG_ACT_INT8_G128 && p->act_format <= INFENG_ACT_INT8_ROW;
  return accepts(p, weight, is_wide ? p->act_format : INFENG_ACT_INT8_G64);
}
INLINE int32_t reads_rows(const infeng_problem* p, uint32_t weight) {
  const int is_row = p->act_format == INFENG_ACT_INT8_ROW && weight == INFENG_WEIGHT_INT8_ROW;
  return accepts(p, weight, is_row ? p->act_format : INFENG_ACT_INT8_G64);
}
static int32_t accepts_foreign(const infeng_problem* p) {
  return p->weight_format >= INFENG_WEIGHT_FOREIGN && accepts(p, p->weight_format, p->act_format);
}

#define LINEAR(reads, name, number, text, steps)                                                                 \
  static int32_t accepts_##name(const infeng_problem* p) { return reads(p, number); }                            \
  KERNEL(reference_linear_##name, INFENG_OP_LINEAR, "linear_" text, ALL_EPILOGUES, HANDLES_LIST, accepts_##name, \
         linear_tiles, linear_run);
FLOAT_FORMATS(LINEAR, reads_f32)
SCALED_FORMATS(LINEAR, reads_rows)
SUB_SCALED_FORMATS(LINEAR, reads_wide)
AFFINE_FORMATS(LINEAR, reads_int8)
KERNEL(reference_linear_foreign, INFENG_OP_LINEAR, "linear_foreign", ALL_EPILOGUES, HANDLES_LIST, accepts_foreign,
       linear_tiles, linear_run);
