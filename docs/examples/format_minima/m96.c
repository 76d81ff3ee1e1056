/* A weight format with minima and sub-scales, fitted to what is known of each matrix, in plain C11. int4-m96 holds
 * integers of 0 to 15: w = d * (s q) - e * t, with s and t for each 96 inputs of an output, d and e for each 192. A
 * panel of 16 outputs has for each 192 inputs 26 lines of 64 bytes, 4.3 bits a weight:
 *
 *   d, e   [2][16 n] fp16         of the 192 inputs
 *   s, t   [2][2][16 n] u8        s of both groups of 96 inputs, then t
 *   q      [3][32 k][16 n] u8     for each 64 inputs: of input k in bits 0-3, of input k + 32 in bits 4-7
 *
 * Steps of the reference have gcd(96, 64) = 32 inputs. The kernel takes a bias and a residual into itself, but no
 * adapters. SPDX-License-Identifier: Apache-2.0 */
#include <infeng/ops/library.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 16, BLOCK = 64, STEP = 32, SIZE = 96, SUPER = 192, MOST = 15, MOST_SUB = 255, MOST_TRIES = 32 };

typedef struct superblock {
  uint16_t d[LANES], e[LANES];
  uint8_t s[SUPER / SIZE][LANES], t[SUPER / SIZE][LANES];
  uint8_t q[SUPER / BLOCK][BLOCK / 2][LANES];
} superblock;

static int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t panel_bytes(int64_t k) { return (k + SUPER - 1) / SUPER * (int64_t)sizeof(superblock); }

/* The nearest fp16 of a value that is not negative. At 2^-14 and below all share one exponent. */
static uint16_t half_of(float x) {
  int e;
  if (frexpf(x, &e) == 0) return 0;
  if (e < -13) e = -13;
  return (uint16_t)((e + 13) * 1024 + (int)rintf(ldexpf(x, 11 - e)));
}

static float of_half(uint16_t half) {
  const int e = half / 1024, m = half % 1024;
  return e == 0 ? ldexpf((float)m, -24) : ldexpf((float)(m + 1024), e - 25);
}

static int q_of(const superblock* b, int64_t k, int64_t n) {
  return b->q[k / BLOCK][k % STEP][n] >> (k % BLOCK / STEP * 4) & 15;
}

/* ------------------------------------------------------------------------------------------------- packing --- */

/* What packing knows of a whole matrix: how much an error at each input costs. */
typedef struct plan {
  int tries;      /* candidates for the scale of a group */
  float weight[]; /* (k) */
} plan;

/* The mean square of an input on calibration text weighs its errors; without text all weigh the same. The inputs of
 * down_proj, products, have a few large values, so that more candidates pay there. */
static infeng_status begin(const infeng_source* source, void** state, infeng_worker* worker) {
  const int64_t k = source->w.shape[1];
  plan* made = malloc(sizeof(plan) + (size_t)k * sizeof(float));
  if (made == NULL) {
    snprintf(worker->message, (size_t)worker->message_size, "no memory for the weights of %lld inputs", (long long)k);
    return INFENG_INTERNAL;
  }
  made->tries = source->role != NULL && strcmp(source->role, "down_proj") == 0 ? MOST_TRIES : MOST_TRIES / 4;
  double sum = 0;
  for (int64_t i = 0; i < k && source->moments != NULL; i++) sum += source->moments[i * (k + 1)];
  for (int64_t i = 0; i < k; i++) {
    made->weight[i] = sum > 0 ? (float)(source->moments[i * (k + 1)] * ((double)k / sum) + 0.01) : 1;
  }
  *state = made;
  return INFENG_OK;
}

typedef struct range {
  float scale, least; /* w is about scale * q - least */
} range;

static int nearest(float w, float scale, float least) {
  return scale > 0 ? (int)fmaxf(0, fminf(MOST, rintf((w + least) / scale))) : 0;
}

/* The scale of up to 96 inputs, of some that cut off the largest values, by its weighted error. */
static range range_of(const float* w, const float* weight, int64_t count, int tries) {
  float low = 0, high = 0;
  for (int64_t i = 0; i < count; i++) low = fminf(low, w[i]), high = fmaxf(high, w[i]);
  range best = {0, 0};
  double least_error = INFINITY;
  for (int c = 0; c < tries; c++) {
    const float part = 1 - 0.4f * (float)c / (float)tries;
    const range tried = {(high - low) * part / MOST, -low * part};
    double error = 0;
    for (int64_t i = 0; i < count; i++) {
      const float by = w[i] - (tried.scale * (float)nearest(w[i], tried.scale, tried.least) - tried.least);
      error += (double)weight[i] * by * by;
    }
    if (error < least_error) least_error = error, best = tried;
  }
  return best;
}

