/* A kernel library whose kernels show what the executor did: who ran which tile, in which mode, in which order. */
#define _GNU_SOURCE
#include <infeng/abi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

static atomic_int entered, left, packs, instances;

static const infeng_epilogue_args* epilogue(const infeng_args* args) { return (const infeng_epilogue_args*)args; }
static const float* in_row(const infeng_args* args, int64_t m) {
  const infeng_tensor* t = &epilogue(args)->in;
  return (const float*)t->data + m * t->strides[0];
}
static float* out_row(const infeng_args* args, int64_t m) {
  const infeng_tensor* t = &epilogue(args)->out;
  return (float*)t->data + m * t->strides[0];
}
static void nap(long microseconds) {
  struct timespec pause = {microseconds / 1000000, microseconds % 1000000 * 1000};
  nanosleep(&pause, NULL);
}

static int32_t accepts(const infeng_problem* problem) { return problem->n != 13 * 16; }
static int32_t two_phases(const infeng_args* args) { return (void)args, 2; }
static int64_t rows(const infeng_args* args, int32_t phase) { return (void)phase, args->rows; }
static int64_t one(const infeng_args* args, int32_t phase) { return (void)args, (void)phase, 1; }
static int64_t minus(const infeng_args* args, int32_t phase) { return (void)args, (void)phase, -3; }

static infeng_status workspace(const infeng_problem* problem, infeng_workspace* out) {
  out->shared = problem->rows_max * (int64_t)sizeof(float);
  out->per_worker = 256;
  out->align = 128;
  return INFENG_OK;
}
static infeng_status huge_workspace(const infeng_problem* problem, infeng_workspace* out) {
  (void)problem;
  out->shared = -1;
  return INFENG_OK;
}

#define RUN(name) \
  static infeng_status name(const infeng_args* args, int32_t phase, int64_t first, int64_t last, infeng_worker* worker)

RUN(add_one) {
  (void)phase, (void)worker;
  for (int64_t m = first; m < last; ++m) {
    for (int64_t c = 0; c < epilogue(args)->in.shape[1]; ++c) out_row(args, m)[c] = in_row(args, m)[c] + 1;
  }
  return INFENG_OK;
}

/* out[m] = (worker, thread, tile, tensor rows), slowly, so that every worker gets some. */
RUN(show_worker) {
  (void)phase;
  for (int64_t m = first; m < last; ++m) {
    float* out = out_row(args, m);
    out[0] = (float)worker->index;
    out[1] = (float)(syscall(SYS_gettid) % 10000000);
    out[2] = (float)m;
    out[3] = (float)epilogue(args)->out.shape[0];
    out[4] = (float)worker->count;
    nap(1000);
  }
  return INFENG_OK;
}

/* Phase 0 leaves each row's first value in shared memory, phase 1 adds all of them up. */
RUN(total) {
  float* shared = worker->shared;
  *(int32_t*)worker->private_ = worker->index;
  for (int64_t m = first; m < last; ++m) {
    if (phase == 0) {
      shared[m] = in_row(args, m)[0];
      nap(200);
    } else {
      float sum = 0;
      for (int64_t r = 0; r < args->rows; ++r) sum += shared[r];
      out_row(args, m)[0] = sum;
    }
  }
  return *(int32_t*)worker->private_ == worker->index ? INFENG_OK : INFENG_INTERNAL;
}

RUN(fail_last_row) {
  (void)phase;
  for (int64_t m = first; m < last; ++m) {
    if (m == args->rows - 1) {
      snprintf(worker->message, (size_t)worker->message_size, "row %d holds NaN", (int)m);
      return INFENG_NOT_FINITE;
    }
  }
  return INFENG_OK;
}

RUN(nothing) { return (void)args, (void)phase, (void)first, (void)last, (void)worker, INFENG_OK; }

RUN(allocates) {
  (void)phase, (void)worker;
  for (int64_t m = first; m < last; ++m) {
    char* volatile memory = malloc(100);
    out_row(args, m)[0] = memory != NULL;
    free(memory);
  }
  return INFENG_OK;
}

RUN(fail_silently) { return (void)args, (void)phase, (void)first, (void)last, (void)worker, INFENG_OUT_OF_RANGE; }

RUN(slow) {
  (void)phase, (void)worker;
  for (int64_t m = first; m < last; ++m) {
    nap(5000);
    out_row(args, m)[0] = 1;
  }
  return INFENG_OK;
}

/* Tells the floating-point mode that it finds, and leaves another one behind as no kernel should. */
RUN(show_mode) {
  (void)phase, (void)worker;
  for (int64_t m = first; m < last; ++m) {
#if defined(__x86_64__)
    out_row(args, m)[0] = (float)(_mm_getcsr() & ~0x3fu);
#endif
    nap(200);
  }
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040);
#endif
  return INFENG_OK;
}

RUN(show_threads) {
  (void)phase, (void)first, (void)last, (void)worker;
  out_row(args, 0)[0] = (float)atomic_load(&entered);
  out_row(args, 0)[1] = (float)atomic_load(&left);
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  out_row(args, 0)[2] = strncmp(name, "infeng-", 7) == 0;
  return INFENG_OK;
}

