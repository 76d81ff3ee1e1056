/* A library that brings two weight formats, floats and integers with a scale for each 32 inputs, and a kernel for the
 * first. CLASH and BAD_* break one rule each. */
#include <infeng/ops/library.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t float_bytes(int64_t k) { return k * 64; }
#ifdef CLASH
static int64_t integer_bytes(int64_t k) { return k / 64 * (16 + 4) * 64; }
#else
static int64_t integer_bytes(int64_t k) { return k / 64 * (16 + 2) * 64; }
#endif

static const float* row_of(const infeng_source* source, int64_t row) {
  return (const float*)source->w.data + row * source->w.strides[0];
}
static int64_t rows_of(const infeng_source* source, int64_t row) {
  return source->w.shape[0] - row < 16 ? source->w.shape[0] - row : 16;
}

static infeng_status pack_float(const infeng_source* source, const void* state, int64_t row, void* panel,
                                infeng_worker* worker) {
  float* out = panel;
  const int64_t k = source->w.shape[1];
  (void)state, (void)worker;
  memset(panel, 0, (size_t)float_bytes((k + 63) / 64 * 64));
  for (int64_t n = 0; n < rows_of(source, row); n++) {
    for (int64_t i = 0; i < k; i++) out[i * 16 + n] = row_of(source, row + n)[i];
  }
  return INFENG_OK;
}
static void unpack_float(const void* panel, int64_t g, infeng_block* out) {
  memcpy(out->w, (const float*)panel + g * 64 * 16, 64 * 64);
}

/* For each 64 inputs two lines of scales, then [64][16] int8. */
static infeng_status pack_integer(const infeng_source* source, const void* state, int64_t row, void* panel,
                                  infeng_worker* worker) {
  const int64_t k = source->w.shape[1];
  (void)state;
  memset(panel, 0, (size_t)integer_bytes((k + 63) / 64 * 64));
  for (int64_t i = 0; i < k; i += 32) {
    char* group = (char*)panel + i / 64 * (16 + 2) * 64;
    for (int64_t n = 0; n < rows_of(source, row); n++) {
      const float* w = row_of(source, row + n) + i;
      float most = 0;
      const int64_t count = k - i < 32 ? k - i : 32;
      for (int64_t j = 0; j < count; j++) most = fmaxf(most, fabsf(w[j]));
      if (most > 1e6f) {
        snprintf(worker->message, (size_t)worker->message_size, "%g is too large", (double)most);
        return INFENG_OUT_OF_RANGE;
      }
      ((float*)group)[i % 64 / 32 * 16 + n] = most / 127;
      for (int64_t j = 0; j < count && most > 0; j++) {
        ((int8_t*)group)[128 + (i % 64 + j) * 16 + n] = (int8_t)rintf(w[j] * (127 / most));
      }
    }
  }
  return INFENG_OK;
}
static void unpack_integer(const void* panel, int64_t g, infeng_block* out) {
  const char* group = (const char*)panel + g * (16 + 2) * 64;
  memcpy(out->scale, group, 128);
  memcpy(out->q, group + 128, 64 * 16);
}

static infeng_format floats = {.struct_size = sizeof floats,
                               .name = "toy-f32",
                               .act_format = INFENG_ACT_F32,
                               .panel_bytes = float_bytes,
                               .pack = pack_float,
                               .unpack = unpack_float};
static infeng_format integers = {.struct_size = sizeof integers,
                                 .name = "toy-int8-g32",
                                 .act_format = INFENG_ACT_INT8_G64,
                                 .group = 32,
                                 .low = -127,
                                 .high = 127,
                                 .scale_type = INFENG_F32,
                                 .panel_bytes = integer_bytes,
                                 .pack = pack_integer,
                                 .unpack = unpack_integer};
static infeng_format* const formats[] = {&floats, &integers};

/* The number is the host's: what it is called here is a name. */
static int32_t accepts(const infeng_problem* problem) {
  return problem->weight_format == floats.number && problem->epilogue_count == 0;
}
static int64_t tiles(const infeng_args* args, int32_t phase) {
  return (void)phase, args->rows == 0 ? 0 : ((const infeng_linear_args*)args)->weight->panels;
}
static infeng_status run(const infeng_args* common, int32_t phase, int64_t first, int64_t last, infeng_worker* worker) {
  const infeng_linear_args* args = (const infeng_linear_args*)common;
  const infeng_weight* weight = args->weight;
  (void)phase, (void)worker;
  for (int64_t p = first; p < last; p++) {
    const float* panel = (const float*)((const char*)weight->data + p * weight->panel_bytes);
    for (int64_t m = 0; m < common->rows; m++) {
      const float* x = (const float*)args->in->x.data + m * args->in->x.strides[0];
      float* out = (float*)args->out.data + m * args->out.strides[0] + 16 * p;
      for (int n = 0; n < 16; n++) {
        float acc = 0;
        for (int64_t k = 0; k < weight->k; k++) acc = fmaf(x[k], panel[k * 16 + n], acc);
        out[n] = acc;
      }
    }
  }
  return INFENG_OK;
}

static const infeng_kernel linear = {.struct_size = sizeof linear,
                                     .op = INFENG_OP_LINEAR,
                                     .name = "linear_toy",
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
#if defined(BAD_NAME)
  floats.name = "int8-row";
#elif defined(BAD_GROUP)
  integers.group = 24;
#elif defined(BAD_SUPERBLOCK)
  integers.superblock = 96;
#elif defined(BAD_INTEGERS)
  integers.high = 200;
#elif defined(BAD_SCALE)
  integers.scale_type = INFENG_BF16;
#elif defined(BAD_END)
  integers.end = free;
#elif defined(BAD_SIZE)
  floats.struct_size = offsetof(infeng_format, write);
#elif defined(BAD_FUNCTION)
  floats.unpack = NULL;
#endif
  out->name = "foreign";
  out->version = "1";
  out->kernels = kernels;
  out->kernel_count = 1;
  out->formats = formats;
  out->format_count = 2;
  return INFENG_OK;
}
