/* Kernels that hand parts to the host's workers, that prepare for a number of rows, and that see their op's weight. */
#include <infeng/abi.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static float* row_of(const infeng_tensor* t, int64_t m) { return (float*)t->data + m * t->strides[0]; }
static int32_t accepts(const infeng_problem* problem) { return problem->struct_size == sizeof *problem; }
static int64_t one(const infeng_args* args, int32_t phase) { return (void)phase, args->rows > 0; }
static int64_t rows(const infeng_args* args, int32_t phase) { return (void)phase, args->rows; }
static infeng_status private_memory(const infeng_problem* problem, infeng_workspace* out) {
  (void)problem;
  out->per_worker = 64;
  return INFENG_OK;
}

static void nap(void) {
  const struct timespec pause = {0, 1000000};
  nanosleep(&pause, NULL);
}

/* -------------------------------------------------------------------------------------------------------- parts --- */
typedef struct call {
  const infeng_epilogue_args* args;
  int64_t bad; /* the first row that fails; -1: none */
  atomic_llong begun;
} call;

/* out[m] = (worker, its private memory is its own, it has no team, 3 * in[m]), slowly, so that all workers get some. */
static infeng_status show_row(void* context, int64_t m, infeng_worker* worker) {
  call* own = context;
  const float* in = row_of(&own->args->in, m);
  float* out = row_of(&own->args->out, m);
  atomic_fetch_add(&own->begun, 1);
  memset(worker->private_, worker->index + 1, 64);
  nap();
  out[0] = (float)worker->index;
  out[1] = *(char*)worker->private_ == worker->index + 1;
  out[2] = worker->team == NULL && worker->struct_size == sizeof *worker;
  out[3] = 3 * in[0];
  if (own->bad < 0 || m < own->bad) return INFENG_OK;
  snprintf(worker->message, (size_t)worker->message_size, "row %d or a later one", (int)own->bad);
  return INFENG_NOT_FINITE;
}

#define RUN(name) \
  static infeng_status name(const infeng_args* args, int32_t phase, int64_t first, int64_t last, infeng_worker* worker)

static infeng_status run_rows(const infeng_args* args, infeng_worker* worker, int64_t bad) {
  call own = {(const infeng_epilogue_args*)args, bad, 0};
  const infeng_team* team = worker->team;
  if (team == NULL || team->struct_size < sizeof *team || team->cpu_count < 1) return INFENG_INTERNAL;
  infeng_status status = team->each(team, args->rows, show_row, &own);
  if (status == INFENG_OK) status = team->each(team, 0, show_row, NULL);
  row_of(&own.args->out, 0)[4] = (float)team->cpu_count;
  row_of(&own.args->out, 0)[5] = (float)team->cpus[0];
  return status;
}
RUN(in_parts) { return (void)phase, (void)first, (void)last, run_rows(args, worker, -1); }
RUN(fails_in_parts) { return (void)phase, (void)first, (void)last, run_rows(args, worker, args->rows / 2); }

/* Runs parts until the step is cancelled. */
RUN(until_cancelled) {
  (void)phase, (void)first, (void)last;
  for (int i = 0; i < 5000 && !worker->team->is_cancelled(worker->team); ++i) {
    const infeng_status status = run_rows(args, worker, -1);
    if (status != INFENG_OK) return status;
  }
  return worker->team->is_cancelled(worker->team) ? INFENG_OK : INFENG_INTERNAL;
}
/* A kernel of tiles has no team. */
RUN(alone) {
  (void)phase;
  for (int64_t m = first; m < last; ++m) row_of(&((const infeng_epilogue_args*)args)->out, m)[0] = worker->team == NULL;
  return INFENG_OK;
}

/* -------------------------------------------------------------------------------------------- weight and rows --- */
typedef struct state {
  const infeng_weight* weight;
  int64_t prepared; /* for so many rows */
  int calls;        /* of prepare */
} state;

