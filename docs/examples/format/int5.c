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

/* The nearest fp16. At 2^-14 and below all share one exponent. */
static uint16_t half_of(float x) {
  const unsigned sign = signbit(x) ? 0x8000 : 0;
  int e;
  if (frexpf(x, &e) == 0) return (uint16_t)sign;
  if (e < -13) e = -13;
  return (uint16_t)(sign + (unsigned)((e + 13) * 1024 + (int)rintf(ldexpf(fabsf(x), 11 - e))));
}

static float of_half(uint16_t half) {
  const int e = half / 1024 % 32, m = half % 1024;
  const float x = e == 0 ? ldexpf((float)m, -24) : ldexpf((float)(m + 1024), e - 25);
  return half < 0x8000 ? x : -x;
}

/* Writes 64 inputs to a zeroed panel. The host calls it with the integers and scales that quantizers choose. */
static void write(void* panel, int64_t g, const infeng_block* in) {
  block* b = (block*)panel + g;
  for (int n = 0; n < LANES; n++) {
    for (int s = 0; s < GROUP / SCALED; s++) b->scale[s][n] = half_of(in->scale[s][n]);
    for (int k = 0; k < GROUP; k++) {
      const unsigned u = (unsigned)(in->q[k][n] + 16);
      b->low[k % 32][n] |= (uint8_t)((u & 15) << (k / 32 * 4));
      b->high[k] |= (uint16_t)((u >> 4) << n);
    }
  }
}

/* By this the reference and `embed` read the format. */
static void unpack(const void* panel, int64_t g, infeng_block* out) {
  const block* b = (const block*)panel + g;
  for (int n = 0; n < LANES; n++) {
    for (int s = 0; s < GROUP / SCALED; s++) out->scale[s][n] = of_half(b->scale[s][n]);
    for (int k = 0; k < GROUP; k++) {
      out->q[k][n] = (int8_t)((b->low[k % 32][n] >> (k / 32 * 4) & 15) + (b->high[k] >> n & 1) * 16 - 16);
    }
  }
}

/* Rounds up to 32 inputs of output n, step s of a block. Returns 0 if their scale would be an infinite fp16. */
static int round_group(const float* w, int64_t count, infeng_block* out, int s, int64_t n) {
  float most = 0;
  for (int64_t i = 0; i < count; i++) most = fmaxf(most, fabsf(w[i]));
  if (most / MOST >= 65520) return 0;
  const float scale = out->scale[s][n] = of_half(half_of(most / MOST));
  for (int64_t i = 0; i < count && scale > 0; i++) {
    out->q[s * SCALED + i][n] = (int8_t)fmaxf(-MOST, fminf(MOST, rintf(w[i] / scale)));
  }
  return 1;
}

static infeng_status pack(const infeng_source* source, const void* state, int64_t row, void* panel,
                          infeng_worker* worker) {
  (void)state;
  const int64_t rows = min(LANES, source->w.shape[0] - row), k = source->w.shape[1];
  memset(panel, 0, (size_t)panel_bytes(k));
  for (int64_t g = 0; g * GROUP < k; g++) {
    infeng_block out = {.struct_size = sizeof out}; /* padding: a scale of 0, and q of 0 */
    for (int64_t n = 0; n < rows; n++) {
      const float* w = (const float*)source->w.data + (row + n) * source->w.strides[0] + g * GROUP;
      for (int s = 0; s < GROUP / SCALED; s++) {
        if (round_group(w + s * SCALED, min(SCALED, k - g * GROUP - s * SCALED), &out, s, n)) continue;
        snprintf(worker->message, (size_t)worker->message_size, "output %d is too large for an fp16 scale", (int)n);
        return INFENG_OUT_OF_RANGE;
      }
    }
    write(panel, g, &out);
  }
  return INFENG_OK;
}

static infeng_format int5 = {.struct_size = sizeof(infeng_format),
                             .name = "int5-g32",
                             .act_format = INFENG_ACT_INT8_G64,
                             .group = SCALED,
                             .low = -MOST,
                             .high = MOST,
                             .scale_type = INFENG_F16,
                             .panel_bytes = panel_bytes,
                             .unpack = unpack,
                             .pack = pack,
                             .write = write};
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
