/* Compiling this file is the test: it fails if any offset, size or number of infeng/abi.h has moved. Within a major
 * version an AT or IS line never changes; a minor that appends fields adds lines and raises the SIZE of their struct.
 * SPDX-License-Identifier: Apache-2.0 */
#include <infeng/abi.h>

#ifdef __cplusplus
#define INFENG_CHECK static_assert
#else
#define INFENG_CHECK _Static_assert
#endif

#define SIZE(type, bytes) INFENG_CHECK(sizeof(type) == (bytes), "the size of " #type " has changed")
#define AT(type, field, offset, bytes)                                                    \
  INFENG_CHECK(offsetof(type, field) == (offset) && sizeof(((type*)0)->field) == (bytes), \
               #type "." #field " has changed")
#define IS(name, number) INFENG_CHECK((name) == (number), #name " has another number")

INFENG_CHECK(sizeof(void*) == 8, "the ABI is defined for 64-bit machines");

SIZE(infeng_extension, 16);
AT(infeng_extension, size, 0, 4);
AT(infeng_extension, type, 4, 4);
AT(infeng_extension, next, 8, 8);

SIZE(infeng_tensor, 96);
AT(infeng_tensor, data, 0, 8);
AT(infeng_tensor, byte_offset, 8, 8);
AT(infeng_tensor, dtype, 16, 4);
AT(infeng_tensor, device_type, 20, 4);
AT(infeng_tensor, device_id, 24, 4);
AT(infeng_tensor, ndim, 28, 4);
AT(infeng_tensor, shape, 32, 32);
AT(infeng_tensor, strides, 64, 32);

SIZE(infeng_weight, 56);
AT(infeng_weight, struct_size, 0, 4);
AT(infeng_weight, format, 4, 4);
AT(infeng_weight, layout, 8, 8);
AT(infeng_weight, n, 16, 8);
AT(infeng_weight, k, 24, 8);
AT(infeng_weight, panels, 32, 8);
AT(infeng_weight, panel_bytes, 40, 8);
AT(infeng_weight, data, 48, 8);

SIZE(infeng_activation, 392);
AT(infeng_activation, struct_size, 0, 4);
AT(infeng_activation, group, 4, 4);
AT(infeng_activation, x, 8, 96);
AT(infeng_activation, q, 104, 96);
AT(infeng_activation, scale, 200, 96);
AT(infeng_activation, sum, 296, 96);

SIZE(infeng_lora_segment, 88);
AT(infeng_lora_segment, row_begin, 0, 4);
AT(infeng_lora_segment, row_end, 4, 4);
AT(infeng_lora_segment, rank, 8, 4);
AT(infeng_lora_segment, dtype, 12, 4);
AT(infeng_lora_segment, u_column, 16, 4);
AT(infeng_lora_segment, weight, 20, 4);
AT(infeng_lora_segment, panel_begin, 24, 4);
AT(infeng_lora_segment, panel_step, 28, 4);
AT(infeng_lora_segment, panel_count, 32, 4);
AT(infeng_lora_segment, reserved, 36, 4);
AT(infeng_lora_segment, a, 40, 8);
AT(infeng_lora_segment, scaling, 48, 8);
AT(infeng_lora_segment, b, 56, 8);
AT(infeng_lora_segment, b_scale, 64, 8);
AT(infeng_lora_segment, row_scale, 72, 8);
AT(infeng_lora_segment, bias, 80, 8);

SIZE(infeng_epilogue, 520);
AT(infeng_epilogue, struct_size, 0, 4);
AT(infeng_epilogue, kind, 4, 4);
AT(infeng_epilogue, next, 8, 8);
AT(infeng_epilogue, operand, 16, 96);
AT(infeng_epilogue, act, 112, 392);
AT(infeng_epilogue, segments, 504, 8);
AT(infeng_epilogue, segment_count, 512, 4);
AT(infeng_epilogue, segment_stride, 516, 4);

SIZE(infeng_kv_cache, 80);
AT(infeng_kv_cache, struct_size, 0, 4);
AT(infeng_kv_cache, format, 4, 4);
AT(infeng_kv_cache, base, 8, 8);
AT(infeng_kv_cache, block_stride, 16, 8);
AT(infeng_kv_cache, head_stride, 24, 8);
AT(infeng_kv_cache, k_offset, 32, 8);
AT(infeng_kv_cache, v_offset, 40, 8);
AT(infeng_kv_cache, k_scale_offset, 48, 8);
AT(infeng_kv_cache, v_scale_offset, 56, 8);
AT(infeng_kv_cache, block_tokens, 64, 4);
AT(infeng_kv_cache, block_count, 68, 4);
AT(infeng_kv_cache, kv_heads, 72, 4);
AT(infeng_kv_cache, head_dim, 76, 4);

SIZE(infeng_kv_segment, 24);
AT(infeng_kv_segment, row_begin, 0, 4);
AT(infeng_kv_segment, row_end, 4, 4);
AT(infeng_kv_segment, pos0, 8, 4);
AT(infeng_kv_segment, length, 12, 4);
AT(infeng_kv_segment, block_table, 16, 8);

SIZE(infeng_args, 32);
AT(infeng_args, struct_size, 0, 4);
AT(infeng_args, epilogue_count, 4, 4);
AT(infeng_args, next, 8, 8);
AT(infeng_args, epilogues, 16, 8);
AT(infeng_args, rows, 24, 8);

SIZE(infeng_embed_args, 192);
AT(infeng_embed_args, common, 0, 32);
AT(infeng_embed_args, ids, 32, 8);
AT(infeng_embed_args, weight, 40, 56);
AT(infeng_embed_args, out, 96, 96);

SIZE(infeng_rmsnorm_args, 336);
AT(infeng_rmsnorm_args, common, 0, 32);
AT(infeng_rmsnorm_args, x, 32, 96);
AT(infeng_rmsnorm_args, row_index, 128, 8);
AT(infeng_rmsnorm_args, weight, 136, 96);
AT(infeng_rmsnorm_args, out, 232, 96);
AT(infeng_rmsnorm_args, eps, 328, 4);
AT(infeng_rmsnorm_args, reserved, 332, 4);

SIZE(infeng_linear_args, 576);
AT(infeng_linear_args, common, 0, 32);
AT(infeng_linear_args, in, 32, 392);
AT(infeng_linear_args, weight, 424, 56);
AT(infeng_linear_args, out, 480, 96);

SIZE(infeng_epilogue_args, 224);
AT(infeng_epilogue_args, common, 0, 32);
AT(infeng_epilogue_args, in, 32, 96);
AT(infeng_epilogue_args, out, 128, 96);

SIZE(infeng_rope_args, 424);
AT(infeng_rope_args, common, 0, 32);
AT(infeng_rope_args, q, 32, 96);
AT(infeng_rope_args, k, 128, 96);
AT(infeng_rope_args, positions, 224, 8);
AT(infeng_rope_args, cos, 232, 96);
AT(infeng_rope_args, sin, 328, 96);

SIZE(infeng_kv_append_args, 320);
AT(infeng_kv_append_args, common, 0, 32);
AT(infeng_kv_append_args, k, 32, 96);
AT(infeng_kv_append_args, v, 128, 96);
AT(infeng_kv_append_args, cache, 224, 80);
AT(infeng_kv_append_args, segments, 304, 8);
AT(infeng_kv_append_args, segment_count, 312, 4);
AT(infeng_kv_append_args, segment_stride, 316, 4);

SIZE(infeng_attention_args, 328);
AT(infeng_attention_args, common, 0, 32);
AT(infeng_attention_args, q, 32, 96);
AT(infeng_attention_args, out, 128, 96);
AT(infeng_attention_args, cache, 224, 80);
AT(infeng_attention_args, segments, 304, 8);
AT(infeng_attention_args, segment_count, 312, 4);
AT(infeng_attention_args, segment_stride, 316, 4);
AT(infeng_attention_args, scale, 320, 4);
AT(infeng_attention_args, window, 324, 4);

SIZE(infeng_shrink_args, 536);
AT(infeng_shrink_args, common, 0, 32);
AT(infeng_shrink_args, in, 32, 392);
AT(infeng_shrink_args, u, 424, 96);
AT(infeng_shrink_args, segments, 520, 8);
AT(infeng_shrink_args, segment_count, 528, 4);
AT(infeng_shrink_args, segment_stride, 532, 4);

SIZE(infeng_problem, 88);
AT(infeng_problem, struct_size, 0, 4);
AT(infeng_problem, op, 4, 4);
AT(infeng_problem, next, 8, 8);
AT(infeng_problem, weight_format, 16, 4);
AT(infeng_problem, act_format, 20, 4);
AT(infeng_problem, kv_format, 24, 4);
AT(infeng_problem, epilogues, 28, 4);
AT(infeng_problem, rows_min, 32, 8);
AT(infeng_problem, rows_max, 40, 8);
AT(infeng_problem, n, 48, 8);
AT(infeng_problem, k, 56, 8);
AT(infeng_problem, context, 64, 8);
AT(infeng_problem, heads, 72, 4);
AT(infeng_problem, kv_heads, 76, 4);
AT(infeng_problem, head_dim, 80, 4);
AT(infeng_problem, workers, 84, 4);

SIZE(infeng_workspace, 24);
AT(infeng_workspace, struct_size, 0, 4);
AT(infeng_workspace, align, 4, 4);
AT(infeng_workspace, shared, 8, 8);
AT(infeng_workspace, per_worker, 16, 8);

SIZE(infeng_worker, 40);
AT(infeng_worker, struct_size, 0, 4);
AT(infeng_worker, index, 4, 4);
AT(infeng_worker, count, 8, 4);
AT(infeng_worker, message_size, 12, 4);
AT(infeng_worker, shared, 16, 8);
AT(infeng_worker, private_, 24, 8);
AT(infeng_worker, message, 32, 8);

SIZE(infeng_kernel, 104);
AT(infeng_kernel, struct_size, 0, 4);
AT(infeng_kernel, op, 4, 4);
AT(infeng_kernel, next, 8, 8);
AT(infeng_kernel, name, 16, 8);
AT(infeng_kernel, features, 24, 8);
AT(infeng_kernel, numerics, 32, 4);
AT(infeng_kernel, kind, 36, 4);
AT(infeng_kernel, priority, 40, 4);
AT(infeng_kernel, fuses, 44, 4);
AT(infeng_kernel, accepts, 48, 8);
AT(infeng_kernel, workspace, 56, 8);
AT(infeng_kernel, phases, 64, 8);
AT(infeng_kernel, tiles, 72, 8);
AT(infeng_kernel, run, 80, 8);
AT(infeng_kernel, pack_size, 88, 8);
AT(infeng_kernel, pack, 96, 8);

SIZE(infeng_host, 32);
AT(infeng_host, struct_size, 0, 4);
AT(infeng_host, abi_major, 4, 2);
AT(infeng_host, abi_minor, 6, 2);
AT(infeng_host, next, 8, 8);
AT(infeng_host, version, 16, 8);
AT(infeng_host, features, 24, 8);

SIZE(infeng_library_desc, 72);
AT(infeng_library_desc, struct_size, 0, 4);
AT(infeng_library_desc, abi_major, 4, 2);
AT(infeng_library_desc, abi_minor, 6, 2);
AT(infeng_library_desc, next, 8, 8);
AT(infeng_library_desc, name, 16, 8);
AT(infeng_library_desc, version, 24, 8);
AT(infeng_library_desc, kernels, 32, 8);
AT(infeng_library_desc, kernel_count, 40, 4);
AT(infeng_library_desc, reserved, 44, 4);
AT(infeng_library_desc, thread_enter, 48, 8);
AT(infeng_library_desc, thread_exit, 56, 8);
AT(infeng_library_desc, shutdown, 64, 8);

SIZE(infeng_range, 16);
AT(infeng_range, data, 0, 8);
AT(infeng_range, bytes, 8, 8);

SIZE(infeng_fetch, 32);
AT(infeng_fetch, head, 0, 16);
AT(infeng_fetch, ranges, 16, 8);
AT(infeng_fetch, count, 24, 8);

IS(INFENG_OK, 0);
IS(INFENG_UNIMPLEMENTED, 1);
IS(INFENG_INVALID_ARGUMENT, 2);
IS(INFENG_UNSUPPORTED_ABI, 3);
IS(INFENG_OUT_OF_RANGE, 4);
IS(INFENG_NOT_FINITE, 5);
IS(INFENG_INTERNAL, 6);
IS(INFENG_F32, 1);
IS(INFENG_F16, 2);
IS(INFENG_BF16, 3);
IS(INFENG_I8, 4);
IS(INFENG_U8, 5);
IS(INFENG_I32, 6);
IS(INFENG_I64, 7);
IS(INFENG_F8_E4M3, 8);
IS(INFENG_WEIGHT_NONE, 0);
IS(INFENG_WEIGHT_F32, 1);
IS(INFENG_WEIGHT_BF16, 2);
IS(INFENG_WEIGHT_INT8_ROW, 3);
IS(INFENG_WEIGHT_INT4_G64, 4);
IS(INFENG_WEIGHT_INT4_G32, 5);
IS(INFENG_WEIGHT_FP8_E4M3, 6);
IS(INFENG_WEIGHT_INT4_G64_ZP, 7);
IS(INFENG_ACT_NONE, 0);
IS(INFENG_ACT_F32, 1);
IS(INFENG_ACT_INT8_G64, 2);
IS(INFENG_KV_NONE, 0);
IS(INFENG_KV_F32, 1);
IS(INFENG_KV_F16, 2);
IS(INFENG_KV_INT8, 3);
IS(INFENG_KV_FP8, 4);
IS(INFENG_KV_INT4, 5);
IS(INFENG_DEVICE_CPU, 1);
IS(INFENG_DEVICE_CUDA, 2);
IS(INFENG_OP_EMBED, 1);
IS(INFENG_OP_RMSNORM, 2);
IS(INFENG_OP_LINEAR, 3);
IS(INFENG_OP_EPILOGUE, 4);
IS(INFENG_OP_ROPE, 5);
IS(INFENG_OP_KV_APPEND, 6);
IS(INFENG_OP_ATTENTION, 7);
IS(INFENG_OP_SHRINK, 8);
IS(INFENG_EPILOGUE_BIAS, 1);
IS(INFENG_EPILOGUE_LORA, 2);
IS(INFENG_EPILOGUE_ROW_SCALE, 3);
IS(INFENG_EPILOGUE_RESIDUAL, 4);
IS(INFENG_EPILOGUE_SILU_MUL, 5);
IS(INFENG_EPILOGUE_QUANTIZE, 6);
IS(INFENG_NUMERICS_EXACT, 1);
IS(INFENG_NUMERICS_APPROX, 2);
IS(INFENG_KIND_TILES, 1);
IS(INFENG_KIND_WHOLE, 2);
IS(INFENG_EXTENSION_BACKEND, 1);
IS(INFENG_EXTENSION_FETCH, 2);
IS(INFENG_MAX_DIMS, 4);
IS(INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_QUANTIZE), 64);
