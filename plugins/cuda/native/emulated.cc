// The emulated device: kernels run at once, block by block, their threads as fibers (kernels/fibers.h).
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../kernels/fibers.h"
#include "device.h"
#include "device_abi.h"

namespace infeng_cuda {

thread_local Index threadIdx_, blockIdx_, blockDim_, gridDim_;

namespace emulated {
namespace {

using Body = void (*)(const void*);

std::map<std::string, Body>& registry() {
  static std::map<std::string, Body> all;
  return all;
}

// Saves the registers that a call keeps on the stack of `from` and goes on with the stack `to`.
extern "C" void infeng_cuda_switch(void** from, void* to);
#if defined(__x86_64__)
asm(R"(
.text
.type infeng_cuda_switch,@function
infeng_cuda_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size infeng_cuda_switch, .-infeng_cuda_switch
)");
constexpr size_t kSaved = 6;  // registers on a stack that sleeps
#else
#error "the emulated device switches stacks on x86-64 only"
#endif

constexpr size_t kStack = 64 << 10;
constexpr size_t kMostShared = 232448;

struct Fiber {
  void* stack = nullptr;  // of a fiber that sleeps
  bool done = true;
  Wait wait = Wait::none;
};

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "emulated GPU: %s\n", what);
  std::abort();
}

// One block: its fibers, and the bytes that lanes show each other.
class Block {
 public:
  void run(unsigned threads, Body body, const void* params, uint32_t seed) {
    body_ = body;
    params_ = params;
    if (fibers_.size() < threads) {
      fibers_.resize(threads);
      stacks_.resize(threads);
      for (auto& stack : stacks_) {
        if (!stack) stack = std::make_unique<unsigned char[]>(kStack);
      }
      shown_.resize((threads + 31) / 32 * 32 * 64);
    }
    for (unsigned t = 0; t < threads; ++t) start(t);
    while (round(threads, seed = seed * 1664525u + 1013904223u)) {
    }
  }

  void pause(Wait why) {
    Fiber& fiber = fibers_[now_];
    fiber.wait = why;
    infeng_cuda_switch(&fiber.stack, home_);
  }

  unsigned lane() const { return now_ & 31u; }
  void* exchange(unsigned lane) { return &shown_[(now_ / 32 * 32 + lane) * 64]; }
  void* shared() { return shared_; }

 private:
  void start(unsigned t) {
    Fiber& fiber = fibers_[t];
    fiber.done = false;
    fiber.wait = Wait::none;
    auto* top = reinterpret_cast<void**>(stacks_[t].get() + kStack);
    *--top = nullptr;  // a call leaves the stack 8 bytes off a multiple of 16
    *--top = reinterpret_cast<void*>(&Block::begin);
    for (size_t i = 0; i < kSaved; ++i) *--top = nullptr;
    fiber.stack = top;
  }

  static void begin();

  // Runs every fiber that can run; false once all are done.
  bool round(unsigned threads, uint32_t seed) {
    const unsigned shift = (seed >> 8) % threads;
    for (unsigned i = 0; i < threads; ++i) {
      const unsigned t = (i * 31u + shift) % threads;  // any order, if `threads` is no multiple of 31
      Fiber& fiber = fibers_[t];
      if (fiber.done || fiber.wait != Wait::none) continue;
      now_ = t;
      const unsigned plane = blockDim_.x * blockDim_.y;
      threadIdx_ = {t % blockDim_.x, t % plane / blockDim_.x, t / plane};
      infeng_cuda_switch(&home_, fiber.stack);
    }
    const bool woke = wake_warps(threads);
    unsigned live = 0, at_barrier = 0;
    bool can_run = false;
    for (unsigned t = 0; t < threads; ++t) {
      const Fiber& fiber = fibers_[t];
      live += fiber.done ? 0 : 1;
      at_barrier += !fiber.done && fiber.wait == Wait::block ? 1 : 0;
      can_run = can_run || (!fiber.done && fiber.wait == Wait::none);
    }
    if (live == 0) return false;
    if (woke || can_run) return true;
    if (at_barrier != live) die("divergence: part of a warp or block waits for ever");
    if (live != threads) die("a barrier that some threads of the block do not reach");
    for (unsigned t = 0; t < threads; ++t) fibers_[t].wait = Wait::none;
    return true;
  }

  bool wake_warps(unsigned threads) {
    bool woke = false;
    for (unsigned first = 0; first < threads; first += 32) {
      const unsigned last = first + 32 < threads ? first + 32 : threads;
      unsigned live = 0, waiting = 0;
      for (unsigned t = first; t < last; ++t) {
        live += fibers_[t].done ? 0 : 1;
        waiting += !fibers_[t].done && fibers_[t].wait == Wait::warp ? 1 : 0;
      }
      if (waiting == 0 || waiting != live) continue;
      if (live != last - first) die("a shuffle that some lanes of the warp do not reach");
      for (unsigned t = first; t < last; ++t) fibers_[t].wait = Wait::none;
      woke = true;
    }
    return woke;
  }

  std::vector<Fiber> fibers_;
  std::vector<std::unique_ptr<unsigned char[]>> stacks_;
  std::vector<unsigned char> shown_;
  void* home_ = nullptr;
  unsigned now_ = 0;
  Body body_ = nullptr;
  const void* params_ = nullptr;
  alignas(128) unsigned char shared_[kMostShared];
};

thread_local std::unique_ptr<Block> block;

void Block::begin() {
  Block& own = *block;
  own.body_(own.params_);
  own.fibers_[own.now_].done = true;
  own.pause(Wait::none);
}

}  // namespace

