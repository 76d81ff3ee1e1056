// The kernels of this library, in the order of the ops; each is defined beside its launches.
#pragma once

#include <infeng/abi.h>

// clang-format off
#define INFENG_CUDA_KERNELS(X) \
  X(embed_f32) X(embed_bf16) X(embed_int8row) X(embed_int4g64) X(embed_int4g32) X(embed_int8g32) X(embed_int4p32) \
  X(embed_int5p32) X(embed_int6p32) X(embed_int4a256) X(embed_int4a128) X(rmsnorm) X(layernorm) X(linear_f32) \
  X(linear_bf16) X(linear_int8row) X(linear_int4g64) X(linear_int4g32) X(linear_int8g32) X(linear_int4p32) \
  X(linear_int5p32) X(linear_int6p32) X(linear_int4a256) X(linear_int4a128) X(epilogue) X(rope) X(kv_append_f32) \
  X(kv_append_f16) X(kv_append_int8) X(kv_append_int8h) X(kv_append_k8v4h) X(kv_append_int4h) X(kv_append_fp8h) \
  X(kv_append_int8i) X(kv_append_int8hi) X(kv_append_k8v4hi) X(kv_append_int4hi) X(attention_f32) X(attention_f16) \
  X(attention_int8) X(attention_int8h) X(attention_k8v4h) X(attention_int4h) X(attention_fp8h) X(attention_int8i) \
  X(attention_int8hi) X(attention_k8v4hi) X(attention_int4hi) X(shrink_int8) X(shrink_f32) X(shrink_bf16) X(route) \
  X(combine)
// clang-format on

#define INFENG_CUDA_DECLARE(name) extern "C" const infeng_kernel cuda_##name;
INFENG_CUDA_KERNELS(INFENG_CUDA_DECLARE)
#undef INFENG_CUDA_DECLARE