static uint8_t sub_of(float value, float unit) { return unit > 0 ? (uint8_t)fminf(MOST_SUB, rintf(value / unit)) : 0; }

/* Up to 192 inputs of output n. Returns 0 if a scale would be an infinite fp16. */
static int pack_super(const float* w, const float* weight, int64_t count, int tries, superblock* b, int64_t n) {
  range ranges[SUPER / SIZE] = {{0, 0}};
  float scale = 0, least = 0;
  for (int64_t i = 0; i < count; i += SIZE) {
    range* r = ranges + i / SIZE;
    *r = range_of(w + i, weight + i, min(SIZE, count - i), tries);
    scale = fmaxf(scale, r->scale), least = fmaxf(least, r->least);
  }
  if (scale / MOST_SUB >= 65520 || least / MOST_SUB >= 65520) return 0;
  b->d[n] = half_of(scale / MOST_SUB), b->e[n] = half_of(least / MOST_SUB);
  const float d = of_half(b->d[n]), e = of_half(b->e[n]);
  for (int64_t i = 0; i < count; i++) {
    const int64_t group = i / SIZE;
    if (i % SIZE == 0) {
      b->s[group][n] = sub_of(ranges[group].scale, d);
      b->t[group][n] = sub_of(ranges[group].least, e);
    }
    const int q = nearest(w[i], d * (float)b->s[group][n], e * (float)b->t[group][n]);
    b->q[i / BLOCK][i % STEP][n] |= (uint8_t)(q << (i % BLOCK / STEP * 4));
  }
  return 1;
}

static infeng_status pack(const infeng_source* source, const void* state, int64_t row, void* panel,
                          infeng_worker* worker) {
  const plan* known = state;
  const int64_t rows = min(LANES, source->w.shape[0] - row), k = source->w.shape[1];
  memset(panel, 0, (size_t)panel_bytes(k));
  for (int64_t n = 0; n < rows; n++) {
    const float* w = (const float*)source->w.data + (row + n) * source->w.strides[0];
    for (int64_t i = 0; i < k; i += SUPER) {
      superblock* b = (superblock*)panel + i / SUPER;
      if (pack_super(w + i, known->weight + i, min(SUPER, k - i), known->tries, b, n)) continue;
      snprintf(worker->message, (size_t)worker->message_size, "output %d of %s is too large for fp16 scales", (int)n,
               source->part == NULL ? "the matrix" : source->part);
      return INFENG_OUT_OF_RANGE;
    }
  }
  return INFENG_OK;
}

/* By this the reference and `embed` read the format. */
static void unpack(const void* panel, int64_t g, infeng_block* out) {
  const superblock* b = (const superblock*)panel + g * BLOCK / SUPER;
  const int64_t first = g * BLOCK % SUPER;
  for (int n = 0; n < LANES; n++) {
    out->scale[0][n] = of_half(b->d[n]), out->minimum[0][n] = of_half(b->e[n]);
    for (int s = 0; s < BLOCK / STEP; s++) {
      const int64_t group = (first + s * STEP) / SIZE;
      out->sub_scale[s][n] = b->s[group][n], out->sub_minimum[s][n] = b->t[group][n];
    }
    for (int k = 0; k < BLOCK; k++) out->q[k][n] = (int8_t)q_of(b, first + k, n);
  }
}

static infeng_format m96 = {.struct_size = sizeof(infeng_format),
                            .name = "int4-m96",
                            .act_format = INFENG_ACT_INT8_G64,
                            .group = SIZE,
                            .superblock = SUPER,
                            .has_minima = 1,
                            .low = 0,
                            .high = MOST,
                            .scale_type = INFENG_F16,
                            .panel_bytes = panel_bytes,
                            .unpack = unpack,
                            .pack = pack,
                            .begin = begin,
                            .end = free};
static infeng_format* const formats[] = {&m96};

/* ------------------------------------------------------------------------------------------------- kernel --- */

static int32_t accepts(const infeng_problem* problem) {
  return problem->op == INFENG_OP_LINEAR && problem->weight_format == m96.number &&
         problem->act_format == INFENG_ACT_INT8_G64;
}

