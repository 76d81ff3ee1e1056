/* embed: out[m] = row ids[m] of the weight, widened. SPDX-License-Identifier: Apache-2.0 */
#include "weights.h"

static int64_t embed_tiles(const infeng_args* args, int32_t phase) {
  (void)phase;
  return args->rows;
}

/* One lane of a panel of an integer format: float(q) * scale. */
INLINE void lane_int(const infeng_weight* weight, const uint8_t* panel, int lane, float* out, int_group_fn read,
                     int steps) {
  const int64_t k = weight->k;
  for (int64_t g = 0; g * GROUP < k; g++) {
    int_group group;
    read(panel, g, &group);
    const int64_t count = min_i64(GROUP, k - g * GROUP);
    for (int64_t i = 0; i < count; i++) {
      out[g * GROUP + i] = (float)group.w[i][lane] * group.scale[i * steps / GROUP][lane];
    }
  }
}

/* With sub-scales and minima: d * float(s u) - e * float(t). */
INLINE void lane_affine(const infeng_weight* weight, const void* panel, int lane, float* out, int64_t superblock,
                        int step, int has_minima) {
  const int64_t k = weight->k;
  for (int64_t g = 0; g * GROUP < k; g++) {
    _Alignas(64) infeng_block group;
    read_block(weight, panel, g, superblock, &group);
    const int64_t count = min_i64(GROUP, k - g * GROUP);
    for (int64_t i = 0; i < count; i++) {
      const float scaled = group.scale[0][lane] * (float)(group.sub_scale[i / step][lane] * group.q[i][lane]);
      const float least = has_minima ? group.minimum[0][lane] * (float)group.sub_minimum[i / step][lane] : 0;
      out[g * GROUP + i] = scaled - least;
    }
  }
}

INLINE void lane_float(const void* panel, int lane, int64_t k, float* out, void (*read)(const void*, int64_t, float*)) {
  for (int64_t i = 0; i < k; i++) {
    float w[LANES];
    read(panel, i, w);
    out[i] = w[lane];
  }
}

static void lane_foreign(const infeng_weight* weight, const void* panel, int lane, float* out) {
  const infeng_format* format = weight->foreign;
  const int step = step_of(format);
  if (format->superblock != 0) {
    lane_affine(weight, panel, lane, out, format->superblock, step, format->has_minima != 0);
    return;
  }
  for (int64_t g = 0; g * GROUP < weight->k; g++) {
    _Alignas(64) infeng_block group;
    read_block(weight, panel, g, 0, &group);
    for (int64_t i = 0; i < min_i64(GROUP, weight->k - g * GROUP); i++) {
      const float scaled =
          format->group == 0 ? group.w[i][lane] : (float)group.q[i][lane] * group.scale[i / step][lane];
      out[g * GROUP + i] = format->has_minima != 0 ? scaled - group.minimum[i / step][lane] : scaled;
    }
  }
}

static infeng_status embed_run(const infeng_args* common, int32_t phase, int64_t first, int64_t last,
                               infeng_worker* worker) {
  (void)phase;
  const infeng_embed_args* args = (const infeng_embed_args*)common;
  const infeng_weight* weight = args->weight;
  if (weight->layout != 0) return fail(worker, INFENG_INVALID_ARGUMENT, "weight is not in a native layout");
  for (int64_t row = first; row < last; row++) {
    const int64_t id = args->ids[row];
    if (id < 0 || id >= weight->n) return fail(worker, INFENG_INVALID_ARGUMENT, "token id lies outside the vocabulary");
    const uint8_t* panel = (const uint8_t*)weight->data + (id / LANES) * weight->panel_bytes;
    const int lane = (int)(id % LANES);
    float* out = f32_row(&args->out, row);
    switch (weight->format) {
#define LANE_FLOAT(arg, name, number, text, steps)          \
  case number:                                              \
    lane_float(panel, lane, weight->k, out, column_##name); \
    break;
#define LANE_INT(arg, name, number, text, steps)             \
  case number:                                               \
    lane_int(weight, panel, lane, out, group_##name, steps); \
    break;
#define LANE_AFFINE(arg, name, number, text, superblock)      \
  case number:                                                \
    lane_affine(weight, panel, lane, out, superblock, 32, 1); \
    break;
      FLOAT_FORMATS(LANE_FLOAT, )
      INT_FORMATS(LANE_INT, )
      AFFINE_FORMATS(LANE_AFFINE, )
      default:
        if (weight->foreign) {
          lane_foreign(weight, panel, lane, out);
          break;
        }
        return fail(worker, INFENG_UNIMPLEMENTED, "embed does not know the weight's format");
    }
  }
  return INFENG_OK;
}

INLINE int32_t accepts(const infeng_problem* p, uint32_t format) {
  return p->op == INFENG_OP_EMBED && p->weight_format == format && fuses_only(p, 0);
}
static int32_t accepts_foreign(const infeng_problem* p) {
  return p->weight_format >= INFENG_WEIGHT_FOREIGN && accepts(p, p->weight_format);
}

#define EMBED(arg, name, number, text, steps)                                           \
  static int32_t accepts_##name(const infeng_problem* p) { return accepts(p, number); } \
  KERNEL(reference_embed_##name, INFENG_OP_EMBED, "embed_" text, 0, 0, accepts_##name, embed_tiles, embed_run);
WEIGHT_FORMATS(EMBED, )
KERNEL(reference_embed_foreign, INFENG_OP_EMBED, "embed_foreign", 0, 0, accepts_foreign, embed_tiles, embed_run);
