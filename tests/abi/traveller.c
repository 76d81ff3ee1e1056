/* A kernel library that triples its input, built against headers of several versions. Fields of a fabricated future
 * header are guarded by INFENG_FUTURE; fields that a host may lack are guarded by struct_size. */
#ifdef SDK_ENTRY
#include <infeng/ops/library.h>
#else
#include <infeng/abi.h>
#endif
#include <string.h>
#ifdef AT_PAGE_END
#include <sys/mman.h>
#endif

#define HAS(object, type, field) ((object)->struct_size >= offsetof(type, field) + sizeof((object)->field))

static int32_t accepts(const infeng_problem* problem) {
#ifdef INFENG_FUTURE
  if (HAS(problem, infeng_problem, future)) return 0; /* no host of today has it */
#endif
  return problem->op == INFENG_OP_EPILOGUE && problem->epilogues == 0;
}

static int64_t tiles(const infeng_args* args, int32_t phase) {
  (void)phase;
  return args->rows;
}

static infeng_status run(const infeng_args* common, int32_t phase, int64_t first, int64_t last, infeng_worker* worker) {
  const infeng_epilogue_args* args = (const infeng_epilogue_args*)common;
  (void)phase;
  (void)worker;
  for (int64_t row = first; row < last; row++) {
    const float* in = (const float*)args->in.data + row * args->in.strides[0];
    float* out = (float*)args->out.data + row * args->out.strides[0];
    for (int64_t i = 0; i < args->in.shape[1]; i++) out[i] = 3 * in[i];
  }
  return INFENG_OK;
}

#ifdef SDK_ENTRY
const
#else
static
#endif
    infeng_kernel triple = {.struct_size = sizeof(infeng_kernel),
                            .op = INFENG_OP_EPILOGUE,
                            .name = "triple",
                            .features = "",
                            .numerics = INFENG_NUMERICS_APPROX,
                            .kind = INFENG_KIND_TILES,
                            .accepts = accepts,
                            .tiles = tiles,
                            .run = run};
#ifdef SDK_ENTRY
#define KERNELS(X) X(triple)
INFENG_LIBRARY("traveller", "1", KERNELS)
#else
static const infeng_kernel* kernels[] = {&triple, &triple};

#ifdef AT_PAGE_END
/* The struct ends where readable memory ends, so a host that reads newer fields crashes. */
static const infeng_kernel* at_page_end(void) {
  char* pages = (char*)mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(pages + 4096, 4096, PROT_NONE);
  return (const infeng_kernel*)memcpy(pages + 4096 - sizeof triple, &triple, sizeof triple);
}
#endif

infeng_status infeng_library(const infeng_host* host, infeng_library_desc* out) {
  out->abi_major = INFENG_ABI_MAJOR;
  out->abi_minor = INFENG_ABI_MINOR;
  if (host->abi_major != INFENG_ABI_MAJOR) return INFENG_UNSUPPORTED_ABI;
  if (host->abi_minor < INFENG_ABI_MINOR) {
#ifdef NEGOTIATES
    out->abi_minor = host->abi_minor;
#else
    return INFENG_UNSUPPORTED_ABI;
#endif
  }
  out->name = "traveller";
  out->version = "1";
  out->kernels = kernels;
  out->kernel_count = 1;
#ifdef AT_PAGE_END
  kernels[0] = at_page_end();
#endif
#ifdef INFENG_FUTURE
  static infeng_extension second = {sizeof second, 0x7fff0002, NULL};
  static infeng_extension first = {sizeof first, 0x7fff0001, &second};
  static infeng_kernel of_the_future;
  if (HAS(out, infeng_library_desc, flavour)) out->flavour = 1;
  out->next = &first;
  triple.next = &first;
  of_the_future = triple;
  of_the_future.name = "of_the_future";
  of_the_future.op = INFENG_OP_COUNT + 3;
  kernels[1] = &of_the_future;
  out->kernel_count = 2;
#ifdef CYCLIC
  second.next = &first;
#endif
#endif
  return INFENG_OK;
}
#endif