/* linear: (layout, times packed, first packed byte) */
RUN(show_layout) {
  (void)phase, (void)first, (void)last, (void)worker;
  const infeng_linear_args* linear = (const infeng_linear_args*)args;
  float* out = linear->out.data;
  out[0] = (float)linear->weight->layout;
  out[1] = (float)atomic_load(&packs);
  out[2] = (float)*(const unsigned char*)linear->weight->data;
  return INFENG_OK;
}
static int64_t pack_size(const infeng_weight* weight, uint64_t* layout) {
  *layout = 77;
  return weight->panels * weight->panel_bytes;
}
static infeng_status pack(const infeng_weight* weight, void* out, int64_t out_bytes, infeng_worker* worker) {
  (void)worker;
  const unsigned char* from = weight->data;
  for (int64_t i = 0; i < out_bytes; ++i) ((unsigned char*)out)[i] = (unsigned char)(from[i] + 1);
  atomic_fetch_add(&packs, 1);
  return INFENG_OK;
}

static infeng_status enter(void) {
  atomic_fetch_add(&entered, 1);
  return INFENG_OK;
}
static void leave(void) { atomic_fetch_add(&left, 1); }

/* An instance counts the calls of its op, and the library how many there are. */
typedef struct counter {
  atomic_int calls;
} counter;

static infeng_status create(const infeng_problem* problem, void** instance, infeng_worker* worker) {
  if (problem->n == 14 * 16) {
    snprintf(worker->message, (size_t)worker->message_size, "no licence for %d outputs", (int)problem->n);
    return INFENG_OUT_OF_RANGE;
  }
  *instance = calloc(1, sizeof(counter));
  atomic_fetch_add(&instances, 1);
  return *instance == NULL ? INFENG_INTERNAL : INFENG_OK;
}
static void destroy(void* instance) {
  free(instance);
  atomic_fetch_sub(&instances, 1);
}

/* out[m] = (calls of this op before, instances of the process) */
RUN(count_calls) {
  (void)phase, (void)worker;
  for (int64_t m = first; m < last; ++m) {
    counter* own = args->instance;
    out_row(args, m)[0] = (float)atomic_fetch_add(&own->calls, 1);
    out_row(args, m)[1] = (float)atomic_load(&instances);
  }
  return INFENG_OK;
}
static int64_t rows_of_instance(const infeng_args* args, int32_t phase) {
  return (void)phase, args->instance == NULL ? -1 : args->rows;
}

#define HEAD(name, op, kind) sizeof(infeng_kernel), op, NULL, name, "", INFENG_NUMERICS_EXACT, kind, 0, 0, 0, accepts
#define TILES(name, function) \
  {HEAD(name, INFENG_OP_EPILOGUE, INFENG_KIND_TILES), workspace, NULL, NULL, NULL, rows, function, NULL, NULL}

static const infeng_kernel kernels[] = {
    TILES("add_one", add_one),
    TILES("show_worker", show_worker),
    TILES("fail_last_row", fail_last_row),
    TILES("fail_silently", fail_silently),
    TILES("nothing", nothing),
    TILES("allocates", allocates),
    TILES("slow", slow),
    TILES("show_mode", show_mode),
    TILES("show_threads", show_threads),
    {HEAD("total", INFENG_OP_EPILOGUE, INFENG_KIND_TILES), workspace, NULL, NULL, two_phases, rows, total, NULL, NULL},
    {HEAD("whole", INFENG_OP_EPILOGUE, INFENG_KIND_WHOLE), NULL, NULL, NULL, NULL, rows, show_worker, NULL, NULL},
    {HEAD("negative", INFENG_OP_EPILOGUE, INFENG_KIND_TILES), NULL, NULL, NULL, NULL, minus, add_one, NULL, NULL},
    {HEAD("greedy", INFENG_OP_EPILOGUE, INFENG_KIND_TILES), huge_workspace, NULL, NULL, NULL, rows, add_one, NULL,
     NULL},
    {HEAD("private_layout", INFENG_OP_LINEAR, INFENG_KIND_TILES), NULL, NULL, NULL, NULL, one, show_layout, pack_size,
     pack},
    {HEAD("attention", INFENG_OP_ATTENTION, INFENG_KIND_TILES), NULL, NULL, NULL, NULL, one, nothing, NULL, NULL},
    {HEAD("counter", INFENG_OP_EPILOGUE, INFENG_KIND_TILES), NULL, create, destroy, NULL, rows_of_instance, count_calls,
     NULL, NULL},
};
enum { COUNT = sizeof kernels / sizeof kernels[0] };
static const infeng_kernel* list[COUNT];

INFENG_EXPORT infeng_status infeng_library(const infeng_host* host, infeng_library_desc* out) {
  (void)host;
  for (int i = 0; i < COUNT; ++i) list[i] = &kernels[i];
  out->abi_major = INFENG_ABI_MAJOR;
  out->abi_minor = INFENG_ABI_MINOR;
  out->name = "toy";
  out->version = "1.2.3";
  out->kernels = list;
  out->kernel_count = COUNT;
  out->thread_enter = enter;
  out->thread_exit = leave;
  return INFENG_OK;
}
