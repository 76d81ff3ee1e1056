/* For each bit of `needs` a copy of a reference kernel that says it handles that bit and no other, and leaves out what
 * the bit asks for; with HONEST it does what it says. Linked with the reference's sources, whose entry has another
 * name. */
#include <infeng/abi.h>
#include <stdlib.h>
#include <string.h>

infeng_status reference_library(const infeng_host* host, infeng_library_desc* out);

typedef struct copy {
  uint32_t need;
  const char* of;   /* the reference's kernel */
  const char* name; /* "lies_" and the bit's name */
  const infeng_kernel* original;
  infeng_kernel kernel;
} copy;

#define COPY(of, bit) {INFENG_NEED_##bit, of, "lies_" #bit, NULL, {0}}
#define STEP(function) {INFENG_NEED_FUNCTION(INFENG_FUNCTION_##function), "epilogue", "lies_" #function, NULL, {0}}
static copy copies[] = {COPY("attention_f32", WINDOW),
                        COPY("attention_f32", SOFTCAP),
                        COPY("attention_f32", SINKS),
                        COPY("attention_f32", ALIBI),
                        COPY("attention_f32", MASK),
                        COPY("attention_f32", HEAD_SIZES),
                        COPY("rmsnorm", ROW_GATHER),
                        COPY("rmsnorm", NORM_HEADS),
                        COPY("rmsnorm", NORM_PLAIN),
                        COPY("rmsnorm", NORM_OFFSET),
                        COPY("rope", ROPE_NORM),
                        COPY("rope", ROPE_SCALE),
                        COPY("epilogue", LORA_F32),
                        COPY("epilogue", LORA_BF16),
                        COPY("epilogue", LORA_I8),
                        COPY("epilogue", LORA_I8T4),
                        STEP(SILU),
                        STEP(GELU),
                        STEP(GELU_TANH),
                        STEP(RELU2),
                        STEP(SIGMOID),
                        STEP(SWIGLU),
                        STEP(WIDE),
                        STEP(ROW)};
enum { COUNT = sizeof copies / sizeof *copies, MOST_STEPS = 4 };
static const infeng_kernel* list[COUNT];

#ifndef HONEST
typedef union any_step {
  infeng_epilogue head;
  infeng_operand_epilogue operand;
  infeng_quantize_epilogue quantize;
  infeng_lora_epilogue lora;
} any_step;

typedef union any_args {
  infeng_args common;
  infeng_epilogue_args epilogue;
  infeng_rmsnorm_args rmsnorm;
  infeng_rope_args rope;
  infeng_attention_args attention;
} any_args;

static void ignore_in_step(uint32_t need, infeng_epilogue* step) {
  if (step->kind == INFENG_EPILOGUE_LORA && need >= INFENG_NEED_LORA_F32 && need <= INFENG_NEED_LORA_I8T4) {
    ((infeng_lora_epilogue*)step)->segment_count = 0;
  }
  const int is_quantize = step->kind == INFENG_EPILOGUE_QUANTIZE;
  if (is_quantize && need == INFENG_NEED_FUNCTION(INFENG_FUNCTION_ROW)) {
    step->function = INFENG_FUNCTION_WIDE; /* of groups of 64 below */
  }
  if (need == INFENG_NEED_FUNCTION(step->function) && !is_quantize) {
    step->function = step->function == INFENG_FUNCTION_SILU ? INFENG_FUNCTION_GELU : INFENG_FUNCTION_SILU;
  }
}

static infeng_status run(const copy* self, const infeng_args* common, int32_t phase, int64_t first, int64_t last,
                         infeng_worker* worker) {
  static const float other[4096] = {1, 1, 1, 1};
  any_args args;
  any_step steps[MOST_STEPS];
  const infeng_epilogue* pointers[MOST_STEPS];
  infeng_activation narrow[MOST_STEPS];
  infeng_kv_cache cache;
  memcpy(&args, common, common->struct_size);
  for (uint32_t i = 0; i < common->epilogue_count; i++) {
    memcpy(&steps[i], common->epilogues[i], common->epilogues[i]->struct_size);
    ignore_in_step(self->need, &steps[i].head);
    if (self->need == INFENG_NEED_FUNCTION(INFENG_FUNCTION_WIDE) ||
        self->need == INFENG_NEED_FUNCTION(INFENG_FUNCTION_ROW)) {
      narrow[i] = *steps[i].quantize.act;
      narrow[i].group = 64;
      narrow[i].rotated = 0;
      steps[i].quantize.act = &narrow[i];
    }
    pointers[i] = &steps[i].head;
  }
  args.common.epilogues = pointers;
  switch (self->need) {
    case INFENG_NEED_WINDOW:
      args.attention.window /= 2; /* what lies farther back has no blocks */
      break;
    case INFENG_NEED_SOFTCAP:
      args.attention.softcap = 0;
      break;
    case INFENG_NEED_SINKS:
      args.attention.sinks = NULL;
      break;
    case INFENG_NEED_ALIBI:
      args.attention.slopes = NULL;
      break;
    case INFENG_NEED_MASK:
      args.attention.mask = INFENG_MASK_CAUSAL;
      break;
    case INFENG_NEED_HEAD_SIZES:
      cache = *args.attention.cache;
      cache.v_head_dim = cache.head_dim;
      args.attention.cache = &cache;
      break;
    case INFENG_NEED_ROW_GATHER:
      args.rmsnorm.row_index = NULL;
      break;
    case INFENG_NEED_NORM_HEADS:
      args.rmsnorm.x.shape[1] = 1;
      break;
    case INFENG_NEED_NORM_PLAIN:
      args.rmsnorm.weight.data = (void*)other;
      break;
    case INFENG_NEED_NORM_OFFSET:
      args.rmsnorm.offset = 0;
      break;
    case INFENG_NEED_ROPE_NORM:
      args.rope.q_norm = args.rope.k_norm = NULL;
      break;
    case INFENG_NEED_ROPE_SCALE:
      args.rope.q_scale = NULL;
      break;
    default:
      break;
  }
  return self->original->run(&args.common, phase, first, last, worker);
}

/* Functions that know which copy they belong to. */
#define RUN(n)                                                                                            \
  static infeng_status run_##n(const infeng_args* a, int32_t p, int64_t f, int64_t l, infeng_worker* w) { \
    return run(&copies[n], a, p, f, l, w);                                                                \
  }
#define ENTRY(n) run_##n,
#define EACH(X) \
  X(0)          \
  X(1)          \
  X(2)          \
  X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23)
EACH(RUN)
static infeng_status (*const runs[COUNT])(const infeng_args*, int32_t, int64_t, int64_t,
                                          infeng_worker*) = {EACH(ENTRY)};
#endif

INFENG_EXPORT infeng_status infeng_library(const infeng_host* host, infeng_library_desc* out) {
  const infeng_status status = reference_library(host, out);
  if (status != INFENG_OK) return status;
  for (int i = 0; i < COUNT; i++) {
    copy* each = &copies[i];
    for (int32_t k = 0; k < out->kernel_count; k++) {
      if (strcmp(out->kernels[k]->name, each->of) == 0) each->original = out->kernels[k];
    }
    if (each->original == NULL) abort();
    each->kernel = *each->original;
    each->kernel.name = each->name;
    each->kernel.handles = INFENG_NEED_BIT(each->need);
#ifndef HONEST
    each->kernel.run = runs[i];
#endif
    list[i] = &each->kernel;
  }
  out->name = LIBRARY;
  out->kernels = list;
  out->kernel_count = COUNT;
  return INFENG_OK;
}
