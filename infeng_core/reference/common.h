/* Shared by all reference kernels: access to views, exp, silu, sums over a row and quantization, as docs/numerics.md
 * defines them. Plain scalar C over <infeng/abi.h> and libm. Other kernels are tested against this library, so it
 * shares no code with them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef INFENG_REFERENCE_COMMON_H
#define INFENG_REFERENCE_COMMON_H

#include <infeng/abi.h>
#include <math.h>
#include <string.h>

#define LANES 16 /* outputs of a panel, tokens of a cache block, virtual lanes of a sum */
#define GROUP 64 /* inputs with an activation scale and a sum of their own; wide groups share the scale */
#define WIDEST_GROUP 256

#define INLINE static inline __attribute__((always_inline))

/* fmaf is exact on every machine, but a slow call if the compiler may not assume the instruction. A CLONED function is
 * compiled a second time for CPUs with the instruction; both versions compute the same bytes. A test builds the library
 * with INFENG_REFERENCE_PLAIN, without the second version, and compares both. */
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12 && \
    !defined(INFENG_REFERENCE_PLAIN)
#define CLONED __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define CLONED
#endif

/* ---------------------------------------------------------------------------------------------------- views --- */

INLINE float* f32_row(const infeng_tensor* t, int64_t row) { return (float*)t->data + row * t->strides[0]; }
INLINE int8_t* i8_row(const infeng_tensor* t, int64_t row) { return (int8_t*)t->data + row * t->strides[0]; }
INLINE int32_t* i32_row(const infeng_tensor* t, int64_t row) { return (int32_t*)t->data + row * t->strides[0]; }

INLINE int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* ---------------------------------------------------------------------------------------------- number types --- */

INLINE float f32_from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

INLINE float f32_from_bf16(uint16_t half) { return f32_from_bits((uint32_t)half << 16); }

/* IEEE binary16, exact; a scale is never infinite or NaN. Subnormals are an integer times 2^-24. */
INLINE float f32_from_f16(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 31u;
  const uint32_t mantissa = half & 1023u;
  if (exponent == 0) {
    const float magnitude = (float)mantissa * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return f32_from_bits(sign | (exponent + 112u) << 23 | mantissa << 13);
}

/* Rounds to IEEE binary16, to nearest even; values beyond the largest half become the largest half. */
INLINE uint16_t f16_from_f32(float value) {
  value = value < 65504.0f ? value : 65504.0f;
  value = value > -65504.0f ? value : -65504.0f;
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude < 0x38800000u) { /* below 2^-14: a multiple of 2^-24 */
    return (uint16_t)(sign | (uint32_t)rintf(f32_from_bits(magnitude) * 0x1p24f));
  }
  return (uint16_t)(sign | (((magnitude + 0xfffu + ((magnitude >> 13) & 1u)) >> 13) - (112u << 10)));
}

/* ------------------------------------------------------------------------------------------------- functions --- */

/* e^x: the polynomial of Cephes' expf (S. Moshier), times 2^n from exponent bits. */
INLINE float ref_exp(float x) {
  if (x < -87.33f) return 0.0f;
  x = x < 88.0f ? x : 88.0f;
  const float n = rintf(x * 0x1.715476p+0f);
  float r = fmaf(n, -0x1.62e430p-1f, x);
  r = fmaf(n, 0x1.05c610p-29f, r);
  float p = 1.9875691500e-4f;
  p = fmaf(p, r, 1.3981999507e-3f);
  p = fmaf(p, r, 8.3334519073e-3f);
  p = fmaf(p, r, 4.1665795894e-2f);
  p = fmaf(p, r, 1.6666665459e-1f);
  p = fmaf(p, r, 5.0000001201e-1f);
  const float y = fmaf(p, r * r, r) + 1.0f;
  return y * f32_from_bits((uint32_t)((int32_t)n + 127) << 23);
}

INLINE float ref_silu(float x) { return x / (1.0f + ref_exp(-x)); }

/* tanh: Cephes' tanhf (S. Moshier). */
INLINE float ref_tanh(float x) {
  const float magnitude = fabsf(x);
  if (magnitude >= 0.625f) {
    const float y = 1.0f - 2.0f / (ref_exp(magnitude + magnitude) + 1.0f);
    return x < 0.0f ? -y : y;
  }
  const float z = x * x;
  float p = -5.70498872745e-3f;
  p = fmaf(p, z, 2.06390887954e-2f);
  p = fmaf(p, z, -5.37397155531e-2f);
  p = fmaf(p, z, 1.33314422036e-1f);
  p = fmaf(p, z, -3.33332819422e-1f);
  return fmaf(p * z, x, x);
}

