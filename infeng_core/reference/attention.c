/* attention: softmax(q K^T * scale) V of one row and head over its sequence's paged cache, in splits of 256
 * positions that are combined in ascending order. The split's largest score is needed twice, for its own exponents and
 * for the weight of every split; scores are simply computed twice, so there is no scratch memory. A sink is one more
 * score with a value of 0.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kv.h"

#define SPLIT 256
#define FUSES INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_QUANTIZE)

#define HANDLES (NEED(WINDOW) | NEED(SOFTCAP) | NEED(SINKS) | NEED(ALIBI) | NEED(MASK) | NEED(HEAD_SIZES))

/* A row's query head and the positions [begin, end) that it sees. */
typedef struct query {
  const infeng_kv_cache* cache;
  const int32_t* block_table;
  int64_t kv_head;
  int64_t begin;
  int64_t end;
  int64_t position;
  float scale;
  float softcap; /* 0: none */
  float slope;
  int has_slope;
  float sink;              /* -inf: none */
  const float* q;          /* f32 and f16 caches */
  int8_t qq[MAX_HEAD_DIM]; /* int8 cache: the head quantized with one scale */
  float qs;
} query;

INLINE kv_slab slab_at(const query* x, int64_t position) {
  return slab_of(x->cache, x->block_table[position / LANES], x->kv_head);
}

/* Scores of one block's 16 tokens; those that are not visible are computed too and never read. */
INLINE void scores_f32(const query* x, const kv_slab* slab, float s[LANES]) {
  float a[LANES] = {0};
  const float* k = slab->k;
  for (int64_t d = 0; d < x->cache->head_dim; d++) {
    for (int t = 0; t < LANES; t++) a[t] = fmaf(x->q[d], k[d * LANES + t], a[t]);
  }
  for (int t = 0; t < LANES; t++) s[t] = a[t] * x->scale;
}

INLINE void scores_f16(const query* x, const kv_slab* slab, float s[LANES]) {
  float a[LANES] = {0};
  const uint16_t* k = slab->k;
  for (int64_t d = 0; d < x->cache->head_dim; d++) {
    for (int t = 0; t < LANES; t++) a[t] = fmaf(x->q[d], f32_from_f16(k[d * LANES + t]), a[t]);
  }
  for (int t = 0; t < LANES; t++) s[t] = a[t] * x->scale;
}

INLINE void scores_int8(const query* x, const kv_slab* slab, float s[LANES]) {
  int32_t a[LANES] = {0};
  const uint8_t* k = slab->k;
  for (int64_t d = 0; d < x->cache->head_dim; d++) {
    const uint8_t* line = k + (d / 4) * (4 * LANES) + d % 4;
    for (int t = 0; t < LANES; t++) a[t] += (int32_t)x->qq[d] * ((int32_t)line[4 * t] - 128);
  }
  for (int t = 0; t < LANES; t++) s[t] = (float)a[t] * ((x->qs * slab->k_scale[t]) * x->scale);
}

/* What follows the scale: s = softcap * tanh(s / softcap), then s = fma(slope, t - P, s). */
INLINE void bend(const query* x, int64_t position, float s[LANES]) {
  for (int t = 0; t < LANES; t++) {
    if (x->softcap != 0.0f) s[t] = x->softcap * ref_tanh(s[t] / x->softcap);
    if (x->has_slope) s[t] = fmaf(x->slope, (float)(position + t - x->position), s[t]);
  }
}

/* Scores of the visible positions of the split that starts at `start`; returns the largest. s is indexed by position -
 * start. */
INLINE float split_scores(const query* x, int64_t start, float s[SPLIT], uint32_t format) {
  float largest = -INFINITY;
  for (int64_t t0 = start; t0 < start + SPLIT; t0 += LANES) {
    if (t0 + LANES <= x->begin || t0 >= x->end) continue;
    const kv_slab slab = slab_at(x, t0);
    if (format == INFENG_KV_INT8) {
      scores_int8(x, &slab, s + (t0 - start));
    } else if (format == INFENG_KV_F16) {
      scores_f16(x, &slab, s + (t0 - start));
    } else {
      scores_f32(x, &slab, s + (t0 - start));
    }
    bend(x, t0, s + (t0 - start));
    for (int64_t t = t0; t < t0 + LANES; t++) {
      if (t >= x->begin && t < x->end && s[t - start] > largest) largest = s[t - start];
    }
  }
  return largest;
}

