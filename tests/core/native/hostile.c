/* Libraries that break one rule each; CASE_* chooses the rule. Built as C, or as C++ where the entry throws. */
#include <infeng/abi.h>
#include <string.h>
#ifdef CASE_THROWS
#include <stdexcept>
#endif

static int32_t accepts(const infeng_problem* problem) { return problem != NULL; }
static int64_t tiles(const infeng_args* args, int32_t phase) { return (void)phase, args->rows; }
static infeng_status run(const infeng_args* args, int32_t phase, int64_t first, int64_t last, infeng_worker* worker) {
#ifdef CASE_RUN_THROWS
  if (first >= 0) throw 42;
#endif
  return (void)args, (void)phase, (void)first, (void)last, (void)worker, INFENG_OK;
}

static infeng_kernel kernel, second;
static infeng_extension link_a, link_b;
static const infeng_kernel* list[2];

#ifndef CASE_NO_SYMBOL
#ifdef __cplusplus
extern "C"
#endif
    INFENG_EXPORT infeng_status
    infeng_library(const infeng_host* host, infeng_library_desc* out) {
  kernel.struct_size = sizeof kernel;
  kernel.op = INFENG_OP_EPILOGUE;
  kernel.name = "plain";
  kernel.features = "avx2,fma";
  kernel.numerics = INFENG_NUMERICS_APPROX;
  kernel.kind = INFENG_KIND_TILES;
  kernel.priority = 7;
  kernel.accepts = accepts;
  kernel.tiles = tiles;
  kernel.run = run;
  second = kernel;
  second.name = "second";
  list[0] = &kernel;
  list[1] = &second;
  out->abi_major = INFENG_ABI_MAJOR;
  out->abi_minor = INFENG_ABI_MINOR;
  out->name = "hostile";
  out->version = host->version;
  out->kernels = list;
  out->kernel_count = 2;
  link_a.size = link_b.size = sizeof link_a;
  link_a.type = link_b.type = 1234;

#if defined(CASE_THROWS)
  throw std::runtime_error("no licence found");
#elif defined(CASE_FAILS)
  return INFENG_INTERNAL;
#elif defined(CASE_MAJOR)
  out->abi_major = INFENG_ABI_MAJOR + 1;
#elif defined(CASE_MAJOR_REFUSES)
  out->abi_major = INFENG_ABI_MAJOR + 1;
  return INFENG_UNSUPPORTED_ABI;
#elif defined(CASE_NEWER_MINOR)
  out->abi_minor = INFENG_ABI_MINOR + 1;
#elif defined(CASE_NEWER_MINOR_NEGOTIATES)
  out->abi_minor = host->abi_minor;
  kernel.struct_size += 64; /* fields of the future */
  second.op = 500;          /* an op of the future */
#elif defined(CASE_NUMERICS)
  out->numerics = INFENG_NUMERICS + 1;
#elif defined(CASE_BEFORE_SINCE)
  out->abi_minor = INFENG_ABI_SINCE - 1;
#elif defined(CASE_SHORT_KERNEL)
  kernel.struct_size = offsetof(infeng_kernel, pack_size); /* what follows is not the kernel's */
  kernel.pack_size = (int64_t (*)(const infeng_weight*, uint64_t*))0x10;
  kernel.pack = (infeng_status(*)(const infeng_weight*, void*, int64_t, infeng_worker*))0x10;
#elif defined(CASE_SIZE_TINY)
  kernel.struct_size = 4;
#elif defined(CASE_SIZE_HUGE)
  kernel.struct_size = 0x40000000;
#elif defined(CASE_SIZE_HIDES_RUN)
  kernel.struct_size = offsetof(infeng_kernel, run);
#elif defined(CASE_DESC_GROWS)
  out->struct_size = 4096;
#elif defined(CASE_DESC_OVERRUN)
  memset((char*)out + out->struct_size, 0, 64);
#elif defined(CASE_CYCLE)
  link_a.next = &link_b;
  link_b.next = &link_a;
  kernel.next = &link_a;
#elif defined(CASE_LIBRARY_CYCLE)
  link_a.next = &link_a;
  out->next = &link_a;
#elif defined(CASE_UNKNOWN_EXTENSION)
  link_a.next = &link_b;
  out->next = kernel.next = &link_a;
#elif defined(CASE_REQUIRED_OF_LIBRARY)
  link_a.next = &link_b;
  link_b.type |= INFENG_EXTENSION_REQUIRED;
  out->next = &link_a;
#elif defined(CASE_REQUIRED_OF_KERNEL)
  link_b.type |= INFENG_EXTENSION_REQUIRED;
  kernel.next = &link_b;
#elif defined(CASE_HALF_AN_INSTANCE)
  kernel.create = (infeng_status(*)(const infeng_problem*, void**, infeng_worker*))0x10;
#elif defined(CASE_PREPARES_NOTHING)
  kernel.prepare = (infeng_status(*)(void*, int64_t, infeng_worker*))0x10;
#elif defined(CASE_BOUND) || defined(CASE_NEGATIVE_BOUND) || defined(CASE_NAN_BOUND)
  kernel.numerics = INFENG_NUMERICS_APPROX;
#if defined(CASE_BOUND)
  kernel.bound = 0.5f;
#elif defined(CASE_NEGATIVE_BOUND)
  kernel.bound = -0.01f;
#else
  kernel.bound = 0.0f / 0.0f;
#endif
#elif defined(CASE_EXTENSION_SIZE)
  link_a.size = 3;
  out->next = &link_a;
#elif defined(CASE_NO_ACCEPTS)
  kernel.accepts = NULL;
#elif defined(CASE_NO_TILES)
  kernel.tiles = NULL;
#elif defined(CASE_NO_RUN)
  kernel.run = NULL;
#elif defined(CASE_NO_NAME)
  kernel.name = NULL;
#elif defined(CASE_SAME_NAME)
  second.name = "plain";
#elif defined(CASE_NULL_KERNEL)
  list[1] = NULL;
#elif defined(CASE_COUNT)
  out->kernel_count = -1;
#elif defined(CASE_NULL_LIST)
  out->kernels = NULL;
#elif defined(CASE_KIND)
  kernel.kind = 9;
  kernel.run = NULL; /* a function of the future takes its place */
#elif defined(CASE_CLASS)
  kernel.numerics = 9;
#elif defined(CASE_NEEDS)
  kernel.handles = INFENG_NEED_BIT(INFENG_NEED_WINDOW) | INFENG_NEED_BIT(20) | INFENG_NEED_BIT(63);
#elif defined(CASE_LIBRARY_NAME)
  out->name = "two words";
#endif
  return INFENG_OK;
}
#endif
