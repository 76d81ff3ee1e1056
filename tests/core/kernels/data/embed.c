/* A kernel library with one or two small kernels for `embed` over f32 weights. Macros make it right, wrong or hostile:
 *   LIBRARY, KERNEL, PRIORITY, FEATURES, NUMERICS, FUSES, MAJOR, MINOR   what it says of itself
 *   SECOND, SECOND_FEATURES, SECOND_PRIORITY                             another kernel of the same op
 *   ON_LOAD                                                              statement of a constructor
 *   ON_ENTRY                                                             statement at the start of the entry point
 *   ON_ROW(a, m, out)                                                    statement after row m is written to out
 *   NO_ENTRY                                                             the entry point has another name */
#define _GNU_SOURCE
#ifdef NO_ENTRY
#define infeng_library not_the_entry
#endif
#include <infeng/abi.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef LIBRARY
#define LIBRARY "tiny"
#endif
#ifndef KERNEL
#define KERNEL "embed_tiny"
#endif
#ifndef PRIORITY
#define PRIORITY 0
#endif
#ifndef FEATURES
#define FEATURES ""
#endif
#ifndef NUMERICS
#define NUMERICS INFENG_NUMERICS_EXACT
#endif
#ifndef FUSES
#define FUSES 0
#endif
#ifndef MAJOR
#define MAJOR INFENG_ABI_MAJOR
#endif
#ifndef MINOR
#define MINOR INFENG_ABI_MINOR
#endif
#ifndef ON_ENTRY
#define ON_ENTRY
#endif
#ifndef ON_ROW
#define ON_ROW(a, m, out)
#endif

#ifdef ON_LOAD
__attribute__((constructor)) static void on_load(void) { ON_LOAD; }
#endif

static int32_t accepts(const infeng_problem* problem) { return problem->weight_format == INFENG_WEIGHT_F32; }

static int64_t tiles(const infeng_args* args, int32_t phase) {
  (void)phase;
  return args->rows;
}

static infeng_status run(const infeng_args* args, int32_t phase, int64_t first, int64_t last, infeng_worker* worker) {
  const infeng_embed_args* a = (const infeng_embed_args*)args;
  (void)phase, (void)worker;
  for (int64_t m = first; m < last; ++m) {
    const float* panel = (const float*)((const char*)a->weight->data + a->ids[m] / 16 * a->weight->panel_bytes);
    float* out = (float*)a->out.data + m * a->out.strides[0];
    for (int64_t k = 0; k < a->weight->k; ++k) out[k] = panel[k * 16 + a->ids[m] % 16];
    ON_ROW(a, m, out);
  }
  return INFENG_OK;
}

#define DEFINE(symbol, kernel_name, kernel_features, kernel_priority) \
  static const infeng_kernel symbol = {                               \
      .struct_size = sizeof(infeng_kernel),                           \
      .op = INFENG_OP_EMBED,                                          \
      .name = kernel_name,                                            \
      .features = kernel_features,                                    \
      .numerics = NUMERICS,                                           \
      .kind = INFENG_KIND_TILES,                                      \
      .priority = kernel_priority,                                    \
      .fuses = FUSES,                                                 \
      .accepts = accepts,                                             \
      .tiles = tiles,                                                 \
      .run = run,                                                     \
  }

DEFINE(first_kernel, KERNEL, FEATURES, PRIORITY);
#ifdef SECOND
DEFINE(second_kernel, SECOND, SECOND_FEATURES, SECOND_PRIORITY);
static const infeng_kernel* const kernels[] = {&first_kernel, &second_kernel};
#else
static const infeng_kernel* const kernels[] = {&first_kernel};
#endif

infeng_status infeng_library(const infeng_host* host, infeng_library_desc* out) {
  (void)host;
  ON_ENTRY;
  out->abi_major = MAJOR;
  out->abi_minor = MINOR;
  out->name = LIBRARY;
  out->version = "1.0";
  out->kernels = kernels;
  out->kernel_count = sizeof kernels / sizeof *kernels;
  return INFENG_OK;
}