/* o[d] = sum over the split's visible t of p[t] V[t][d], t ascending; returns l, the sum of p. */
INLINE float split_values(const query* x, int64_t start, const float s[SPLIT], float m, float* o, uint32_t format) {
  const int64_t dim = x->cache->v_head_dim;
  float lanes[LANES] = {0};
  memset(o, 0, (size_t)dim * sizeof(float));
  for (int64_t t = start; t < start + SPLIT; t++) {
    if (t < x->begin || t >= x->end) continue;
    const kv_slab slab = slab_at(x, t);
    const float p = ref_exp(s[t - start] - m);
    lanes[t % LANES] += p;
    if (format == INFENG_KV_INT8) {
      const int8_t* v = (const int8_t*)slab.v + (t % LANES) * dim;
      const float weight = p * slab.v_scale[t % LANES];
      for (int64_t d = 0; d < dim; d++) o[d] = fmaf(weight, (float)v[d], o[d]);
    } else if (format == INFENG_KV_F16) {
      const uint16_t* v = (const uint16_t*)slab.v + (t % LANES) * dim;
      for (int64_t d = 0; d < dim; d++) o[d] = fmaf(p, f32_from_f16(v[d]), o[d]);
    } else {
      const float* v = (const float*)slab.v + (t % LANES) * dim;
      for (int64_t d = 0; d < dim; d++) o[d] = fmaf(p, v[d], o[d]);
    }
  }
  return ref_tree(lanes);
}

/* out = (sum over splits of o_j exp(m_j - M)) / (sum of l_j exp(m_j - M), then exp(sink - M)) */
INLINE void attend(const query* x, float* out, uint32_t format) {
  const int64_t dim = x->cache->v_head_dim;
  const int64_t start = x->begin / SPLIT * SPLIT;
  float s[SPLIT];
  float o[MAX_HEAD_DIM];
  float sum = 0.0f;
  float largest = x->sink;
  for (int64_t j = start; j < x->end; j += SPLIT) {
    const float m = split_scores(x, j, s, format);
    largest = m > largest ? m : largest;
  }
  memset(out, 0, (size_t)dim * sizeof(float));
  for (int64_t j = start; j < x->end; j += SPLIT) {
    const float m = split_scores(x, j, s, format);
    const float l = split_values(x, j, s, m, o, format);
    const float weight = ref_exp(m - largest);
    sum = fmaf(l, weight, sum);
    for (int64_t d = 0; d < dim; d++) out[d] = fmaf(o[d], weight, out[d]);
  }
  if (x->sink > -INFINITY) sum = sum + ref_exp(x->sink - largest);
  for (int64_t d = 0; d < dim; d++) out[d] = out[d] / sum;
}

CLONED static void attend_f32(const query* x, float* out) { attend(x, out, INFENG_KV_F32); }
CLONED static void attend_f16(const query* x, float* out) { attend(x, out, INFENG_KV_F16); }
CLONED static void attend_int8(const query* x, float* out) { attend(x, out, INFENG_KV_INT8); }

/* A tile is one row and one key/value head with all query heads that share it. */
static int64_t attention_tiles(const infeng_args* common, int32_t phase) {
  (void)phase;
  return common->rows * ((const infeng_attention_args*)common)->cache->kv_heads;
}

