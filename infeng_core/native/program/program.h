// A program is a flat list of ops bound to kernels. Adding an op prepares its arguments, so that a step only patches
// row counts and pointers.
#pragma once

#include <infeng/abi.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "library/library.h"
#include "machine/device.h"
#include "program/experts.h"
#include "program/kv_cache.h"
#include "program/lora.h"
#include "program/pool.h"
#include "program/problem.h"
#include "program/profile.h"
#include "program/shares.h"
#include "program/split.h"
#include "vocabulary/op_kinds.h"
#include "weights/arena.h"
#include "weights/weight.h"

namespace infeng {

// A vector of f32 that kernels read, 64-byte aligned; `owner` keeps it alive.
struct Constant {
  const float* data = nullptr;
  int64_t size = 0;
  std::shared_ptr<const void> owner;
};

struct Limits {
  int64_t rows = 0;
  int64_t samples = 0;
  int64_t segments = 0;
  int64_t context = 0;
  int64_t tables = 1;  // block tables of each sequence, one for each group of layers
};

// A kernel and the most rows it serves. An op's bindings ascend by `rows`: a step of r rows takes the first with
// r <= rows.
struct Binding {
  int64_t rows = 0;
  std::shared_ptr<const Kernel> kernel;
  // Set by finish().
  std::shared_ptr<const Weight> weight = nullptr;  // in the kernel's layout
  std::shared_ptr<void> instance = nullptr;        // the kernel's state for this op
  int64_t prepared = -1;                           // the rows for which `prepare` was called last
};
using Bindings = std::vector<Binding>;

struct EpilogueSpec {
  uint32_t kind = 0;
  int value = -1;     // RESIDUAL, MUL: buffer; QUANTIZE: activation; LORA: slot
  Constant constant;  // BIAS, ROW_SCALE
  uint32_t function = INFENG_FUNCTION_IDENTITY;
  float scalar = 0;
  float limit = 0;
};
using Epilogues = std::vector<EpilogueSpec>;

// A buffer (f32 rows) or an activation (int8 rows with scales and sums).
struct Value {
  bool quantized = false;
  bool samples = false;  // one row per sampled row, else one per row of the batch
  bool on_host = false;  // of a device's program: the value is in the host's memory
  int64_t copies = 1;    // of each row; the top_k of a mixture of experts
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;  // columns rounded up to 64
  int64_t q_stride = 0;
  int64_t groups = 0;  // groups of 64 inputs in an activation
  int64_t group_stride = 0;
  int64_t group = kGroup;  // inputs that share a scale
  int64_t rotated = 0;     // inputs of a block that a Hadamard matrix rotates; 0: none
  float* x = nullptr;      // (rows, columns), stride; NULL for an activation
  int8_t* q = nullptr;     // (rows, stride), q_stride; NULL for a buffer
  float* scale = nullptr;  // (rows, groups), group_stride
  int32_t* sum = nullptr;  // (rows, groups), group_stride
};

// Rows of experts that the host computes go from a device's value to the host's, or their results the other way.
struct HandOver {
  int from;
  int to;
  Mixture* mixture;
};

// One step of an op's epilogue list, with the activation that a QUANTIZE step points at.
struct ListedStep {
  union {
    infeng_epilogue head;
    infeng_operand_epilogue operand;
    infeng_quantize_epilogue quantize;
    infeng_lora_epilogue lora;
  };
  infeng_activation act{};
  ListedStep() : lora{} {}
};

// Options of an rmsnorm.
struct NormSpec {
  float offset = 0;        // added to the weight
  int64_t heads = 1;       // each head is normalized by itself, in place if x is out
  int64_t column = 0;      // of x and out at which the heads begin
  bool gather = false;     // read sampled rows of x
  bool on_demand = false;  // run only in steps with Batch::on_demand
};

// Options of rope; a constant without data is off.
struct RopeSpec {
  Constant q_norm;   // (head_dim)
  Constant k_norm;   // (head_dim)
  Constant q_scale;  // (table_rows): a factor for each position
  float eps = 0;
};

struct AttentionSpec {
  int64_t heads = 0;
  int64_t window = 0;
  float scale = 0;
  float softcap = 0;
  uint32_t mask = INFENG_MASK_CAUSAL;
  Constant sinks;     // (heads), or without data
  Constant slopes;    // (heads), or without data
  int64_t table = 0;  // which block table of a sequence
};

// Options of ROUTE.
struct RouteSpec {
  int routing = -1;
  int64_t columns = 0;  // of the experts' input
  bool share_of_chosen = false;
  bool for_adapters = false;  // only the next SHRINK of experts reads the copies, so ROUTE runs only where it does
};

// The operands of a row op, by name.
struct RowOperands {
  std::map<std::string, int> rows = {};
  std::map<std::string, Constant> vectors = {};
  std::map<std::string, float> scalars = {};
  bool gather = false;     // read sampled rows of the first operand, by the operand row_index
  bool on_demand = false;  // run only in steps with Batch::on_demand
};

// A tensor with one row per row of the op, and the address of row 0 of the step.
struct RowView {
  infeng_tensor* tensor;
  char* data;
  int64_t row_bytes;
};

// The steps in which an op has rows: all, or those in which some row, or no row, uses an adapter.
enum class Branch { always, with_adapters, without_adapters };

struct Op {
  union Args {
    infeng_args common;
    infeng_embed_args embed;
    infeng_rmsnorm_args rmsnorm;
    infeng_linear_args linear;
    infeng_epilogue_args epilogue;
    infeng_rope_args rope;
    infeng_kv_append_args kv_append;
    infeng_attention_args attention;
    infeng_shrink_args shrink;
    infeng_route_args route;
    infeng_combine_args combine;
    infeng_layernorm_args layernorm;
    std::byte foreign[INFENG_MOST_ARGS];  // of an op that a library describes
  };
  Args args{};
  bool samples = false;
  int64_t row_copies = 1;         // rows of the op for each row of the batch
  int64_t solo_rows = 0;          // up to this many rows, one worker alone is faster than a barrier
  std::vector<ListedStep> steps;  // the args point at `steps` and `list`, so neither moves
  std::vector<const infeng_epilogue*> list;
  infeng_activation in{};            // of a linear or a shrink
  infeng_kv_cache cache{};           // of kv_append or attention
  infeng_activation copies{};        // of route
  const Routing* routing = nullptr;  // of a linear of experts
  bool on_host = false;              // of a device's program: its kernels compute on the host
  Mixture* mixture = nullptr;        // of an op over copies of rows whose experts are on two sides
  size_t linear = 0;                 // of `mixture`
  std::vector<HandOver> before;      // what is copied before it runs
  std::vector<RowView> views;
  std::shared_ptr<const Weight> weight;
  Bindings bindings;
  infeng_problem problem{};      // rows_min, rows_max and workers are filled for each binding
  const Op* upcoming = nullptr;  // the next op that streams a weight, if any
  int module = -1;               // its number if adapters may replace its weight
  int lora_slot = -1;            // of the LORA step at the head of the list
  infeng_fetch fetch{};          // chained to the args of a linear

