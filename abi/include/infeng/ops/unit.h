// Macros that define a library's kernels, and the names of the kernels of every vector library. A source file that is
// compiled for several units (sets of CPU features) defines before this header:
//   INFENG_UNIT(name)     the kernel's name in that unit, such as name##_vnni
//   INFENG_UNIT_FEATURES  CPU features that the unit needs beyond the library's, such as "avx_vnni"
// library.cc needs neither: it lists names. SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_UNIT_H
#define INFENG_OPS_UNIT_H

// Integer weight formats, as DO(ARG, suffix of a kernel's name, type of ops/weights.h).
#define INFENG_INT4_FORMATS(DO, ARG) DO(ARG, int4g64, Int4G64) DO(ARG, int4g32, Int4G32)
#define INFENG_INT8_FORMATS(DO, ARG) DO(ARG, int8row, Int8Row) DO(ARG, int8g32, Int8G32)
#define INFENG_INT_FORMATS(DO, ARG) INFENG_INT8_FORMATS(DO, ARG) INFENG_INT4_FORMATS(DO, ARG)
#define INFENG_P32_FORMATS(DO, ARG) DO(ARG, int4p32, Int4P32) DO(ARG, int5p32, Int5P32) DO(ARG, int6p32, Int6P32)
#define INFENG_AFFINE_FORMATS(DO, ARG) DO(ARG, int4a256, Int4A256) DO(ARG, int4a128, Int4A128)

// Cache formats of integers, as DO(ARG, suffix of a kernel's name, template of ops/attention_cache.h).
#define INFENG_INT_CACHES(DO, ARG) \
  DO(ARG, int8, AttentionInt8)     \
  DO(ARG, int8h, AttentionInt8H)   \
  DO(ARG, k8v4h, AttentionK8V4H)   \
  DO(ARG, int4h, AttentionInt4H)   \
  DO(ARG, int8i, AttentionInt8I)   \
  DO(ARG, int8hi, AttentionInt8HI) \
  DO(ARG, k8v4hi, AttentionK8V4HI) \
  DO(ARG, int4hi, AttentionInt4HI)

// Defines a kernel; KERNEL_UNIT adds the unit's suffix and features.
#define INFENG_TEXT_(x) #x
#define INFENG_TEXT(x) INFENG_TEXT_(x)
#define KERNEL_UNIT(name, priority, ...)                       \
  extern "C" constinit const infeng_kernel INFENG_UNIT(name) = \
      infeng::kernel<__VA_ARGS__>(INFENG_TEXT(INFENG_UNIT(name)), INFENG_UNIT_FEATURES, priority);
#define KERNEL(name, priority, ...) \
  extern "C" constinit const infeng_kernel name = infeng::kernel<__VA_ARGS__>(#name, "", priority);

// X(kernel) for the kernels that are compiled once, and for those of a unit.
#define INFENG_PLAIN_KERNELS(X)               \
  X(embed_f32)                                \
  X(embed_bf16)                               \
  INFENG_INT_FORMATS(INFENG_EMBED_NAME, X)    \
  INFENG_P32_FORMATS(INFENG_EMBED_NAME, X)    \
  INFENG_AFFINE_FORMATS(INFENG_EMBED_NAME, X) \
  X(rmsnorm)                                  \
  X(linear_f32)                               \
  X(linear_bf16)                              \
  X(epilogue)                                 \
  X(rope)                                     \
  X(kv_append_f32)                            \
  X(kv_append_f16)                            \
  X(kv_append_int8)                           \
  X(kv_append_int8h)                          \
  X(kv_append_k8v4h)                          \
  X(kv_append_int4h)                          \
  X(kv_append_fp8h)                           \
  X(kv_append_int8i)                          \
  X(kv_append_int8hi)                         \
  X(kv_append_k8v4hi)                         \
  X(kv_append_int4hi)                         \
  X(attention_f32_rows)                       \
  X(attention_f32_splits)                     \
  X(attention_f16_rows)                       \
  X(attention_f16_splits)                     \
  X(attention_fp8h_rows)                      \
  X(attention_fp8h_splits)                    \
  X(shrink_f32)                               \
  X(shrink_bf16)                              \
  X(route)                                    \
  X(combine)
#define INFENG_UNIT_KERNELS(X, unit) \
  X(linear_int8row_##unit)           \
  X(linear_int8g32_##unit)           \
  INFENG_INT4_KERNELS(X, unit)       \
  X(attention_int8_rows_##unit)      \
  X(attention_int8_splits_##unit)    \
  X(attention_int8h_rows_##unit)     \
  X(attention_int8h_splits_##unit)   \
  X(attention_k8v4h_rows_##unit)     \
  X(attention_k8v4h_splits_##unit)   \
  X(attention_int4h_rows_##unit)     \
  X(attention_int4h_splits_##unit)   \
  X(attention_int8i_rows_##unit)     \
  X(attention_int8i_splits_##unit)   \
  X(attention_int8hi_rows_##unit)    \
  X(attention_int8hi_splits_##unit)  \
  X(attention_k8v4hi_rows_##unit)    \
  X(attention_k8v4hi_splits_##unit)  \
  X(attention_int4hi_rows_##unit)    \
  X(attention_int4hi_splits_##unit)  \
  X(shrink_int8_##unit)
#define INFENG_INT4_KERNELS(X, unit) X(linear_int4g64_##unit) X(linear_int4g32_##unit)
#define INFENG_P32_KERNELS(X, unit) X(linear_int4p32_##unit) X(linear_int5p32_##unit) X(linear_int6p32_##unit)
#define INFENG_AFFINE_KERNELS(X, unit) X(linear_int4a256_##unit) X(linear_int4a128_##unit)
#define INFENG_EMBED_NAME(X, name, Format) X(embed_##name)

#endif  // INFENG_OPS_UNIT_H