Registered::Registered(const char* name, void (*entry)(const void*)) { registry()[name] = entry; }
void* dynamic_shared() { return block->shared(); }
void pause(Wait why) { block->pause(why); }
unsigned lane() { return block->lane(); }
void* exchange(unsigned lane_number) { return block->exchange(lane_number); }

namespace {

// Memory of the device. Kernels alone can use it: the host's own accesses end the process, as they would on a machine
// with a GPU.
struct Piece {
  void* base;
  size_t bytes;  // whole pages
};
std::map<void*, Piece>& pieces() {
  static auto& all = *new std::map<void*, Piece>;
  return all;
}
std::recursive_mutex& pieces_mutex() {
  static auto& mutex = *new std::recursive_mutex;
  return mutex;
}
constexpr int64_t kTotal = int64_t{8} << 30;
constexpr size_t kAlignment = 256, kPage = 4096;

void protect(int how) {
  for (const auto& [memory, piece] : pieces()) mprotect(piece.base, piece.bytes, how);
}

// Lets the running thread use the device's memory.
class Access {
 public:
  Access() : lock_(pieces_mutex()) {
    if (depth_++ == 0) protect(PROT_READ | PROT_WRITE);
  }
  ~Access() {
    if (--depth_ == 0) protect(PROT_NONE);
  }
  static bool is_open() { return depth_ > 0; }
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;

 private:
  const std::lock_guard<std::recursive_mutex> lock_;
  static inline int depth_ = 0;
};

infeng_status describe(char* text, int32_t size) {
  std::snprintf(text, static_cast<size_t>(size), "emulated GPU");
  return INFENG_OK;
}

infeng_status allocate(int64_t bytes, void** out, infeng_worker* worker) {
  const std::lock_guard lock(pieces_mutex());
  // The piece ends at a page that nobody may touch, so that a kernel that reads behind it ends the process.
  const size_t size = (static_cast<size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
  const size_t pages = (size + kPage - 1) / kPage * kPage;
  void* const base = mmap(nullptr, pages + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return fail(worker, INFENG_OUT_OF_RANGE, "no memory");
  if (Access::is_open()) mprotect(base, pages, PROT_READ | PROT_WRITE);
  *out = static_cast<char*>(base) + pages - size;
  pieces()[*out] = {base, pages};
  return INFENG_OK;
}

void release(void* memory) {
  const std::lock_guard lock(pieces_mutex());
  const auto found = pieces().find(memory);
  if (found == pieces().end()) return;
  munmap(found->second.base, found->second.bytes + kPage);
  pieces().erase(found);
}

infeng_status copy(void* to, const void* from, int64_t bytes, int32_t direction, infeng_worker* worker) {
  if (direction < INFENG_COPY_TO_DEVICE || direction > INFENG_COPY_ON_DEVICE) {
    return fail(worker, INFENG_INVALID_ARGUMENT, "a copy of unknown direction");
  }
  const Access access;
  std::memcpy(to, from, static_cast<size_t>(bytes));
  return INFENG_OK;
}

infeng_status wait(infeng_worker*) { return INFENG_OK; }

infeng_status memory(int64_t* free_bytes, int64_t* total_bytes) {
  const std::lock_guard lock(pieces_mutex());
  *total_bytes = *free_bytes = kTotal;
  for (const auto& [memory, piece] : pieces()) *free_bytes -= static_cast<int64_t>(piece.bytes);
  return INFENG_OK;
}

}  // namespace
}  // namespace emulated

const infeng_device kDevice = {{sizeof(infeng_device), INFENG_EXTENSION_DEVICE, nullptr},
                               emulated::describe,
                               emulated::allocate,
                               emulated::release,
                               emulated::copy,
                               emulated::wait,
                               emulated::memory};
const char* const kLibrary = "cuda-emulated";

infeng_status launch_bytes(Entry& entry, const Grid& grid, unsigned threads, int64_t shared, const void* params,
                           int64_t bytes, infeng_worker* worker) {
  static_cast<void>(bytes);
  if (entry.found == nullptr) {
    const auto found = emulated::registry().find(entry.name);
    if (found == emulated::registry().end()) return fail(worker, INFENG_INTERNAL, entry.name);
    entry.found = reinterpret_cast<void*>(found->second);
  }
  const bool fits = grid.x <= INT32_MAX && grid.y <= 65535 && grid.z <= 65535 && threads >= 1 && threads <= 1024;
  if (!fits || shared > int64_t{emulated::kMostShared})
    return fail(worker, INFENG_INTERNAL, "a launch that no GPU takes");
  const emulated::Access access;
  if (!emulated::block) emulated::block = std::make_unique<emulated::Block>();
  static thread_local uint32_t launches = 0;
  uint32_t seed = ++launches * 2654435761u;
  gridDim_ = {static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y), static_cast<unsigned>(grid.z)};
  blockDim_ = {threads, 1, 1};
  for (unsigned z = 0; z < gridDim_.z; ++z) {
    for (unsigned y = 0; y < gridDim_.y; ++y) {
      for (unsigned x = 0; x < gridDim_.x; ++x) {
        blockIdx_ = {x, y, z};
        emulated::block->run(threads, reinterpret_cast<emulated::Body>(entry.found), params, seed++);
      }
    }
  }
  return INFENG_OK;
}

int64_t room(int64_t bytes) { return bytes; }  // exactly, so that a kernel that reads behind a piece ends the process

int64_t multiprocessors() { return 4; }

}  // namespace infeng_cuda
