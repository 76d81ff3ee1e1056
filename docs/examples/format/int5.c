/* A weight format and its kernel, in plain C11. int5-g32 holds integers of -15 to 15, an fp16 scale for each 32 inputs
 * of an output: 5.5 bits a weight. A panel of 16 outputs has for each 64 inputs 11 lines of 64 bytes:
 *
 *   scale  [2][16 n] fp16         max |w| / 15 over the 32 inputs
 *   low    [32 k][16 n] u8        the lower bits of q + 16: of input k in bits 0-3, of input k + 32 in bits 4-7
 *   high   [64 k] u16             bit n: the fifth bit of q + 16 of output n, which says that q >= 0
 *
 * The name stands for these bytes and their rounding: others would be another format. SPDX-License-Identifier:
 * Apache-2.0 */
#include <infeng/ops/library.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LANES = 16, GROUP = 64, SCALED = 32, MOST = 15 };

typedef struct block {
  uint16_t scale[GROUP / SCALED][LANES];
  uint8_t low[GROUP / 2][LANES];
  uint16_t high[GROUP];
} block;

static int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t panel_bytes(int64_t k) { return (k + GROUP - 1) / GROUP * (int64_t)sizeof(block); }

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

static void put(block* b, int64_t k, int64_t n, int q) {
  b->low[k % 32][n] |= (uint8_t)(((unsigned)(q + 16) & 15) << (k / 32 * 4));
  if (q < 0) b->high[k] &= (uint16_t)~(1u << n);
}

static int8_t get(const block* b, int64_t k, int64_t n) {
  return (int8_t)((b->low[k % 32][n] >> (k / 32 * 4) & 15) + (b->high[k] >> n & 1) * 16 - 16);
}

/* Up to 32 inputs of one output, from input k of the block on. Returns 0 if their scale would be an infinite fp16. */
static int pack_group(const float* w, int64_t count, block* b, int64_t k, int64_t n) {
  float most = 0;
  for (int64_t i = 0; i < count; i++) most = fmaxf(most, fabsf(w[i]));
  if (most / MOST >= 65520) return 0;
  b->scale[k / SCALED][n] = half_of(most / MOST);
  const float scale = of_half(b->scale[k / SCALED][n]);
  for (int64_t i = 0; i < count && scale > 0; i++) {
    put(b, k + i, n, (int)fmaxf(-MOST, fminf(MOST, rintf(w[i] / scale))));
  }
  return 1;
}

static infeng_status pack(const float* w, int64_t stride, int64_t rows, int64_t k, void* panel, infeng_worker* worker) {
  block* blocks = panel;
  memset(panel, 0, (size_t)panel_bytes(k)); /* padding: a scale of 0, and q of 0 */
  for (int64_t column = 0; column < k; column += SCALED) {
    block* b = blocks + column / GROUP;
    if (column % GROUP == 0) memset(b->high, 0xff, sizeof b->high);
    for (int64_t n = 0; n < rows; n++) {
      if (pack_group(w + n * stride + column, min(SCALED, k - column), b, column % GROUP, n)) continue;
      snprintf(worker->message, (size_t)worker->message_size, "output %d is too large for an fp16 scale", (int)n);
      return INFENG_OUT_OF_RANGE;
    }
  }
  return INFENG_OK;
}

/* By this the reference and `embed` read the format. */
static void unpack(const void* panel, int64_t g, float w[64][16], int8_t q[64][16], float scale[2][16]) {
  const block* b = (const block*)panel + g;
  (void)w;
  for (int64_t n = 0; n < LANES; n++) {
    for (int64_t s = 0; s < 2; s++) scale[s][n] = of_half(b->scale[s][n]);
    for (int64_t k = 0; k < GROUP; k++) q[k][n] = get(b, k, n);
  }
}

static infeng_format int5 = {.struct_size = sizeof(infeng_format),
                             .name = "int5-g32",
                             .act_format = INFENG_ACT_INT8_G64,
                             .group = SCALED,
                             .panel_bytes = panel_bytes,
                             .pack = pack,
                             .unpack = unpack};
static infeng_format* const formats[] = {&int5};

/* The number is the host's, of this process. */
static int32_t accepts(const infeng_problem* problem) {
  return problem->op == INFENG_OP_LINEAR && problem->weight_format == int5.number &&
         problem->act_format == INFENG_ACT_INT8_G64 && problem->epilogue_count == 0;
}

/* A tile is one panel. */
static int64_t tiles(const infeng_args* args, int32_t phase) {
  (void)phase;
  return args->rows == 0 ? 0 : ((const infeng_linear_args*)args)->weight->panels;
}

/* out = fma(float(sum of 32 products), weight's scale * row's scale, out), k ascending, as docs/numerics.md has it. */
static void add_block(const block* b, const int8_t* x, float x_scale, float out[LANES]) {
  for (int s = 0; s < 2; s++) {
    int32_t sum[LANES] = {0};
    for (int k = 0; k < SCALED; k++) {
      const uint8_t* low = b->low[k];
      const uint32_t high = b->high[s * SCALED + k];
      for (int n = 0; n < LANES; n++) {
        sum[n] += x[s * SCALED + k] * ((low[n] >> (4 * s) & 15) + (int32_t)(high >> n & 1) * 16 - 16);
      }
    }
    for (int n = 0; n < LANES; n++) out[n] = fmaf((float)sum[n], of_half(b->scale[s][n]) * x_scale, out[n]);
  }
}

static infeng_status run(const infeng_args* common, int32_t phase, int64_t first, int64_t last, infeng_worker* worker) {
  (void)phase, (void)worker;
  const infeng_linear_args* args = (const infeng_linear_args*)common;
  const infeng_tensor *q = &args->in->q, *scale = &args->in->scale;
  for (int64_t p = first; p < last; p++) {
    const block* panel = (const block*)((const char*)args->weight->data + p * args->weight->panel_bytes);
    for (int64_t m = 0; m < common->rows; m++) {
      float* out = (float*)args->out.data + m * args->out.strides[0] + p * LANES;
      memset(out, 0, LANES * sizeof(float));
      for (int64_t g = 0; g * GROUP < args->weight->k; g++) {
        const int8_t* x = (const int8_t*)q->data + m * q->strides[0] + g * GROUP;
        add_block(panel + g, x, ((const float*)scale->data)[m * scale->strides[0] + g], out);
      }
    }
  }
  return INFENG_OK;
}

static const infeng_kernel linear = {.struct_size = sizeof(infeng_kernel),
                                     .op = INFENG_OP_LINEAR,
                                     .name = "linear_int5g32",
                                     .features = "",
                                     .numerics = INFENG_NUMERICS_EXACT,
                                     .kind = INFENG_KIND_TILES,
                                     .accepts = accepts,
                                     .tiles = tiles,
                                     .run = run};
static const infeng_kernel* const kernels[] = {&linear};

infeng_status infeng_library(const infeng_host* host, infeng_library_desc* out) {
  const infeng_status status = infeng_negotiate(host, out);
  if (status != INFENG_OK) return status;
  out->name = "int5"; /* as in plugin.yaml */
  out->version = "0.1.0";
  out->kernels = kernels;
  out->kernel_count = 1;
  out->formats = formats;
  out->format_count = 1;
  return INFENG_OK;
}
