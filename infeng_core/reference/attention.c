/* attention: softmax(q K^T * scale) V of one row and head over its sequence's paged cache, in splits of 256 positions
 * that are combined in ascending order. A split's largest score is needed twice, for its exponents and for the weights
 * of splits, so scores are computed twice, which needs no scratch memory. A sink is an additional score whose V is 0.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kv_formats.h"

#define SPLIT 256
#define FUSES INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_QUANTIZE)

#define HANDLES                                                                               \
  (NEED(WINDOW) | NEED(SOFTCAP) | NEED(SINKS) | NEED(ALIBI) | NEED(MASK) | NEED(HEAD_SIZES) | \
   INFENG_NEED_BIT(INFENG_NEED_FUNCTION(INFENG_FUNCTION_WIDE)))

/* A row's query head and the positions [begin, end) that it sees. */
typedef struct query {
  const infeng_kv_cache* cache;
  const int32_t* block_table;
  int64_t kv_head;
  int64_t begin;
  int64_t end;
  int64_t position;
  float softcap; /* 0: none */
  float slope;
  int has_slope;
  float sink; /* -inf: none */
  query_head head;
} query;

typedef void (*scores_fn)(const query_head* x, const kv_slab* slab, float s[LANES]);
typedef int32_t (*integer_fn)(const kv_slab* slab, int64_t token, int64_t d, int64_t dim);
typedef void (*token_fn)(const kv_slab* slab, int64_t token, float p, float* o, int64_t dim);
/* o[d] of the split at `start` from p[position - start] of visible positions. */
typedef void (*values_fn)(const query* x, int64_t start, const float p[SPLIT], float* o);

INLINE kv_slab slab_at(const query* x, int64_t position) {
  return slab_of(x->cache, x->block_table[position / LANES], x->kv_head);
}

/* The operations after the scale: s = softcap * tanh(s / softcap), then s = fma(slope, t - P, s). */
INLINE void bend(const query* x, int64_t position, float s[LANES]) {
  for (int t = 0; t < LANES; t++) {
    if (x->softcap != 0.0f) s[t] = x->softcap * ref_tanh(s[t] / x->softcap);
    if (x->has_slope) s[t] = fmaf(x->slope, (float)(position + t - x->position), s[t]);
  }
}

/* Computes the scores of the visible positions of the split at `start`, s[position - start]; returns the largest. */
INLINE float split_scores(const query* x, int64_t start, float s[SPLIT], scores_fn scores) {
  float largest = -INFINITY;
  for (int64_t t0 = start; t0 < start + SPLIT; t0 += LANES) {
    if (t0 + LANES <= x->begin || t0 >= x->end) continue;
    const kv_slab slab = slab_at(x, t0);
    scores(&x->head, &slab, s + (t0 - start));
    bend(x, t0, s + (t0 - start));
    for (int64_t t = t0; t < t0 + LANES; t++) {
      if (t >= x->begin && t < x->end && s[t - start] > largest) largest = s[t - start];
    }
  }
  return largest;
}

INLINE int sees(const query* x, int64_t position) { return position >= x->begin && position < x->end; }

/* The scores of the split's visible positions become p[t] = exp(s[t] - m); returns l, their sum. */
INLINE float exponents(const query* x, int64_t start, float s[SPLIT], float m) {
  float lanes[LANES] = {0};
  for (int64_t t = start; t < start + SPLIT; t++) {
    if (!sees(x, t)) continue;
    s[t - start] = ref_exp(s[t - start] - m);
    lanes[t % LANES] += s[t - start];
  }
  return ref_tree(lanes);
}

/* o[d] = sum over the split's visible t of p[t] V[t][d], t ascending. */
INLINE void add_tokens(const query* x, int64_t start, const float p[SPLIT], float* o, token_fn add) {
  const int64_t dim = x->cache->v_head_dim;
  memset(o, 0, (size_t)dim * sizeof(float));
  for (int64_t t = start; t < start + SPLIT; t++) {
    if (!sees(x, t)) continue;
    const kv_slab slab = slab_at(x, t);
    add(&slab, t % LANES, p[t - start], o, dim);
  }
}

/* With r[t] = p[t] times the scale of V[t], and R the largest |r[t]|: each token has a share of b[t] = r[t] / (R /
 * most), rounded to an integer, and o[d] is the integer sum of b[t] V[t][d], times R / most. */
