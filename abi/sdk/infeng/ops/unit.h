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

// Cache formats, as DO(further arguments, suffix of a kernel's name, name): KvName of ops/kv_append.h and AttentionName
// of ops/attention_cache.h.
#define INFENG_FLOAT_CACHES(DO, ...) DO(__VA_ARGS__, f32, F32) DO(__VA_ARGS__, f16, F16) DO(__VA_ARGS__, fp8h, Fp8H)
#define INFENG_INT_CACHES(DO, ...) \
  DO(__VA_ARGS__, int8, Int8)      \
  DO(__VA_ARGS__, int8h, Int8H)    \
  DO(__VA_ARGS__, k8v4h, K8V4H)    \
  DO(__VA_ARGS__, int4h, Int4H)    \
  DO(__VA_ARGS__, int8i, Int8I)    \
  DO(__VA_ARGS__, int8hi, Int8HI)  \
  DO(__VA_ARGS__, k8v4hi, K8V4HI)  \
  DO(__VA_ARGS__, int4hi, Int4HI)

// Defines a kernel; KERNEL_UNIT adds the unit's suffix and features.
#define INFENG_TEXT_(x) #x
#define INFENG_TEXT(x) INFENG_TEXT_(x)
#define KERNEL_UNIT(name, priority, ...)                       \
  extern "C" constinit const infeng_kernel INFENG_UNIT(name) = \
      infeng::kernel<__VA_ARGS__>(INFENG_TEXT(INFENG_UNIT(name)), INFENG_UNIT_FEATURES, priority);
#define KERNEL(name, priority, ...) \
  extern "C" constinit const infeng_kernel name = infeng::kernel<__VA_ARGS__>(#name, "", priority);

// X(kernel) for the kernels that are compiled once, and for those of a unit.
#define INFENG_PLAIN_KERNELS(X)                  \
  X(embed_f32)                                   \
  X(embed_bf16)                                  \
  INFENG_INT_FORMATS(INFENG_EMBED_NAME, X)       \
  INFENG_P32_FORMATS(INFENG_EMBED_NAME, X)       \
  INFENG_AFFINE_FORMATS(INFENG_EMBED_NAME, X)    \
  X(rmsnorm)                                     \
  X(layernorm)                                   \
  X(linear_f32)                                  \
  X(linear_bf16)                                 \
  X(epilogue)                                    \
  X(rope)                                        \
  INFENG_FLOAT_CACHES(INFENG_APPEND_NAME, X)     \
  INFENG_INT_CACHES(INFENG_APPEND_NAME, X)       \
  INFENG_FLOAT_CACHES(INFENG_ATTENTION_NAMES, X) \
  X(shrink_f32)                                  \
  X(shrink_bf16)                                 \
  X(route)                                       \
  X(combine)
#define INFENG_UNIT_KERNELS(X, unit)                      \
  X(linear_int8row_##unit)                                \
  X(linear_int8g32_##unit)                                \
  INFENG_INT4_KERNELS(X, unit)                            \
  INFENG_INT_CACHES(INFENG_ATTENTION_UNIT_NAMES, X, unit) \
  X(shrink_int8_##unit)
#define INFENG_INT4_KERNELS(X, unit) X(linear_int4g64_##unit) X(linear_int4g32_##unit)
#define INFENG_P32_KERNELS(X, unit) X(linear_int4p32_##unit) X(linear_int5p32_##unit) X(linear_int6p32_##unit)
#define INFENG_AFFINE_KERNELS(X, unit) X(linear_int4a256_##unit) X(linear_int4a128_##unit)
#define INFENG_EMBED_NAME(X, name, Format) X(embed_##name)
#define INFENG_APPEND_NAME(X, name, Format) X(kv_append_##name)
#define INFENG_ATTENTION_NAMES(X, name, Format) X(attention_##name##_rows) X(attention_##name##_splits)
#define INFENG_ATTENTION_UNIT_NAMES(X, unit, name, Format) \
  X(attention_##name##_rows_##unit) X(attention_##name##_splits_##unit)

#endif  // INFENG_OPS_UNIT_H