  // Fields of the args that a step writes; NULL where the op has none.
  const infeng_weight** weight_at = nullptr;  // gets the weight in the kernel's layout, or an adapter's weight
  void** vector_at = nullptr;                 // gets `vector`, or an adapter's vector of `vector_bytes`
  void* vector = nullptr;
  int64_t vector_bytes = 0;
  const float** second_at = nullptr;  // gets `second`, or the adapter's vector at `second_offset` bytes
  const float* second = nullptr;
  int64_t second_offset = 0;
  const int32_t** index_at = nullptr;  // gets `index`, an array of the batch with one number per row
  const int32_t* index = nullptr;
  int32_t* segments_at = nullptr;       // gets the number of sequences
  const int32_t* needs_some = nullptr;  // if it points at 0, the op has no rows in the step
  Branch branch = Branch::always;

  // State of the current step.
  const Kernel* kernel = nullptr;
  int kernel_index = 0;     // the kernel's place in bindings
  int64_t rows_set = -1;    // all views show rows [0, rows_set); -1: they show something else
  bool is_sliced = false;   // the op runs once for each run of rows that share a weight
  int64_t slice_end = 0;    // rows that have run, with those of the current slice
  int64_t slices_rows = 0;  // rows of all slices
  int64_t next_expert = 0;  // of `mixture`, whose rows come next

  // Points all views at rows [begin, begin + count) and selects the kernel for `count` rows.
  void set_rows(int64_t begin, int64_t count);

  // The first binding that serves this many rows.
  const Binding& binding_of(int64_t rows) const {
    const Binding* binding = bindings.data();
    while (binding->rows < rows) ++binding;
    return *binding;
  }

  void use(const Binding& binding) {
    kernel = binding.kernel.get();
    kernel_index = static_cast<int>(&binding - bindings.data());
  }

  int64_t copies_of_rows() const { return routing == nullptr ? row_copies : routing->top_k; }

  bool has_step(uint32_t step_kind) const;

  void need(uint32_t need_number) { problem.needs |= INFENG_NEED_BIT(need_number); }