static void attention_tile(const infeng_attention_args* args, const infeng_kv_segment* s, int64_t row,
                           int64_t kv_head) {
  const infeng_kv_cache* cache = args->cache;
  const int64_t dim = cache->v_head_dim;
  const int64_t shared = args->q.shape[1] / cache->kv_heads;
  const int64_t position = s->pos0 + (row - s->row_begin);
  const int64_t begin = args->window > 0 && position >= args->window ? position - args->window + 1 : 0;
  for (int64_t head = kv_head * shared; head < (kv_head + 1) * shared; head++) {
    float out[MAX_HEAD_DIM];
    query x = {.cache = cache,
               .block_table = s->block_table,
               .kv_head = kv_head,
               .begin = begin,
               .end = args->mask == INFENG_MASK_FULL ? s->length : position + 1,
               .position = position,
               .scale = args->scale,
               .softcap = args->softcap,
               .slope = args->slopes ? args->slopes[head] : 0.0f,
               .has_slope = args->slopes != NULL,
               .sink = args->sinks ? args->sinks[head] : -INFINITY,
               .q = f32_row(&args->q, row) + head * args->q.strides[1]};
    if (cache->format == INFENG_KV_INT8) {
      int32_t sum;
      x.qs = ref_quantize(x.q, cache->head_dim, cache->head_dim, x.qq, &sum);
      attend_int8(&x, out);
    } else if (cache->format == INFENG_KV_F16) {
      attend_f16(&x, out);
    } else {
      attend_f32(&x, out);
    }
    for (uint32_t i = 0; i < args->common.epilogue_count; i++) {
      quantize_columns(act_of(args->common.epilogues[i]), row, head * dim, out, dim);
    }
    if (args->out.data) memcpy(f32_row(&args->out, row) + head * dim, out, (size_t)dim * sizeof(float));
  }
}

static infeng_status attention_run(const infeng_args* common, int32_t phase, int64_t first, int64_t last,
                                   infeng_worker* worker) {
  (void)phase;
  const infeng_attention_args* args = (const infeng_attention_args*)common;
  const infeng_kv_cache* cache = args->cache;
  if (!kv_cache_fits(cache, INFENG_KV_F32) && !kv_cache_fits(cache, INFENG_KV_F16) &&
      !kv_cache_fits(cache, INFENG_KV_INT8)) {
    return fail(worker, INFENG_INVALID_ARGUMENT, "cache has another format or block size");
  }
  if (args->mask > INFENG_MASK_FULL) return fail(worker, INFENG_UNIMPLEMENTED, "attention has an unknown mask");
  for (uint32_t i = 0; i < common->epilogue_count; i++) {
    if (common->epilogues[i]->kind != INFENG_EPILOGUE_QUANTIZE || cache->v_head_dim % GROUP != 0) {
      return fail(worker, INFENG_UNIMPLEMENTED,
                  "attention fuses quantize only, and only where heads of v are a multiple of 64");
    }
  }
  for (int64_t tile = first; tile < last; tile++) {
    const int64_t row = tile / cache->kv_heads;
    const infeng_kv_segment* s = find_kv_segment(args->segments, args->segment_stride, args->segment_count, row);
    if (s) attention_tile(args, s, row, tile % cache->kv_heads);
  }
  return INFENG_OK;
}

INLINE int32_t accepts(const infeng_problem* p, uint32_t format) {
  return p->op == INFENG_OP_ATTENTION && p->kv_format == format && fuses_only(p, FUSES) && p->head_dim > 0 &&
         p->head_dim <= MAX_HEAD_DIM && p->v_head_dim > 0 && p->v_head_dim <= MAX_HEAD_DIM &&
         (p->epilogue_count == 0 || p->v_head_dim % GROUP == 0);
}
static int32_t accepts_f32(const infeng_problem* p) { return accepts(p, INFENG_KV_F32); }
static int32_t accepts_f16(const infeng_problem* p) { return accepts(p, INFENG_KV_F16); }
static int32_t accepts_int8(const infeng_problem* p) { return accepts(p, INFENG_KV_INT8); }

KERNEL(reference_attention_f32, INFENG_OP_ATTENTION, "attention_f32", FUSES, HANDLES, accepts_f32, attention_tiles,
       attention_run);
KERNEL(reference_attention_f16, INFENG_OP_ATTENTION, "attention_f16", FUSES, HANDLES, accepts_f16, attention_tiles,
       attention_run);
KERNEL(reference_attention_int8, INFENG_OP_ATTENTION, "attention_int8", FUSES, HANDLES, accepts_int8, attention_tiles,
       attention_run);
