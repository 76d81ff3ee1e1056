/* route and combine: the choice of experts for each row, and the weighted sum of their results.
 * SPDX-License-Identifier: Apache-2.0 */
#include "epilogue.h"

/* ----------------------------------------------------------------------------------------------------- route --- */

/* Phases: choose each row's experts and weights; sort all copies; copy the rows. */
static int32_t route_phases(const infeng_args* args) {
  (void)args;
  return 3;
}

static int64_t route_tiles(const infeng_args* args, int32_t phase) {
  if (args->rows == 0) return 0;
  return phase == 1 ? 1 : args->rows;
}

/* The largest logits, descending; of equal logits the lowest expert first. The experts differ even if logits are NaN.
 * */
static void choose(const float* logits, int64_t count, int32_t top_k, int32_t* chosen) {
  uint64_t taken[INFENG_MOST_EXPERTS / 64] = {0};
  for (int32_t i = 0; i < top_k; i++) {
    int64_t best = -1;
    for (int64_t e = 0; e < count; e++) {
      if (taken[e / 64] >> (e % 64) & 1) continue;
      if (best < 0 || logits[e] > logits[best]) best = e;
    }
    taken[best / 64] |= (uint64_t)1 << (best % 64);
    chosen[i] = (int32_t)best;
  }
}

/* weight = exp(logit - largest) / sum; the sum is over all experts in 16 lanes, or over the chosen ones in order. */
CLONED static void share(const float* logits, int64_t count, const infeng_route_args* args, const int32_t* chosen,
                         float* weights) {
  const float largest = logits[chosen[0]];
  float sum = 0.0f;
  for (int32_t i = 0; i < args->top_k; i++) {
    weights[i] = ref_exp(logits[chosen[i]] - largest);
    sum = sum + weights[i];
  }
  if (args->share == INFENG_SHARE_ALL) {
    float lanes[LANES] = {0};
    for (int64_t e = 0; e < count; e++) lanes[e % LANES] += ref_exp(logits[e] - largest);
    sum = ref_tree(lanes);
  }
  for (int32_t i = 0; i < args->top_k; i++) weights[i] = weights[i] / sum;
}

/* Counts the copies of each expert, then assigns places by expert and row; meanwhile begin[e] is the next place of e.
 * */
static void sort(const infeng_route_args* args, int64_t experts) {
  const int64_t copies = args->common.rows * args->top_k;
  for (int64_t e = 0; e <= experts; e++) args->begin[e] = 0;
  for (int64_t i = 0; i < copies; i++) args->begin[args->experts[i] + 1]++;
  for (int64_t e = 0; e < experts; e++) args->begin[e + 1] += args->begin[e];
  for (int64_t i = 0; i < copies; i++) args->places[i] = args->begin[args->experts[i]]++;
  for (int64_t e = experts; e > 0; e--) args->begin[e] = args->begin[e - 1];
  args->begin[0] = 0;
}

static void copy_row(const infeng_tensor* from, int64_t row, const infeng_tensor* to, int64_t place) {
  const int64_t size = from->dtype == INFENG_I8 ? 1 : 4;
  memcpy((char*)to->data + place * to->strides[0] * size, (const char*)from->data + row * from->strides[0] * size,
         (size_t)(from->shape[1] * size));
}

static void copy(const infeng_route_args* args, int64_t row) {
  const infeng_activation *in = args->in, *out = args->out;
  for (int32_t i = 0; i < args->top_k; i++) {
    const int64_t place = args->places[row * args->top_k + i];
    if (in->x.data) copy_row(&in->x, row, &out->x, place);
    if (!in->q.data) continue;
    copy_row(&in->q, row, &out->q, place);
    copy_row(&in->scale, row, &out->scale, place);
    copy_row(&in->sum, row, &out->sum, place);
  }
}