  void use_segments(std::span<const infeng_lora_segment> segments) {
    steps[0].lora.segments = segments.data();
    steps[0].lora.segment_count = static_cast<int32_t>(segments.size());
  }
};

// A worker as kernels see it, with room for its error message.
struct alignas(64) Seat {
  infeng_worker worker;
  char message[200];
};

// Arrays that a step hands to kernels: memory of the host and, for a device, its copy there.
struct BatchArrays {
  std::byte* host = nullptr;
  std::byte* device = nullptr;  // NULL: kernels read the host's
  template <class T>
  T* for_kernels(T* array) const {
    return device == nullptr ? array : reinterpret_cast<T*>(device + (reinterpret_cast<std::byte*>(array) - host));
  }
};

// The host's copy of an array on a device.
struct Shadow {
  void* device;
  void* host;
  int64_t nbytes;
  bool fetched;  // fetch() alone copies it
};

// The arrays of one step.
struct Batch {
  std::span<const int32_t> tokens;             // (rows)
  std::span<const int32_t> positions;          // (rows)
  std::span<const int32_t> segments;           // (segments, 4): row_begin, row_end, pos0, first index into block_tables
  std::span<const int32_t> block_tables;       // a sequence's tables lie ceil(context / 16) entries apart
  std::span<const int32_t> sample_rows;        // (samples)
  std::span<const AdapterRows> adapters = {};  // sorted by row
  bool on_demand = false;                      // whether ops on demand run
};

class Program {
 public:
  // `pages`: placement of adapters and of weights in a kernel's own layout. `device`: on which its kernels compute, and
  // in whose memory values, caches and adapters are; NULL: the host.
  Program(std::shared_ptr<Pool> pool, const Limits& limits, Pages pages = {}, DevicePtr device = nullptr);

  // Makes room for adapters stored as `dtype` whose stacked ranks take up to `columns` on one row. Call it before any
  // op is added.
  void open_adapters(uint32_t dtype, int64_t columns, int64_t ranges);

  // Lets the host compute some of the experts of a device's program (split.h). Call it before any op is added.
  // Afterwards the linears of experts, and ops over their rows, are added twice: with kernels of the device over its
  // values, and with kernels of the host over values `on_host`.
  void split(const SplitSpec& spec);
  // Lets the next op find rows of experts that the host computes: copied to `to`, a value on the other side than
  // `from`.
  void hand_over(int from, int to);

  // `copies`: the rows are `copies` copies of each row of the batch, one for each chosen expert.
  int buffer(int64_t columns, bool samples, int64_t copies = 1, bool on_host = false);
  // `group`: inputs that share a scale: 64, 128, 256, or INFENG_GROUP_ROW. `rotated`: the inputs of each block that a
  // Hadamard matrix rotates, which divides `columns`: 0 or 64, for rows also 128 or 256.
  int activation(int64_t columns, bool samples, int64_t copies = 1, int64_t group = kGroup, int64_t rotated = 0,
                 bool on_host = false);

  // Makes room for the result of one ROUTE at a time; returns its id for the ops that read it.
  int routing(int64_t experts, int64_t top_k);

  // Ops that are added from now on have rows in such steps only: one computation can have two forms, of which the one
  // without adapters has no LORA step and no module.
  void set_branch(Branch branch) { branch_ = branch; }
  // `module`: the name under which adapters may replace the op's weight; "": they may not. The norms of a rope are
  // replaced together: one vector holds both, each padded to 16 values.
  void embed(Bindings kernels, std::shared_ptr<const Weight> weight, int out, const std::string& module = "");
  // The size of `weight` is the width of a norm; a weight without data omits the product.
  void rmsnorm(Bindings kernels, int x, const Constant& weight, float eps, int out, const Epilogues& epilogues,
               const NormSpec& spec = {}, const std::string& module = "");
  void linear(Bindings kernels, std::shared_ptr<const Weight> weight, int x, int out, const Epilogues& epilogues,
              const std::string& module = "");
  // Applies each expert's linear to the copies of rows that ROUTE sorted to it. `weight`, and the vector of a BIAS
  // step, hold the experts one behind the other.
  void expert_linear(Bindings kernels, std::shared_ptr<const Weight> weight, int x, int out, const Epilogues& epilogues,
                     int routing);
  void route(Bindings kernels, int logits, int x, int out, const RouteSpec& spec);
  // `shared` and `gate`: buffers, or -1.
  void combine(Bindings kernels, int x, int64_t columns, int routing, int out, const Epilogues& epilogues,
               int shared = -1, int gate = -1);
  // Adds the SHRINK in front of a linear of `panels` panels over the `k` columns of x, or with a `routing` in front of
  // a linear of experts with `panels` panels each; returns the slot for the linear's LORA step.
  int shrink(Bindings kernels, const std::string& name, int x, int64_t k, int64_t panels, int routing = -1);
  // Returns the slot for the LORA step of an epilogue op behind the embeddings. Call it before any shrink().
  int embedding_slot(int64_t vocabulary, int64_t panels);
  // Adds an op over rows alone. `columns`: of its operands, and of its result before the epilogues.
  void row_op(uint32_t number, Bindings kernels, int64_t columns, const RowOperands& given, int out,
              const Epilogues& epilogues);
  void epilogue(Bindings kernels, int x, int64_t columns, int out, const Epilogues& epilogues) {
    row_op(INFENG_OP_EPILOGUE, std::move(kernels), columns, {.rows = {{"x", x}}}, out, epilogues);
  }
  void rope(Bindings kernels, int x, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t k_column,
            const Constant& cos, const Constant& sin, int64_t table_rows, const RopeSpec& spec = {},
            const std::string& module = "");
  void kv_append(Bindings kernels, int x, std::shared_ptr<const KvCache> cache, int64_t layer, int64_t k_column,
                 int64_t v_column, int64_t table = 0);
  void attention(Bindings kernels, int x, std::shared_ptr<const KvCache> cache, int64_t layer, int out,
                 const AttentionSpec& spec, const Epilogues& epilogues);