INLINE void add_shares(const query* x, int64_t start, const float p[SPLIT], float* o, float most, integer_fn integer) {
  const int64_t dim = x->cache->v_head_dim;
  float r[SPLIT];
  float largest = 0.0f;
  int32_t sum[MAX_HEAD_DIM] = {0};
  for (int64_t t = start; t < start + SPLIT; t++) {
    if (!sees(x, t)) continue;
    r[t - start] = p[t - start] * slab_at(x, t).v_scale[t % LANES];
    if (fabsf(r[t - start]) > largest) largest = fabsf(r[t - start]);
  }
  const float inverse = largest < 0x1p-100f ? 0.0f : most / largest;
  for (int64_t t = start; t < start + SPLIT; t++) {
    if (!sees(x, t)) continue;
    const kv_slab slab = slab_at(x, t);
    const int32_t share = (int32_t)rintf(clamped(r[t - start] * inverse, -most, most));
    for (int64_t d = 0; d < dim; d++) sum[d] += share * integer(&slab, t % LANES, d, dim);
  }
  for (int64_t d = 0; d < dim; d++) o[d] = (float)sum[d] * (largest / most);
}

/* out = (sum over splits of o_j exp(m_j - M)) / (sum of l_j exp(m_j - M), then exp(sink - M)) */
INLINE void attend(const query* x, float* out, scores_fn scores, values_fn values) {
  const int64_t dim = x->cache->v_head_dim;
  const int64_t start = x->begin / SPLIT * SPLIT;
  float s[SPLIT];
  float o[MAX_HEAD_DIM];
  float sum = 0.0f;
  float largest = x->sink;
  for (int64_t j = start; j < x->end; j += SPLIT) {
    const float m = split_scores(x, j, s, scores);
    largest = m > largest ? m : largest;
  }
  memset(out, 0, (size_t)dim * sizeof(float));
  for (int64_t j = start; j < x->end; j += SPLIT) {
    const float m = split_scores(x, j, s, scores);
    const float l = exponents(x, j, s, m);
    values(x, j, s, o);
    const float weight = ref_exp(m - largest);
    sum = fmaf(l, weight, sum);
    for (int64_t d = 0; d < dim; d++) out[d] = fmaf(o[d], weight, out[d]);
  }
  if (x->sink > -INFINITY) sum = sum + ref_exp(x->sink - largest);
  for (int64_t d = 0; d < dim; d++) out[d] = out[d] / sum;
}

#define ADD_TOKENS(arg, name, number)                                                       \
  INLINE void split_##name(const query* x, int64_t start, const float p[SPLIT], float* o) { \
    add_tokens(x, start, p, o, values_##name);                                              \
  }
TOKEN_FORMATS(ADD_TOKENS, )
#define ADD_SHARES(arg, name, number)                                                       \
  INLINE void split_##name(const query* x, int64_t start, const float p[SPLIT], float* o) { \
    add_shares(x, start, p, o, most_share_##name, integer_##name);                          \
  }
SHARE_FORMATS(ADD_SHARES, )

#define ATTEND(arg, name, number)                          \
  CLONED static void attend_##name(query* x, float* out) { \
    prepare_##name(&x->head);                              \
    attend(x, out, scores_##name, split_##name);           \
    finish_##name(out, x->cache->v_head_dim);              \
  }
CACHE_FORMATS(ATTEND, )

typedef void (*attend_fn)(query* x, float* out);

/* NULL for a cache with another format or block size. */
static attend_fn attend_function(const infeng_kv_cache* cache) {
#define FITTING(arg, name, number) \
  if (kv_cache_fits(cache, number)) return attend_##name;
  CACHE_FORMATS(FITTING, )
  return NULL;
}

/* A tile is one row and one key/value head with all query heads that share it. */
static int64_t attention_tiles(const infeng_args* common, int32_t phase) {
  (void)phase;
  return common->rows * ((const infeng_attention_args*)common)->cache->kv_heads;
}

/* Quantizes one head of a row; in wide groups, all heads of 256 columns once the last of them is complete. */
static void quantize_head(const infeng_args* common, int64_t row, int64_t head, int64_t dim,
                          float columns[WIDEST_GROUP], const float* out) {
  const int64_t begin = head * dim % WIDEST_GROUP;
  for (uint32_t i = 0; i < common->epilogue_count; i++) {
    const infeng_epilogue* e = common->epilogues[i];
    if (!is_wide(e)) {
      quantize_columns(act_of(e), row, head * dim, out, dim);
      continue;
    }
    memcpy(columns + begin, out, (size_t)dim * sizeof(float));
    if (begin + dim == WIDEST_GROUP) quantize_columns(act_of(e), row, head * dim - begin, columns, WIDEST_GROUP);
  }
}

