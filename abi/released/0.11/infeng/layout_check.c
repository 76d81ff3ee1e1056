/* Compiling this file checks the ABI: it fails if any offset, size or number of infeng/abi.h has changed. Within a
 * major version, AT and IS lines never change; a minor that appends fields adds lines and raises the SIZE of their
 * struct.
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

SIZE(infeng_tensor, 88);
AT(infeng_tensor, data, 0, 8);
AT(infeng_tensor, dtype, 8, 4);
AT(infeng_tensor, device_type, 12, 4);
AT(infeng_tensor, device_id, 16, 4);
AT(infeng_tensor, ndim, 20, 4);
AT(infeng_tensor, shape, 24, 32);
AT(infeng_tensor, strides, 56, 32);

SIZE(infeng_worker, 48);
AT(infeng_worker, struct_size, 0, 4);
AT(infeng_worker, index, 4, 4);
AT(infeng_worker, count, 8, 4);
AT(infeng_worker, message_size, 12, 4);
AT(infeng_worker, shared, 16, 8);
AT(infeng_worker, private_, 24, 8);
AT(infeng_worker, message, 32, 8);
AT(infeng_worker, team, 40, 8);

SIZE(infeng_team, 32);
AT(infeng_team, struct_size, 0, 4);
AT(infeng_team, cpu_count, 4, 4);
AT(infeng_team, cpus, 8, 8);
AT(infeng_team, each, 16, 8);
AT(infeng_team, is_cancelled, 24, 8);

SIZE(infeng_source, 144);
AT(infeng_source, struct_size, 0, 4);
AT(infeng_source, reserved, 4, 4);
AT(infeng_source, next, 8, 8);
AT(infeng_source, tensor, 16, 8);
AT(infeng_source, part, 24, 8);
AT(infeng_source, role, 32, 8);
AT(infeng_source, layer, 40, 4);
AT(infeng_source, expert, 44, 4);
AT(infeng_source, w, 48, 88);
AT(infeng_source, moments, 136, 8);

SIZE(infeng_block, 5952);
AT(infeng_block, struct_size, 0, 4);
AT(infeng_block, reserved, 4, 60);
AT(infeng_block, w, 64, 4096);
AT(infeng_block, q, 4160, 1024);
AT(infeng_block, scale, 5184, 256);
AT(infeng_block, minimum, 5440, 256);
AT(infeng_block, sub_scale, 5696, 128);
AT(infeng_block, sub_minimum, 5824, 128);

SIZE(infeng_format, 96);
AT(infeng_format, struct_size, 0, 4);
AT(infeng_format, number, 4, 4);
AT(infeng_format, name, 8, 8);
AT(infeng_format, act_format, 16, 4);
AT(infeng_format, group, 20, 4);
AT(infeng_format, superblock, 24, 4);
AT(infeng_format, has_minima, 28, 4);
AT(infeng_format, low, 32, 4);
AT(infeng_format, high, 36, 4);
AT(infeng_format, scale_type, 40, 4);
AT(infeng_format, reserved, 44, 4);
AT(infeng_format, panel_bytes, 48, 8);
AT(infeng_format, unpack, 56, 8);
AT(infeng_format, pack, 64, 8);
AT(infeng_format, begin, 72, 8);
AT(infeng_format, end, 80, 8);
AT(infeng_format, write, 88, 8);

SIZE(infeng_operand, 24);
AT(infeng_operand, name, 0, 8);
AT(infeng_operand, kind, 8, 4);
AT(infeng_operand, offset, 12, 4);
AT(infeng_operand, value, 16, 4);
AT(infeng_operand, reserved, 20, 4);

SIZE(infeng_op, 40);
AT(infeng_op, struct_size, 0, 4);
AT(infeng_op, number, 4, 4);
AT(infeng_op, name, 8, 8);
AT(infeng_op, operands, 16, 8);
AT(infeng_op, operand_count, 24, 4);
AT(infeng_op, operand_stride, 28, 4);
AT(infeng_op, args_size, 32, 4);
AT(infeng_op, out_offset, 36, 4);

SIZE(infeng_weight, 64);
AT(infeng_weight, struct_size, 0, 4);
AT(infeng_weight, format, 4, 4);
AT(infeng_weight, layout, 8, 8);
AT(infeng_weight, n, 16, 8);
AT(infeng_weight, k, 24, 8);
AT(infeng_weight, panels, 32, 8);
AT(infeng_weight, panel_bytes, 40, 8);
AT(infeng_weight, data, 48, 8);
AT(infeng_weight, foreign, 56, 8);

SIZE(infeng_activation, 368);
AT(infeng_activation, struct_size, 0, 4);
AT(infeng_activation, group, 4, 4);
AT(infeng_activation, x, 8, 88);
AT(infeng_activation, q, 96, 88);
AT(infeng_activation, scale, 184, 88);
AT(infeng_activation, sum, 272, 88);
AT(infeng_activation, rotated, 360, 8);

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

SIZE(infeng_epilogue, 32);
AT(infeng_epilogue, struct_size, 0, 4);
AT(infeng_epilogue, kind, 4, 4);
AT(infeng_epilogue, next, 8, 8);
AT(infeng_epilogue, function, 16, 4);
AT(infeng_epilogue, scalar, 20, 4);
AT(infeng_epilogue, limit, 24, 4);
AT(infeng_epilogue, reserved, 28, 4);

SIZE(infeng_operand_epilogue, 120);
AT(infeng_operand_epilogue, head, 0, 32);
AT(infeng_operand_epilogue, operand, 32, 88);

SIZE(infeng_quantize_epilogue, 40);
AT(infeng_quantize_epilogue, head, 0, 32);
AT(infeng_quantize_epilogue, act, 32, 8);

SIZE(infeng_lora_epilogue, 136);
AT(infeng_lora_epilogue, head, 0, 32);
AT(infeng_lora_epilogue, u, 32, 88);
AT(infeng_lora_epilogue, segments, 120, 8);
AT(infeng_lora_epilogue, segment_count, 128, 4);
AT(infeng_lora_epilogue, segment_stride, 132, 4);

SIZE(infeng_kv_cache, 88);
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
AT(infeng_kv_cache, v_head_dim, 80, 4);
AT(infeng_kv_cache, reserved, 84, 4);

SIZE(infeng_kv_segment, 24);
AT(infeng_kv_segment, row_begin, 0, 4);
AT(infeng_kv_segment, row_end, 4, 4);
AT(infeng_kv_segment, pos0, 8, 4);
AT(infeng_kv_segment, length, 12, 4);
AT(infeng_kv_segment, block_table, 16, 8);

SIZE(infeng_args, 40);
AT(infeng_args, struct_size, 0, 4);
AT(infeng_args, epilogue_count, 4, 4);
AT(infeng_args, next, 8, 8);
AT(infeng_args, epilogues, 16, 8);
AT(infeng_args, rows, 24, 8);
AT(infeng_args, instance, 32, 8);

SIZE(infeng_embed_args, 144);
AT(infeng_embed_args, common, 0, 40);
AT(infeng_embed_args, ids, 40, 8);
AT(infeng_embed_args, weight, 48, 8);
AT(infeng_embed_args, out, 56, 88);

SIZE(infeng_rmsnorm_args, 320);
AT(infeng_rmsnorm_args, common, 0, 40);
AT(infeng_rmsnorm_args, x, 40, 88);
AT(infeng_rmsnorm_args, row_index, 128, 8);
AT(infeng_rmsnorm_args, weight, 136, 88);
AT(infeng_rmsnorm_args, out, 224, 88);
AT(infeng_rmsnorm_args, eps, 312, 4);
AT(infeng_rmsnorm_args, offset, 316, 4);

SIZE(infeng_layernorm_args, 408);
AT(infeng_layernorm_args, common, 0, 40);
AT(infeng_layernorm_args, x, 40, 88);
AT(infeng_layernorm_args, row_index, 128, 8);
AT(infeng_layernorm_args, weight, 136, 88);
AT(infeng_layernorm_args, bias, 224, 88);
AT(infeng_layernorm_args, out, 312, 88);
AT(infeng_layernorm_args, eps, 400, 4);
AT(infeng_layernorm_args, reserved, 404, 4);

SIZE(infeng_linear_args, 144);
AT(infeng_linear_args, common, 0, 40);
AT(infeng_linear_args, in, 40, 8);
AT(infeng_linear_args, weight, 48, 8);
AT(infeng_linear_args, out, 56, 88);

SIZE(infeng_epilogue_args, 216);
AT(infeng_epilogue_args, common, 0, 40);
AT(infeng_epilogue_args, in, 40, 88);
AT(infeng_epilogue_args, out, 128, 88);

SIZE(infeng_rope_args, 432);
AT(infeng_rope_args, common, 0, 40);
AT(infeng_rope_args, q, 40, 88);
AT(infeng_rope_args, k, 128, 88);
AT(infeng_rope_args, positions, 216, 8);
AT(infeng_rope_args, cos, 224, 88);
AT(infeng_rope_args, sin, 312, 88);
AT(infeng_rope_args, q_norm, 400, 8);
AT(infeng_rope_args, k_norm, 408, 8);
AT(infeng_rope_args, q_scale, 416, 8);
AT(infeng_rope_args, eps, 424, 4);
AT(infeng_rope_args, reserved, 428, 4);

SIZE(infeng_kv_append_args, 240);
AT(infeng_kv_append_args, common, 0, 40);
AT(infeng_kv_append_args, k, 40, 88);
AT(infeng_kv_append_args, v, 128, 88);
AT(infeng_kv_append_args, cache, 216, 8);
AT(infeng_kv_append_args, segments, 224, 8);
AT(infeng_kv_append_args, segment_count, 232, 4);
AT(infeng_kv_append_args, segment_stride, 236, 4);

SIZE(infeng_attention_args, 272);
AT(infeng_attention_args, common, 0, 40);
AT(infeng_attention_args, q, 40, 88);
AT(infeng_attention_args, out, 128, 88);
AT(infeng_attention_args, cache, 216, 8);
AT(infeng_attention_args, segments, 224, 8);
AT(infeng_attention_args, segment_count, 232, 4);
AT(infeng_attention_args, segment_stride, 236, 4);
AT(infeng_attention_args, scale, 240, 4);
AT(infeng_attention_args, window, 244, 4);
AT(infeng_attention_args, softcap, 248, 4);
AT(infeng_attention_args, mask, 252, 4);
AT(infeng_attention_args, sinks, 256, 8);
AT(infeng_attention_args, slopes, 264, 8);

SIZE(infeng_shrink_args, 152);
AT(infeng_shrink_args, common, 0, 40);
AT(infeng_shrink_args, in, 40, 8);
AT(infeng_shrink_args, u, 48, 88);
AT(infeng_shrink_args, segments, 136, 8);
AT(infeng_shrink_args, segment_count, 144, 4);
AT(infeng_shrink_args, segment_stride, 148, 4);

SIZE(infeng_route_args, 184);
AT(infeng_route_args, common, 0, 40);
AT(infeng_route_args, logits, 40, 88);
AT(infeng_route_args, in, 128, 8);
AT(infeng_route_args, out, 136, 8);
AT(infeng_route_args, experts, 144, 8);
AT(infeng_route_args, weights, 152, 8);
AT(infeng_route_args, places, 160, 8);
AT(infeng_route_args, begin, 168, 8);
AT(infeng_route_args, top_k, 176, 4);
AT(infeng_route_args, share, 180, 4);

SIZE(infeng_combine_args, 416);
AT(infeng_combine_args, common, 0, 40);
AT(infeng_combine_args, x, 40, 88);
AT(infeng_combine_args, out, 128, 88);
AT(infeng_combine_args, weights, 216, 8);
AT(infeng_combine_args, places, 224, 8);
AT(infeng_combine_args, shared, 232, 88);
AT(infeng_combine_args, gate, 320, 88);
AT(infeng_combine_args, top_k, 408, 4);
AT(infeng_combine_args, reserved, 412, 4);

SIZE(infeng_problem, 120);
AT(infeng_problem, struct_size, 0, 4);
AT(infeng_problem, op, 4, 4);
AT(infeng_problem, next, 8, 8);
AT(infeng_problem, weight_format, 16, 4);
AT(infeng_problem, act_format, 20, 4);
AT(infeng_problem, kv_format, 24, 4);
AT(infeng_problem, epilogue_count, 28, 4);
AT(infeng_problem, epilogues, 32, 8);
AT(infeng_problem, needs, 40, 8);
AT(infeng_problem, rows_min, 48, 8);
AT(infeng_problem, rows_max, 56, 8);
AT(infeng_problem, n, 64, 8);
AT(infeng_problem, k, 72, 8);
AT(infeng_problem, context, 80, 8);
AT(infeng_problem, heads, 88, 4);
AT(infeng_problem, kv_heads, 92, 4);
AT(infeng_problem, head_dim, 96, 4);
AT(infeng_problem, v_head_dim, 100, 4);
AT(infeng_problem, workers, 104, 4);
AT(infeng_problem, experts, 108, 4);
AT(infeng_problem, top_k, 112, 4);
AT(infeng_problem, reserved, 116, 4);

SIZE(infeng_workspace, 24);
AT(infeng_workspace, struct_size, 0, 4);
AT(infeng_workspace, align, 4, 4);
AT(infeng_workspace, shared, 8, 8);
AT(infeng_workspace, per_worker, 16, 8);

SIZE(infeng_kernel, 144);
AT(infeng_kernel, struct_size, 0, 4);
AT(infeng_kernel, op, 4, 4);
AT(infeng_kernel, next, 8, 8);
AT(infeng_kernel, name, 16, 8);
AT(infeng_kernel, features, 24, 8);
AT(infeng_kernel, numerics, 32, 4);
AT(infeng_kernel, kind, 36, 4);
AT(infeng_kernel, priority, 40, 4);
AT(infeng_kernel, fuses, 44, 4);
AT(infeng_kernel, handles, 48, 8);
AT(infeng_kernel, accepts, 56, 8);
AT(infeng_kernel, workspace, 64, 8);
AT(infeng_kernel, create, 72, 8);
AT(infeng_kernel, destroy, 80, 8);
AT(infeng_kernel, phases, 88, 8);
AT(infeng_kernel, tiles, 96, 8);
AT(infeng_kernel, run, 104, 8);
AT(infeng_kernel, pack_size, 112, 8);
AT(infeng_kernel, pack, 120, 8);
AT(infeng_kernel, prepare, 128, 8);
AT(infeng_kernel, bound, 136, 4);
AT(infeng_kernel, reserved, 140, 4);

SIZE(infeng_host, 32);
AT(infeng_host, struct_size, 0, 4);
AT(infeng_host, abi_major, 4, 2);
AT(infeng_host, abi_minor, 6, 2);
AT(infeng_host, next, 8, 8);
AT(infeng_host, version, 16, 8);
AT(infeng_host, features, 24, 8);

SIZE(infeng_library_desc, 88);
AT(infeng_library_desc, struct_size, 0, 4);
AT(infeng_library_desc, abi_major, 4, 2);
AT(infeng_library_desc, abi_minor, 6, 2);
AT(infeng_library_desc, next, 8, 8);
AT(infeng_library_desc, name, 16, 8);
AT(infeng_library_desc, version, 24, 8);
AT(infeng_library_desc, kernels, 32, 8);
AT(infeng_library_desc, kernel_count, 40, 4);
AT(infeng_library_desc, format_count, 44, 4);
AT(infeng_library_desc, formats, 48, 8);
AT(infeng_library_desc, thread_enter, 56, 8);
AT(infeng_library_desc, thread_exit, 64, 8);
AT(infeng_library_desc, numerics, 72, 4);
AT(infeng_library_desc, op_count, 76, 4);
AT(infeng_library_desc, ops, 80, 8);

SIZE(infeng_range, 16);
AT(infeng_range, data, 0, 8);
AT(infeng_range, bytes, 8, 8);

SIZE(infeng_fetch, 32);
AT(infeng_fetch, head, 0, 16);
AT(infeng_fetch, ranges, 16, 8);
AT(infeng_fetch, count, 24, 8);

SIZE(infeng_bound_weight, 24);
AT(infeng_bound_weight, head, 0, 16);
AT(infeng_bound_weight, weight, 16, 8);

SIZE(infeng_device, 64);
AT(infeng_device, head, 0, 16);
AT(infeng_device, describe, 16, 8);
AT(infeng_device, allocate, 24, 8);
AT(infeng_device, release, 32, 8);
AT(infeng_device, copy, 40, 8);
AT(infeng_device, wait, 48, 8);
AT(infeng_device, memory, 56, 8);

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
IS(INFENG_I8T4, 9);
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
IS(INFENG_WEIGHT_INT4_P32, 8);
IS(INFENG_WEIGHT_INT5_P32, 9);
IS(INFENG_WEIGHT_INT6_P32, 10);
IS(INFENG_WEIGHT_INT8_G32, 11);
IS(INFENG_WEIGHT_INT4_A256, 12);
IS(INFENG_WEIGHT_INT4_A128, 13);
IS(INFENG_WEIGHT_FOREIGN, 65536);
IS(INFENG_ACT_NONE, 0);
IS(INFENG_ACT_F32, 1);
IS(INFENG_ACT_INT8_G64, 2);
IS(INFENG_ACT_INT8_G128, 3);
IS(INFENG_ACT_INT8_G256, 4);
IS(INFENG_ACT_INT8_ROW, 5);
IS(INFENG_GROUP_ROW, 1073741824);
IS(INFENG_MOST_ROW_INPUTS, 131072);
IS(INFENG_KV_NONE, 0);
IS(INFENG_KV_F32, 1);
IS(INFENG_KV_F16, 2);
IS(INFENG_KV_INT8, 3);
IS(INFENG_KV_INT8_H, 6);
IS(INFENG_KV_K8V4_H, 7);
IS(INFENG_KV_INT4_H, 8);
IS(INFENG_KV_FP8_H, 9);
IS(INFENG_KV_INT8_I, 10);
IS(INFENG_KV_INT8_HI, 11);
IS(INFENG_KV_K8V4_HI, 12);
IS(INFENG_KV_INT4_HI, 13);
IS(INFENG_DEVICE_CPU, 1);
IS(INFENG_OP_EMBED, 1);
IS(INFENG_OP_RMSNORM, 2);
IS(INFENG_OP_LINEAR, 3);
IS(INFENG_OP_EPILOGUE, 4);
IS(INFENG_OP_ROPE, 5);
IS(INFENG_OP_KV_APPEND, 6);
IS(INFENG_OP_ATTENTION, 7);
IS(INFENG_OP_SHRINK, 8);
IS(INFENG_OP_ROUTE, 9);
IS(INFENG_OP_COMBINE, 10);
IS(INFENG_OP_LAYERNORM, 11);
IS(INFENG_OP_FOREIGN, 0x10000);
IS(INFENG_OPERAND_ROWS, 0);
IS(INFENG_OPERAND_VECTOR, 1);
IS(INFENG_OPERAND_SCALAR, 2);
IS(INFENG_OPERAND_ROW_INDEX, 3);
IS(INFENG_MOST_OPERANDS, 16);
IS(INFENG_MOST_ARGS, 1024);
IS(INFENG_EPILOGUE_BIAS, 1);
IS(INFENG_EPILOGUE_LORA, 2);
IS(INFENG_EPILOGUE_ROW_SCALE, 3);
IS(INFENG_EPILOGUE_RESIDUAL, 4);
IS(INFENG_EPILOGUE_GATED_MUL, 5);
IS(INFENG_EPILOGUE_QUANTIZE, 6);
IS(INFENG_EPILOGUE_SCALE, 7);
IS(INFENG_EPILOGUE_SOFTCAP, 8);
IS(INFENG_EPILOGUE_ACTIVATE, 9);
IS(INFENG_EPILOGUE_MUL, 10);
IS(INFENG_FUNCTION_IDENTITY, 0);
IS(INFENG_FUNCTION_SILU, 1);
IS(INFENG_FUNCTION_GELU, 2);
IS(INFENG_FUNCTION_GELU_TANH, 3);
IS(INFENG_FUNCTION_RELU2, 4);
IS(INFENG_FUNCTION_SIGMOID, 5);
IS(INFENG_FUNCTION_SWIGLU, 6);
IS(INFENG_FUNCTION_WIDE, 7);
IS(INFENG_FUNCTION_ROW, 8);
IS(INFENG_NEED_WINDOW, 0);
IS(INFENG_NEED_SOFTCAP, 1);
IS(INFENG_NEED_SINKS, 2);
IS(INFENG_NEED_ALIBI, 3);
IS(INFENG_NEED_MASK, 4);
IS(INFENG_NEED_HEAD_SIZES, 5);
IS(INFENG_NEED_ROW_GATHER, 6);
IS(INFENG_NEED_NORM_HEADS, 7);
IS(INFENG_NEED_NORM_PLAIN, 8);
IS(INFENG_NEED_NORM_OFFSET, 9);
IS(INFENG_NEED_ROPE_NORM, 10);
IS(INFENG_NEED_ROPE_SCALE, 11);
IS(INFENG_NEED_LORA_F32, 12);
IS(INFENG_NEED_LORA_BF16, 13);
IS(INFENG_NEED_LORA_I8, 14);
IS(INFENG_NEED_LORA_I8T4, 15);
IS(INFENG_SHARE_ALL, 0);
IS(INFENG_SHARE_CHOSEN, 1);
IS(INFENG_MASK_CAUSAL, 0);
IS(INFENG_MASK_FULL, 1);
IS(INFENG_NUMERICS_EXACT, 1);
IS(INFENG_NUMERICS_APPROX, 2);
IS(INFENG_KIND_TILES, 1);
IS(INFENG_KIND_WHOLE, 2);
IS(INFENG_EXTENSION_FETCH, 1);
IS(INFENG_EXTENSION_WEIGHT, 2);
IS(INFENG_EXTENSION_DEVICE, 0x80000003u);
IS(INFENG_COPY_TO_DEVICE, 1);
IS(INFENG_COPY_TO_HOST, 2);
IS(INFENG_COPY_ON_DEVICE, 3);
IS(INFENG_MAX_DIMS, 4);
IS(INFENG_MOST_EXPERTS, 4096);
IS(INFENG_MOST_CHOSEN, 64);
IS(INFENG_EXTENSION_REQUIRED, 0x80000000u);
IS(INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_QUANTIZE), 64);
IS(INFENG_NEED_BIT(INFENG_NEED_FUNCTION(INFENG_FUNCTION_GELU)), 1ull << 34);