  void finish();
  void run(const Batch& batch);
  // Stops all runs that are in flight or wait for the pool; they throw Error "cancelled".
  void cancel() { cancelled_.store(true, std::memory_order_relaxed); }

  // Starts measuring steps from zero and keeps the latest `events` of each worker; or stops and discards the profile.
  // Waits for a step in flight. `groups`: for each op, the first op of the group that shares its totals; the ops of a
  // group have equally many kernels. Empty: each op has totals of its own.
  void profile(bool on, int64_t events, std::vector<int> groups);
  // Calls `read` between two steps. Throws Error "not_profiled".
  template <class Read>
  void read_profile(Read read) const {
    between_steps([&] { read(measured()); });
  }

  // Calls `work` while no step runs, waiting for one in flight.
  template <class Work>
  void between_steps(Work work) const {
    const auto held = pool_->lock();
    work();
  }

  const Value& value(int id) const;         // throws Error "invalid_argument"
  const Routing& routing_of(int id) const;  // throws Error "invalid_argument"
  const Limits& limits() const { return limits_; }
  const Pages& pages() const { return pages_; }
  const DevicePtr& device() const { return device_; }
  // Experts that were computed on the device, and on the host, since the program was split.
  int64_t experts_chosen(bool on_device) const;
  const Lora& lora() const { return lora_; }
  bool is_finished() const { return finished_; }
  // False after a kernel wrote beyond the memory that its workspace asked for.
  bool scratch_is_intact() const;
  int64_t scratch_bytes() const { return memory_.taken() + (device_ == nullptr ? 0 : values_memory_.taken()); }

  // Returns the host's view of `count` elements of a value: the value itself or, of a device, a copy. The copy is
  // written to the device before each step and read after it, unless it is `fetched`: then fetch() alone reads it.
  template <class T>
  T* seen(T* array, int64_t count, bool fetched = false) {
    return static_cast<T*>(shadow(array, nullptr, count * static_cast<int64_t>(sizeof(T)), fetched));
  }
  // Reads the first `rows` rows of a buffer into the host's view of it, after a step.
  void fetch(int id, int64_t rows);
  // Lets the host see a routing after each step, and before it.
  void show_routing(int id);
  int64_t op_count() const { return static_cast<int64_t>(ops_.size()); }
  const Op& op(int64_t index) const { return *ops_[static_cast<size_t>(index)]; }

 protected:
  // A copy of a constant, for kernels; it lives as long as the program and counts in scratch_bytes().
  const float* copy_constant(const float* values, int64_t count, bool on_host);

 private:
  friend class Step;
  class InFlight;

  struct Failure {
    const Op* op = nullptr;
    infeng_status status = INFENG_OK;
    const Library* library = nullptr;  // whose thread_enter failed; NULL: a kernel failed
    char message[sizeof(Seat::message)] = {};
  };