/* Sum of 16 lanes: i + 8, then i + 4, i + 2, i + 1. */
INLINE float ref_tree(float lanes[LANES]) {
  for (int width = LANES / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

/* 1 / sqrt(mean(x^2) + eps), the sum over 16 lanes. */
INLINE float ref_rms(const float* x, int64_t k, float eps) {
  float lanes[LANES] = {0};
  for (int64_t i = 0; i < k; i++) lanes[i % LANES] = fmaf(x[i], x[i], lanes[i % LANES]);
  return 1.0f / sqrtf(ref_tree(lanes) / (float)k + eps);
}

/* Largest magnitude; NaN if a value is NaN, so that the scale shows it. */
INLINE float ref_amax(const float* x, int64_t count) {
  float amax = 0.0f;
  for (int64_t i = 0; i < count; i++) {
    const float magnitude = fabsf(x[i]);
    amax = magnitude > amax || magnitude != magnitude ? magnitude : amax;
  }
  return amax;
}

/* Writes q[0 .. count) = x as int8 under the scale of amax, and q[count .. padded) = 0. Returns the scale. NaN is
 * outside of the contract: its q is any value in range, and the scale is NaN. */
INLINE float ref_quantize_by(float amax, const float* x, int64_t count, int64_t padded, int8_t* q, int32_t* sum) {
  for (int64_t i = 0; i < padded; i++) q[i] = 0;
  *sum = 0;
  if (amax < 0x1p-100f) return 0.0f;
  const float inverse = 127.0f / amax;
  for (int64_t i = 0; i < count; i++) {
    float value = rintf(x[i] * inverse);
    value = value < 127.0f ? value : 127.0f;
    value = value > -127.0f ? value : -127.0f;
    q[i] = (int8_t)value;
    *sum += q[i];
  }
  return amax / 127.0f;
}

INLINE float ref_quantize(const float* x, int64_t count, int64_t padded, int8_t* q, int32_t* sum) {
  return ref_quantize_by(ref_amax(x, count), x, count, padded, q, sum);
}

/* y = H x in place, block by block: for h = 1, 2, 4, ... (a, b) = (x[i], x[i + h]) becomes (a + b, a - b). */
INLINE void hadamard_blocks(float* x, int64_t dim, int64_t block) {
  for (int64_t h = 1; h < block; h *= 2) {
    for (int64_t begin = 0; begin < dim; begin += 2 * h) {
      for (int64_t i = begin; i < begin + h; i++) {
        const float a = x[i];
        const float b = x[i + h];
        x[i] = a + b;
        x[i + h] = a - b;
      }
    }
  }
}

/* y = H x * f in blocks of 64, 128 or 256, with f = 1/8, 1/8 or 1/16. */
INLINE void rotate_blocks(const float* x, int64_t count, int64_t block, float* y) {
  for (int64_t c = 0; c < count; c++) y[c] = x[c] * (block == 256 ? 0.0625f : 0.125f);
  hadamard_blocks(y, count, block);
}

/* Quantizes `width` columns of row `row` in the activation's groups, rotated if the activation is; `column` is a
 * multiple of the group. */
INLINE void quantize_columns(const infeng_activation* act, int64_t row, int64_t column, const float* x, int64_t width) {
  for (int64_t begin = 0; begin < width; begin += act->group) {
    const int64_t count = min_i64(act->group, width - begin);
    float y[WIDEST_GROUP];
    memcpy(y, x + begin, (size_t)count * sizeof(float));
    if (act->rotated) rotate_blocks(y, count, GROUP, y);
    const float amax = ref_amax(y, count);
    for (int64_t c = 0; c < count; c += GROUP) {
      const int64_t group = (column + begin + c) / GROUP;
      int8_t* q = i8_row(&act->q, row) + group * GROUP;
      int32_t* sum = i32_row(&act->sum, row) + group;
      f32_row(&act->scale, row)[group] = ref_quantize_by(amax, y + c, min_i64(GROUP, count - c), GROUP, q, sum);
    }
  }
}

/* Quantizes a row of k inputs under one scale. If the activation is rotated, so is x. */
INLINE void quantize_row(const infeng_activation* act, int64_t row, float* x, int64_t k) {
  if (act->rotated) rotate_blocks(x, k, (int64_t)act->rotated, x);
  const float amax = ref_amax(x, k);
  for (int64_t c = 0; c < k; c += GROUP) {
    int8_t* q = i8_row(&act->q, row) + c;
    int32_t* sum = i32_row(&act->sum, row) + c / GROUP;
    f32_row(&act->scale, row)[c / GROUP] = ref_quantize_by(amax, x + c, min_i64(GROUP, k - c), GROUP, q, sum);
  }
}

/* Whether a step quantizes groups of more than 64, or rotated ones. */
INLINE int is_wide(const infeng_epilogue* e) {
  return e->kind == INFENG_EPILOGUE_QUANTIZE && e->function == INFENG_FUNCTION_WIDE;
}

/* Whether a step quantizes whole rows. */
INLINE int is_row(const infeng_epilogue* e) {
  return e->kind == INFENG_EPILOGUE_QUANTIZE && e->function == INFENG_FUNCTION_ROW;
}

/* Whether a list has a step with wide or rotated groups. */
INLINE int has_wide(const infeng_epilogue* const* list, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    if (is_wide(list[i])) return 1;
  }
  return 0;
}

/* Whether a list has a step that quantizes whole rows. */
INLINE int has_row(const infeng_epilogue* const* list, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    if (is_row(list[i])) return 1;
  }
  return 0;
}

