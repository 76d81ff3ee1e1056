#include "program/pool.h"

#include <infeng/extension/error.h>

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include "machine/cpu.h"
#include "machine/fpstate.h"
#include "program/futex.h"

namespace infeng {
namespace {

constexpr uint32_t kEveryone = 1;
constexpr uint32_t kAlone = 2;
constexpr uint32_t kStop = 4;
constexpr uint32_t kLent = 8;
constexpr uint32_t kFlags = 15;
constexpr uint32_t kStep = 16;
constexpr int kMostThreads = 1024;

void set_name([[maybe_unused]] pthread_t thread, int worker) {
  char name[16];
  std::snprintf(name, sizeof name, "infeng-%d", worker);
#if defined(__linux__)
  pthread_setname_np(thread, name);
#elif defined(__APPLE__)
  pthread_setname_np(name);  // names the calling thread only
#endif
}

#if defined(__linux__)
void pin_to(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) {
    if (cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  }
  if (CPU_COUNT(&set) == 0) return;
  (void)sched_setaffinity(0, sizeof set, &set);  // fails if the process lost these CPUs; the thread then stays
}

// Lets other threads of equal niceness go first. The niceness of a thread is its own on Linux.
void step_back(int steps) {
  if (steps > 0) (void)setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + steps);
}
#endif

// Pins the calling thread during a run and restores its mask afterwards, because the thread belongs to the caller.
class PinGuard {
 public:
  // Does nothing if `cpus` is empty.
  explicit PinGuard(const std::vector<int>& cpus) {
#if defined(__linux__)
    pinned_ = !cpus.empty() && sched_getaffinity(0, sizeof saved_, &saved_) == 0;
    if (pinned_) pin_to(cpus);
#else
    (void)cpus;
#endif
  }
  ~PinGuard() {
#if defined(__linux__)
    if (pinned_) (void)sched_setaffinity(0, sizeof saved_, &saved_);
#endif
  }
  PinGuard(const PinGuard&) = delete;
  PinGuard& operator=(const PinGuard&) = delete;

 private:
#if defined(__linux__)
  bool pinned_ = false;
  cpu_set_t saved_;
#endif
};

}  // namespace

Pool::Pool(int threads, bool pin, int spin_us, std::vector<int> cpus, int nice)
    : threads_(threads), spin_us_(spin_us), nice_(nice), owner_(static_cast<long>(getpid())) {
  if (threads < 1 || threads > kMostThreads) {
    fail(kBad, "a pool has 1 to ", kMostThreads, " threads, not ", threads);
  }
  if (nice < 0 || nice > 19) fail(kBad, "nice is 0 to 19, not ", nice);
  if (spin_us < 0 || spin_us > 1000000) fail(kBad, "spin_us is 0 to 1000000, not ", spin_us);
  for (const int cpu : cpus) {
    if (cpu < 0) fail(kBad, "there is no CPU ", cpu);
  }
  const bool free = cpus.empty();
  if (free) cpus = allowed_cpus();
  for (int i = 0; i < threads; ++i) {
    const int own = cpus[static_cast<size_t>(i) % cpus.size()];
    cpus_.push_back(own);
    masks_.push_back(pin ? std::vector<int>{own} : free ? std::vector<int>{} : cpus);
  }
  // A spinning thread would keep the one it waits for from running.
  if (static_cast<size_t>(threads) > cpus.size()) spin_us_ = 0;
  if (!pin && !free) cpus_ = std::move(cpus);
  start_threads();
}

Pool::~Pool() { stop_threads(); }

void Pool::start_threads() {
  workers_.resize(static_cast<size_t>(threads_ - 1));
  // Signals belong to the threads of Python.
  sigset_t all;
  sigset_t saved;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &saved);
  int error = 0;
  size_t started = 0;
  for (; started < workers_.size() && error == 0; started += error == 0 ? 1 : 0) {
    Thread& thread = workers_[started];
    thread = {this, static_cast<int>(started) + 1, {}};
    error = pthread_create(&thread.handle, nullptr, &Pool::start, &thread);
#if defined(__linux__)
    if (error == 0) set_name(thread.handle, thread.worker);
#endif
  }
  pthread_sigmask(SIG_SETMASK, &saved, nullptr);
  if (error != 0) {
    workers_.resize(started);
    stop_threads();
    fail("out_of_threads", "cannot start worker ", started + 1, " of ", threads_, ": ", std::strerror(error),
         "; ask for fewer threads");
  }
}

void Pool::stop_threads() {
  // A forked child has no such threads, and their handles must not be touched there.
  if (static_cast<long>(getpid()) != owner_) return;
  publish(kStop);
  for (Thread& thread : workers_) pthread_join(thread.handle, nullptr);
}