static void attention_tile(const infeng_attention_args* args, const infeng_kv_segment* s, int64_t row, int64_t kv_head,
                           attend_fn attend_one) {
  const infeng_kv_cache* cache = args->cache;
  const int64_t dim = cache->v_head_dim;
  const int64_t shared = args->q.shape[1] / cache->kv_heads;
  const int64_t position = s->pos0 + (row - s->row_begin);
  const int64_t begin = args->window > 0 && position >= args->window ? position - args->window + 1 : 0;
  float columns[WIDEST_GROUP];
  for (int64_t head = kv_head * shared; head < (kv_head + 1) * shared; head++) {
    float out[MAX_HEAD_DIM];
    query x = {
        .cache = cache,
        .block_table = s->block_table,
        .kv_head = kv_head,
        .begin = begin,
        .end = args->mask == INFENG_MASK_FULL ? s->length : position + 1,
        .position = position,
        .softcap = args->softcap,
        .slope = args->slopes ? args->slopes[head] : 0.0f,
        .has_slope = args->slopes != NULL,
        .sink = args->sinks ? args->sinks[head] : -INFINITY,
        .head = {
            .q = f32_row(&args->q, row) + head * args->q.strides[1], .dim = cache->head_dim, .scale = args->scale}};
    attend_one(&x, out);
    quantize_head(&args->common, row, head, dim, columns, out);
    if (args->out.data) memcpy(f32_row(&args->out, row) + head * dim, out, (size_t)dim * sizeof(float));
  }
}

/* Groups of 64 must fit in a head, wide groups in the heads that share a kv head. */
INLINE int groups_are_whole(const infeng_epilogue* const* list, uint32_t count, int64_t shared, int64_t dim) {
  if (count == 0) return 1;
  if (dim % GROUP != 0) return 0;
  return !has_wide(list, count) || (WIDEST_GROUP % dim == 0 && shared * dim % WIDEST_GROUP == 0);
}

static infeng_status attention_run(const infeng_args* common, int32_t phase, int64_t first, int64_t last,
                                   infeng_worker* worker) {
  (void)phase;
  const infeng_attention_args* args = (const infeng_attention_args*)common;
  const infeng_kv_cache* cache = args->cache;
  const attend_fn attend_one = attend_function(cache);
  if (!attend_one) return fail(worker, INFENG_INVALID_ARGUMENT, "cache has another format or block size");
  if (args->mask > INFENG_MASK_FULL) return fail(worker, INFENG_UNIMPLEMENTED, "attention has an unknown mask");
  int fits = groups_are_whole(common->epilogues, common->epilogue_count, args->q.shape[1] / cache->kv_heads,
                              cache->v_head_dim);
  for (uint32_t i = 0; i < common->epilogue_count; i++) fits &= common->epilogues[i]->kind == INFENG_EPILOGUE_QUANTIZE;
  if (!fits) {
    return fail(worker, INFENG_UNIMPLEMENTED,
                "attention fuses quantize only, and only where heads of v are a multiple of 64 (or, in wide groups, "
                "where heads that share keys fill groups of 256)");
  }
  for (int64_t tile = first; tile < last; tile++) {
    const int64_t row = tile / cache->kv_heads;
    const infeng_kv_segment* s = find_kv_segment(args->segments, args->segment_stride, args->segment_count, row);
    if (s) attention_tile(args, s, row, tile % cache->kv_heads, attend_one);
  }
  return INFENG_OK;
}

INLINE int32_t accepts(const infeng_problem* p, uint32_t format) {
  return p->op == INFENG_OP_ATTENTION && p->kv_format == format && fuses_only(p, FUSES) && p->head_dim > 0 &&
         head_size_fits(format, p->head_dim) && p->v_head_dim > 0 && head_size_fits(format, p->v_head_dim) &&
         p->kv_heads > 0 && groups_are_whole(p->epilogues, p->epilogue_count, p->heads / p->kv_heads, p->v_head_dim);
}
#define ATTENTION(arg, name, number)                                                                          \
  static int32_t accepts_##name(const infeng_problem* p) { return accepts(p, number); }                       \
  KERNEL(reference_attention_##name, INFENG_OP_ATTENTION, "attention_" #name, FUSES, HANDLES, accepts_##name, \
         attention_tiles, attention_run);
CACHE_FORMATS(ATTENTION, )