/* ------------------------------------------------------------------------------------------ lists and errors --- */

/* The fields behind a step's header. */
INLINE const infeng_tensor* operand_of(const infeng_epilogue* e) {
  return &((const infeng_operand_epilogue*)e)->operand;
}
INLINE const infeng_activation* act_of(const infeng_epilogue* e) { return ((const infeng_quantize_epilogue*)e)->act; }

/* Arrays of structs that may grow have a stride in bytes, which their writer sets. */
INLINE const infeng_lora_segment* lora_segment(const infeng_lora_segment* first, uint32_t stride, int32_t index) {
  return (const infeng_lora_segment*)((const char*)first + (size_t)stride * (size_t)index);
}

INLINE const infeng_kv_segment* kv_segment(const infeng_kv_segment* first, uint32_t stride, int32_t index) {
  return (const infeng_kv_segment*)((const char*)first + (size_t)stride * (size_t)index);
}

/* The segment that covers a row, or NULL. */
INLINE const infeng_kv_segment* find_kv_segment(const infeng_kv_segment* first, uint32_t stride, int32_t count,
                                                int64_t row) {
  for (int32_t i = 0; i < count; i++) {
    const infeng_kv_segment* s = kv_segment(first, stride, i);
    if (row >= s->row_begin && row < s->row_end) return s;
  }
  return NULL;
}

/* Stores an error text for the host and returns the status. */
INLINE infeng_status fail(infeng_worker* worker, infeng_status status, const char* text) {
  if (worker && worker->message && worker->message_size > 0) {
    size_t length = strlen(text);
    if (length >= (size_t)worker->message_size) length = (size_t)worker->message_size - 1;
    memcpy(worker->message, text, length);
    worker->message[length] = '\0';
  }
  return status;
}

/* Scratch memory of an op whose list quantizes whole rows of up to n values: a row, and behind it its rotation. */
INLINE int64_t row_stride(int64_t n) { return ceil_div(n, LANES) * LANES; }
INLINE infeng_status row_workspace(const infeng_problem* problem, infeng_workspace* out) {
  const int needed = has_row(problem->epilogues, problem->epilogue_count);
  out->align = 0;
  out->shared = 0;
  out->per_worker = needed ? 2 * row_stride(problem->n) * (int64_t)sizeof(float) : 0;
  return INFENG_OK;
}

/* Applies the steps of a list of QUANTIZE to columns [column, column + width) of row `row`, which start a widest group;
 * `kept` takes them for steps that quantize whole rows. */
INLINE void quantize_part(const infeng_args* args, int64_t row, int64_t column, int64_t width, const float* y,
                          float* kept) {
  for (uint32_t i = 0; i < args->epilogue_count; i++) {
    if (is_row(args->epilogues[i]))
      memcpy(kept + column, y, (size_t)width * sizeof(float));
    else
      quantize_columns(act_of(args->epilogues[i]), row, column, y, width);
  }
}

/* Applies the steps of a list that quantize whole rows to the k values of row `row`, which lie in scratch memory for
 * rows of up to n values. */
INLINE void quantize_rows(const infeng_args* args, int64_t row, int64_t k, int64_t n, float* kept) {
  float* x = kept + row_stride(n);
  for (uint32_t i = 0; i < args->epilogue_count; i++) {
    if (!is_row(args->epilogues[i])) continue;
    memcpy(x, kept, (size_t)k * sizeof(float));
    quantize_row(act_of(args->epilogues[i]), row, x, k);
  }
}

/* The common part of `accepts`: the kernel fuses all steps of the list. */
INLINE int32_t fuses_only(const infeng_problem* problem, uint32_t mask) {
  for (uint32_t i = 0; i < problem->epilogue_count; i++) {
    const uint32_t kind = problem->epilogues[i]->kind;
    if (kind > 31 || !(mask & INFENG_EPILOGUE_BIT(kind))) return 0;
  }
  return 1;
}

/* --------------------------------------------------------------------------------------------------- kernels --- */

#define NEED(name) INFENG_NEED_BIT(INFENG_NEED_##name)

/* Defines a kernel: exact, in tiles, for any CPU. */
#define KERNEL(symbol, op_, name_, fuses_, handles_, accepts_, tiles_, run_) \
  KERNEL_WITH(symbol, op_, name_, fuses_, handles_, accepts_, NULL, tiles_, run_)

/* The same with scratch memory. */
#define KERNEL_WITH(symbol, op_, name_, fuses_, handles_, accepts_, workspace_, tiles_, run_) \
  const infeng_kernel symbol = {.struct_size = sizeof(infeng_kernel),                         \
                                .op = (op_),                                                  \
                                .name = (name_),                                              \
                                .features = "",                                               \
                                .numerics = INFENG_NUMERICS_EXACT,                            \
                                .kind = INFENG_KIND_TILES,                                    \
                                .fuses = (fuses_),                                            \
                                .handles = (handles_),                                        \
                                .accepts = (accepts_),                                        \
                                .workspace = (workspace_),                                    \
                                .tiles = (tiles_),                                            \
                                .run = (run_)}

#endif