static infeng_status route_run(const infeng_args* common, int32_t phase, int64_t first, int64_t last,
                               infeng_worker* worker) {
  const infeng_route_args* args = (const infeng_route_args*)common;
  const int64_t experts = args->logits.shape[1];
  if (args->top_k < 1 || args->top_k > INFENG_MOST_CHOSEN || args->top_k > experts || experts > INFENG_MOST_EXPERTS) {
    return fail(worker, INFENG_INVALID_ARGUMENT, "route: a row goes to 1 to 64 of at most 4096 experts");
  }
  for (int64_t tile = first; tile < last; tile++) {
    if (phase == 1) {
      sort(args, experts);
    } else if (phase == 2) {
      copy(args, tile);
    } else {
      int32_t* chosen = args->experts + tile * args->top_k;
      choose(f32_row(&args->logits, tile), experts, args->top_k, chosen);
      share(f32_row(&args->logits, tile), experts, args, chosen, args->weights + tile * args->top_k);
    }
  }
  return INFENG_OK;
}

static int32_t route_accepts(const infeng_problem* p) {
  return p->op == INFENG_OP_ROUTE && fuses_only(p, 0) && p->experts <= INFENG_MOST_EXPERTS && p->top_k >= 1 &&
         p->top_k <= INFENG_MOST_CHOSEN && p->top_k <= p->experts;
}

const infeng_kernel reference_route = {.struct_size = sizeof(infeng_kernel),
                                       .op = INFENG_OP_ROUTE,
                                       .name = "route",
                                       .features = "",
                                       .numerics = INFENG_NUMERICS_EXACT,
                                       .kind = INFENG_KIND_TILES,
                                       .accepts = route_accepts,
                                       .phases = route_phases,
                                       .tiles = route_tiles,
                                       .run = route_run};

/* --------------------------------------------------------------------------------------------------- combine --- */

#define FUSES                                                                                      \
  (INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_BIAS) | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_ROW_SCALE) |    \
   INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_RESIDUAL) | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_QUANTIZE) | \
   INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_SCALE) | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_SOFTCAP))

static int64_t combine_tiles(const infeng_args* args, int32_t phase) {
  (void)phase;
  return args->rows;
}

CLONED static void add_up(const infeng_combine_args* args, block* b) {
  const float* weights = args->weights + b->row * args->top_k;
  const int32_t* places = args->places + b->row * args->top_k;
  const int64_t width = min_i64(b->width, args->x.shape[1] - b->column);
  memset(b->cur[0], 0, sizeof b->cur[0]);
  for (int32_t i = 0; i < args->top_k; i++) {
    const float* x = f32_row(&args->x, places[i]) + b->column;
    for (int64_t n = 0; n < width; n++) b->cur[0][n] = fmaf(weights[i], x[n], b->cur[0][n]);
  }
  if (!args->shared.data) return;
  const float weight = args->gate.data ? 1.0f / (1.0f + ref_exp(-f32_row(&args->gate, b->row)[0])) : 1.0f;
  const float* x = f32_row(&args->shared, b->row) + b->column;
  for (int64_t n = 0; n < width; n++) b->cur[0][n] = fmaf(weight, x[n], b->cur[0][n]);
}

static infeng_status combine_run(const infeng_args* common, int32_t phase, int64_t first, int64_t last,
                                 infeng_worker* worker) {
  (void)phase;
  const infeng_combine_args* args = (const infeng_combine_args*)common;
  for (uint32_t i = 0; i < common->epilogue_count; i++) {
    const uint32_t kind = common->epilogues[i]->kind;
    if (kind > 31 || !(FUSES & INFENG_EPILOGUE_BIT(kind)))
      return fail(worker, INFENG_UNIMPLEMENTED, "combine does not fuse one of the steps");
  }
  const infeng_status status = reference_check_list(common, worker);
  const int64_t columns = ceil_div(args->x.shape[1], LANES) * LANES;
  for (int64_t row = first; row < last && status == INFENG_OK; row++) {
    for (int64_t column = 0; column < columns; column += GROUP) {
      block b = {.row = row, .rows = 1, .column = column, .width = min_i64(GROUP, columns - column)};
      add_up(args, &b);
      reference_finish_block(common, &args->out, &b);
    }
  }
  return status;
}

static int32_t combine_accepts(const infeng_problem* p) {
  return p->op == INFENG_OP_COMBINE && fuses_only(p, FUSES) && p->top_k >= 1 && p->top_k <= INFENG_MOST_CHOSEN;
}

KERNEL(reference_combine, INFENG_OP_COMBINE, "combine", FUSES, 0, combine_accepts, combine_tiles, combine_run);