static infeng_status create(const infeng_problem* problem, void** instance, infeng_worker* worker) {
  state* own = calloc(1, sizeof *own);
  (void)worker;
  for (const infeng_extension* link = problem->next; link != NULL; link = link->next) {
    if (link->type == INFENG_EXTENSION_WEIGHT) own->weight = ((const infeng_bound_weight*)link)->weight;
  }
  *instance = own;
  return INFENG_OK;
}
static infeng_status prepare(void* instance, int64_t rows, infeng_worker* worker) {
  state* own = instance;
  if (rows == 13) {
    snprintf(worker->message, (size_t)worker->message_size, "no code for %d rows", (int)rows);
    return INFENG_UNIMPLEMENTED;
  }
  own->prepared = rows;
  ++own->calls;
  return INFENG_OK;
}

/* out[0] = (the weight of create is that of the call, its layout, rows of the last prepare, calls of prepare) */
RUN(show_state) {
  (void)phase, (void)first, (void)last, (void)worker;
  const infeng_linear_args* linear = (const infeng_linear_args*)args;
  const state* own = args->instance;
  float* out = linear->out.data;
  out[0] = own->weight == linear->weight;
  out[1] = own->weight == NULL ? -1 : (float)own->weight->layout;
  out[2] = (float)own->prepared;
  out[3] = (float)own->calls;
  return INFENG_OK;
}
RUN(show_weightless) {
  (void)phase, (void)first, (void)last, (void)worker;
  const state* own = args->instance;
  row_of(&((const infeng_epilogue_args*)args)->out, 0)[0] = own->weight == NULL;
  return INFENG_OK;
}
static int64_t pack_size(const infeng_weight* weight, uint64_t* layout) {
  *layout = 5;
  return weight->panels * weight->panel_bytes;
}
static infeng_status pack(const infeng_weight* weight, void* out, int64_t out_bytes, infeng_worker* worker) {
  (void)worker;
  memcpy(out, weight->data, (size_t)out_bytes);
  return INFENG_OK;
}

#define KERNEL(name_, op_, kind_, tiles_, run_, ...) \
  {.struct_size = sizeof(infeng_kernel),             \
   .op = INFENG_OP_##op_,                            \
   .name = name_,                                    \
   .features = "",                                   \
   .kind = INFENG_KIND_##kind_,                      \
   .accepts = accepts,                               \
   .tiles = tiles_,                                  \
   .run = run_,                                      \
   .workspace = private_memory,                      \
   __VA_ARGS__}
static const infeng_kernel kernels[] = {
    KERNEL("in_parts", EPILOGUE, WHOLE, one, in_parts, .numerics = INFENG_NUMERICS_EXACT),
    KERNEL("fails_in_parts", EPILOGUE, WHOLE, one, fails_in_parts, .numerics = INFENG_NUMERICS_EXACT),
    KERNEL("until_cancelled", EPILOGUE, WHOLE, one, until_cancelled, .numerics = INFENG_NUMERICS_EXACT),
    KERNEL("alone", EPILOGUE, TILES, rows, alone, .numerics = INFENG_NUMERICS_EXACT),
    KERNEL("state", LINEAR, TILES, one, show_state, .numerics = INFENG_NUMERICS_APPROX, .bound = 0.0078125f,
           .create = create, .destroy = free, .prepare = prepare, .pack_size = pack_size, .pack = pack),
    KERNEL("weightless", EPILOGUE, TILES, one, show_weightless, .numerics = INFENG_NUMERICS_APPROX, .create = create,
           .destroy = free),
};
enum { COUNT = sizeof kernels / sizeof kernels[0] };
static const infeng_kernel* list[COUNT];

INFENG_EXPORT infeng_status infeng_library(const infeng_host* host, infeng_library_desc* out) {
  (void)host;
  for (int i = 0; i < COUNT; ++i) list[i] = &kernels[i];
  out->abi_major = INFENG_ABI_MAJOR;
  out->abi_minor = INFENG_ABI_MINOR;
  out->name = "team";
  out->version = "1";
  out->kernels = list;
  out->kernel_count = COUNT;
  return INFENG_OK;
}
