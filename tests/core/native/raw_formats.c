/* A library that brings integer formats of several geometries, whose panels are what `unpack` fills, line by line, and
 * a format of floats whose `pack` stores what it was told of the matrix. */
#include <infeng/ops/library.h>
#include <stdlib.h>
#include <string.h>

typedef struct raw {
  int8_t q[64][16];
  float scale[4][16], minimum[4][16];
  int16_t sub_scale[4][16], sub_minimum[4][16];
} raw;

static int64_t raw_bytes(int64_t k) { return (k + 63) / 64 * (int64_t)sizeof(raw); }

static void raw_unpack(const void* panel, int64_t g, infeng_block* out) {
  const raw* in = (const raw*)panel + g;
  memcpy(out->q, in->q, sizeof in->q);
  memcpy(out->scale, in->scale, sizeof in->scale);
  memcpy(out->minimum, in->minimum, sizeof in->minimum);
  memcpy(out->sub_scale, in->sub_scale, sizeof in->sub_scale);
  memcpy(out->sub_minimum, in->sub_minimum, sizeof in->sub_minimum);
}

static void raw_write(void* panel, int64_t g, const infeng_block* block) {
  raw* out = (raw*)panel + g;
  memcpy(out->q, block->q, sizeof out->q);
  memcpy(out->scale, block->scale, sizeof out->scale);
}

#define RAW(id, text, inputs, shared, minima, writes)              \
  static infeng_format id = {.struct_size = sizeof(infeng_format), \
                             .name = text,                         \
                             .act_format = INFENG_ACT_INT8_G64,    \
                             .group = inputs,                      \
                             .superblock = shared,                 \
                             .has_minima = minima,                 \
                             .low = -100,                          \
                             .high = 120,                          \
                             .scale_type = INFENG_F16,             \
                             .panel_bytes = raw_bytes,             \
                             .unpack = raw_unpack,                 \
                             .write = writes}
RAW(g16, "raw-g16", 16, 0, 0, raw_write);
RAW(g96, "raw-g96", 96, 0, 0, raw_write);
RAW(row, "raw-row", INFENG_GROUP_ROW, 0, 0, raw_write);
RAW(g96_min, "raw-g96-min", 96, 0, 1, NULL);
RAW(row_min, "raw-row-min", INFENG_GROUP_ROW, 0, 1, NULL);
RAW(s128_g32_min, "raw-s128-g32-min", 32, 128, 1, NULL);
RAW(s192_g96, "raw-s192-g96", 96, 192, 0, NULL);
RAW(srow_g48_min, "raw-srow-g48-min", 48, INFENG_GROUP_ROW, 1, NULL);

/* ---------------------------------------------------------------------------------------------------- told --- */

static int64_t told_bytes(int64_t k) { return k * 64; }

static void told_unpack(const void* panel, int64_t g, infeng_block* out) {
  memcpy(out->w, (const float*)panel + g * 64 * 16, sizeof out->w);
}

typedef struct told {
  float calls, sum;
} told;
static int begun, ended;

static infeng_status told_begin(const infeng_source* source, void** state, infeng_worker* worker) {
  (void)worker;
  told* made = calloc(1, sizeof *made);
  made->calls = (float)++begun;
  for (int64_t n = 0; n < source->w.shape[0]; n++) {
    for (int64_t k = 0; k < source->w.shape[1]; k++) {
      made->sum += ((const float*)source->w.data)[n * source->w.strides[0] + k];
    }
  }
  *state = made;
  return source->w.shape[0] == 13 ? (free(made), begun--, strcpy(worker->message, "13 rows"), INFENG_NOT_FINITE)
                                  : INFENG_OK;
}
static void told_end(void* state) { free(state), ended++; }

static float length(const char* word) { return word == NULL ? -1 : (float)strlen(word); }

/* Lane 0: what the source says. Lane 1: the first value of the row. */
static infeng_status told_pack(const infeng_source* source, const void* state, int64_t row, void* panel,
                               infeng_worker* worker) {
  float* out = panel;
  (void)worker;
  memset(panel, 0, (size_t)told_bytes((source->w.shape[1] + 63) / 64 * 64));
  const float values[] = {
      (float)source->layer,      (float)source->expert,
      length(source->tensor),    length(source->part),
      length(source->role),      source->moments == NULL ? -1 : (float)source->moments[source->w.shape[1] + 2],
      ((const told*)state)->sum, (float)row,
      (float)(begun - ended)};
  for (size_t i = 0; i < sizeof values / sizeof *values; i++) out[i * 16] = values[i];
  out[1] = ((const float*)source->w.data)[row * source->w.strides[0]];
  return INFENG_OK;
}

static infeng_format floats = {.struct_size = sizeof(infeng_format),
                               .name = "raw-told",
                               .act_format = INFENG_ACT_F32,
                               .panel_bytes = told_bytes,
                               .unpack = told_unpack,
                               .pack = told_pack,
                               .begin = told_begin,
                               .end = told_end};

static infeng_format* const formats[] = {&g16,          &g96,      &row,          &g96_min, &row_min,
                                         &s128_g32_min, &s192_g96, &srow_g48_min, &floats};

infeng_status infeng_library(const infeng_host* host, infeng_library_desc* out) {
  const infeng_status status = infeng_negotiate(host, out);
  if (status != INFENG_OK) return status;
  out->name = "raw";
  out->version = "1";
  out->formats = formats;
  out->format_count = (int32_t)(sizeof formats / sizeof *formats);
  return INFENG_OK;
}