/* A tile is one panel. */
static int64_t tiles(const infeng_args* args, int32_t phase) {
  (void)phase;
  return args->rows == 0 ? 0 : ((const infeng_linear_args*)args)->weight->panels;
}

/* One superblock for one row: docs/numerics.md, "Formats of libraries". `blocks` of its three have inputs. */
static void add_super(const superblock* b, int64_t blocks, const int8_t* x, const float* x_scale, float out[LANES]) {
  float sum[LANES] = {0}, least[LANES] = {0};
  for (int64_t g = 0; g < blocks; g++) {
    int32_t acc[LANES] = {0};
    for (int s = 0; s < BLOCK / STEP; s++) {
      const int64_t first = g * BLOCK + s * STEP;
      int32_t part[LANES] = {0}, minus = 0;
      for (int k = 0; k < STEP; k++) {
        const int32_t factor = x[first + k];
        minus -= factor;
        for (int n = 0; n < LANES; n++) part[n] += factor * (b->q[g][k][n] >> (s * 4) & 15);
      }
      const float y = (float)minus * x_scale[g];
      for (int n = 0; n < LANES; n++) {
        acc[n] += part[n] * b->s[first / SIZE][n];
        least[n] = fmaf((float)b->t[first / SIZE][n], y, least[n]);
      }
    }
    for (int n = 0; n < LANES; n++) sum[n] = fmaf((float)acc[n], x_scale[g], sum[n]);
  }
  for (int n = 0; n < LANES; n++) {
    out[n] = fmaf(of_half(b->e[n]), least[n], fmaf(of_half(b->d[n]), sum[n], out[n]));
  }
}

/* Applies the steps, in order, to outputs [16 p, 16 p + 16) of row m. */
static void finish(const infeng_args* args, int64_t p, int64_t m, float cur[LANES]) {
  for (uint32_t i = 0; i < args->epilogue_count; i++) {
    const infeng_tensor* operand = &((const infeng_operand_epilogue*)args->epilogues[i])->operand;
    const float* values = (const float*)operand->data + p * LANES;
    if (args->epilogues[i]->kind == INFENG_EPILOGUE_RESIDUAL) values += m * operand->strides[0];
    for (int n = 0; n < LANES; n++) cur[n] += values[n];
  }
}

static infeng_status run(const infeng_args* common, int32_t phase, int64_t first, int64_t last, infeng_worker* worker) {
  (void)phase, (void)worker;
  const infeng_linear_args* args = (const infeng_linear_args*)common;
  const infeng_tensor *q = &args->in->q, *scale = &args->in->scale;
  const int64_t groups = (args->weight->k + BLOCK - 1) / BLOCK, in_super = SUPER / BLOCK;
  for (int64_t p = first; p < last; p++) {
    const superblock* panel = (const superblock*)((const char*)args->weight->data + p * args->weight->panel_bytes);
    for (int64_t m = 0; m < common->rows; m++) {
      const int8_t* x = (const int8_t*)q->data + m * q->strides[0];
      const float* x_scale = (const float*)scale->data + m * scale->strides[0];
      float cur[LANES] = {0};
      for (int64_t g = 0; g < groups; g += in_super) {
        add_super(panel + g / in_super, min(in_super, groups - g), x + g * BLOCK, x_scale + g, cur);
      }
      finish(common, p, m, cur);
      memcpy((float*)args->out.data + m * args->out.strides[0] + p * LANES, cur, sizeof cur);
    }
  }
  return INFENG_OK;
}

static const infeng_kernel linear = {
    .struct_size = sizeof(infeng_kernel),
    .op = INFENG_OP_LINEAR,
    .name = "linear_int4m96",
    .features = "",
    .numerics = INFENG_NUMERICS_EXACT,
    .kind = INFENG_KIND_TILES,
    .fuses = INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_BIAS) | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_RESIDUAL),
    .accepts = accepts,
    .tiles = tiles,
    .run = run};
static const infeng_kernel* const kernels[] = {&linear};

infeng_status infeng_library(const infeng_host* host, infeng_library_desc* out) {
  const infeng_status status = infeng_negotiate(host, out);
  if (status != INFENG_OK) return status;
  out->name = "m96"; /* as in plugin.yaml */
  out->version = "0.1.0";
  out->kernels = kernels;
  out->kernel_count = 1;
  out->formats = formats;
  out->format_count = 1;
  return INFENG_OK;
}