  int add_value(int64_t columns, bool samples, bool quantized, int64_t copies, bool on_host);
  const Value& operand(int id, const char* what, bool quantized, int64_t columns, bool samples,
                       int64_t copies = 1) const;
  std::unique_ptr<Op> draft(uint32_t kind, Bindings kernels, bool samples);
  void add_lora(Op& op, int slot, int64_t columns);
  int64_t add_epilogues(Op& op, const Epilogues& epilogues, int64_t columns);
  infeng_tensor result(int out, int64_t columns, const Op& op) const;
  const float* take_vector(const Constant& constant, int64_t size, const char* what);
  // Sets the op's cache and problem; returns the segments with this table.
  const infeng_kv_segment* use_cache(Op& op, std::shared_ptr<const KvCache> cache, int64_t layer, int64_t table);
  void keep(const Constant& constant) { owners_.push_back(constant.owner); }
  void bind_kernels(Op& op, infeng_workspace& most);
  void* take_scratch(int64_t nbytes, int64_t align);
  void* shadow(void* array, void* host, int64_t nbytes, bool fetched);
  void begin_on_device();
  void end_on_device(bool failed);
  void read_routing(const Routing& routing);
  void join_mixture(Op& op);
  void reserve_experts();
  void copy_rows(const HandOver& rows);

  void take(const Batch& batch);
  void take_segments(const Batch& batch);
  void take_table(const Batch& batch, int64_t segment, int64_t table, int64_t first, int32_t* blocks);
  void patch();
  void patch_lora();
  bool next_slice(Op& op);
  bool next_share(Op& op);
  void join_slices(Op& op);
  void use_module(Op& op, const std::string& name);
  const Value& u_of(const Op& op);
  const Profile& measured() const;
  [[noreturn]] void throw_failure(const Failure& failure) const;

  std::shared_ptr<Pool> pool_;
  Limits limits_;
  const Pages pages_;
  const DevicePtr device_;
  Bump memory_;
  Bump device_memory_;   // of values and constants on a device
  Bump& values_memory_;  // one of these two
  BatchArrays arrays_;   // the batch of the step
  std::vector<Value> values_;
  std::vector<std::unique_ptr<Routing>> routings_;  // ops point at them
  std::optional<SplitSpec> split_;
  std::vector<std::unique_ptr<Mixture>> mixtures_;  // of the layers, if the program is split; ops point at them
  std::vector<HandOver> upcoming_;                  // of the next op
  bool drafts_on_host_ = false;                     // whether the op that is being added runs there
  ExpertCalls expert_calls_;                        // of the op that runs
  std::vector<std::unique_ptr<Op>> ops_;            // args point at each other, so ops do not move
  std::vector<std::shared_ptr<const void>> owners_;
  std::vector<const Library*> libraries_;  // libraries with per-thread state
  bool finished_ = false;

  // The smallest bounds of all ops.
  int64_t vocabulary_ = INT32_MAX;
  int64_t positions_limit_ = INT32_MAX;
  int64_t blocks_limit_ = 0;
  bool has_cache_ = false;
  // The positions that the attention ops of one table see.
  struct Sight {
    int64_t widest_window = 0;  // positions before it need no blocks
    bool sees_all = false;      // an op has no window
  };
  std::vector<Sight> sights_;  // (tables)

  // The batch of the step, copied so that the caller cannot change it while workers read it.
  int32_t* tokens_ = nullptr;
  int32_t* positions_ = nullptr;
  int32_t* sample_rows_ = nullptr;
  int32_t* tables_ = nullptr;  // (tables, segments, table_stride_), all in use one behind the other
  int64_t table_stride_ = 0;
  int64_t tables_used_ = 0;                // integers of tables_
  infeng_kv_segment* segments_ = nullptr;  // (tables, segments)
  uint32_t* block_step_ = nullptr;         // (blocks) the last step that wrote to each block
  uint32_t step_ = 0;
  int64_t rows_ = 0;
  int64_t samples_ = 0;
  int64_t segment_count_ = 0;
  int32_t is_demanded_ = 0;  // whether ops on demand run

  Lora lora_;
  int u_ = -1;                       // buffer (rows, columns) that SHRINK writes and LORA reads
  int sample_u_ = -1;                // the same memory for sampled rows
  std::map<int64_t, int> copies_u_;  // copies of each row -> their u
  Branch branch_ = Branch::always;
  Op* route_for_adapters_ = nullptr;  // a ROUTE that waits for its SHRINK
  int32_t* slice_index_ = nullptr;    // (rows) ids or row indices of one slice
  std::vector<float> embedded_u_;     // u of the embeddings, on its way to a device

  Seat* seats_ = nullptr;            // (threads)
  std::vector<const char*> guards_;  // the guard line behind each piece of scratch memory
  Shares shares_;                    // of the phase that runs
  std::vector<Shadow> shadows_;
  std::unique_ptr<Profile> profile_;
  std::atomic<bool> cancelled_{false};
  std::atomic<int> in_flight_{0};
};

}  // namespace infeng