void* Pool::start(void* thread) {
  const auto* self = static_cast<Thread*>(thread);
#if defined(__APPLE__)
  set_name(pthread_self(), self->worker);
#elif defined(__linux__)
  pin_to(self->pool->masks_[static_cast<size_t>(self->worker)]);
  step_back(self->pool->nice_);
#endif
  self->pool->loop(self->worker);
  return nullptr;
}

void Pool::loop(int worker) {
  for (uint32_t seen = 0;;) {
    seen = wait(seen);
    if (seen & kStop) return;
    if (seen & kLent) {
      share_(context_, worker);
      if (lent_.fetch_sub(1, std::memory_order_acq_rel) == 1) futex_wake_all(lent_);
      continue;
    }
    if ((seen & kEveryone) == 0) continue;  // the job is over, or worker 0 works alone
    job_->work(worker);
    arrive(worker);
  }
}

uint32_t Pool::wait(uint32_t seen) {
  using Clock = std::chrono::steady_clock;
  uint32_t state = state_.load(std::memory_order_acquire);
  if (state != seen) return state;
  if (spin_us_ > 0 && (seen & kAlone) == 0) {
    const Clock::time_point until = Clock::now() + std::chrono::microseconds(spin_us_);
    do {
      for (int i = 0; i < 32; ++i) {
        relax();
        state = state_.load(std::memory_order_acquire);
        if (state != seen) return state;
      }
    } while (Clock::now() < until);
  }
  // If a publisher reads sleepers_ == 0, it has stored its state before, and the load below sees it (all are seq_cst).
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while ((state = state_.load(std::memory_order_seq_cst)) == seen) futex_wait(state_, seen);
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  return state;
}

void Pool::publish(uint32_t flags) {
  const uint32_t count = (state_.load(std::memory_order_relaxed) & ~kFlags) + kStep;
  state_.store(count | flags, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) futex_wake_all(state_);
}

// Called by one worker while all others wait. Returns false when the job is over.
bool Pool::next_phase(int worker) {
  switch (job_->advance(worker)) {
    case Job::Next::everyone:
      publish(kEveryone);
      return true;
    case Job::Next::alone:
      publish(kAlone);
      return true;
    case Job::Next::end:
      break;
  }
  // The other workers already wait for the next job; only the caller must learn that this one is over.
  if (worker != 0) publish(0);
  return false;
}

bool Pool::arrive(int worker) {
  // acq_rel: the last worker to arrive sees the work of all others and publishes it with the next state.
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < threads_) return true;
  arrived_.store(0, std::memory_order_relaxed);
  return next_phase(worker);
}

void Pool::check_process() const {
  if (static_cast<long>(getpid()) != owner_) {
    fail("forked", "this pool belongs to process ", owner_, " and a forked child has none of its threads: ",
         "start the child with the \"spawn\" method, or make the engine after the fork");
  }
}

Pool::Lock Pool::lock() {
  check_process();
  return Lock(mutex_);
}

Pool::Lock Pool::lock(const std::atomic<bool>& cancelled) {
  constexpr auto kGlance = std::chrono::milliseconds(2);
  check_process();
  Lock held(mutex_, std::try_to_lock);
  // The system clock, because GCC 12's thread sanitizer does not know a mutex's waits on the steady one. If it is set
  // back, a cancelled run stops later; the lock itself is not affected.
  while (!held.owns_lock() && !held.try_lock_until(std::chrono::system_clock::now() + kGlance)) {
    if (cancelled.load(std::memory_order_relaxed)) fail("cancelled", "the step was cancelled before it began");
  }
  return held;
}

void Pool::run(const Lock& held, Job& job) {
  if (!held.owns_lock() || held.mutex() != &mutex_) fail("internal", "a job ran without the pool's lock");
  const PinGuard pinned(masks_[0]);
  const FpGuard saved;  // jobs change the floating-point mode
  job_ = &job;
  if (threads_ == 1) {
    while (job.advance(0) != Job::Next::end) job.work(0);
    return;
  }
  // Workers wait until the first phase is published, so this thread may prepare it.
  uint32_t seen = state_.load(std::memory_order_relaxed);
  if (!next_phase(0)) return;
  for (;;) {
    seen = wait(seen);
    if ((seen & (kEveryone | kAlone)) == 0) return;
    job.work(0);
    const bool more = (seen & kAlone) ? next_phase(0) : arrive(0);
    if (!more) return;
  }
}

void Pool::lend(void (*share)(void*, int), void* context) {
  if (threads_ == 1) return share(context, 0);
  share_ = share;
  context_ = context;
  lent_.store(static_cast<uint32_t>(threads_ - 1), std::memory_order_relaxed);
  publish(kLent);
  share(context, 0);
  while (const uint32_t left = lent_.load(std::memory_order_acquire)) futex_wait(lent_, left);
}

}  // namespace infeng
