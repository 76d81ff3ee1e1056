// Worker threads that run a job phase by phase, with a barrier after every phase.
//
// The thread that calls `run` is worker 0. The last worker to reach a barrier prepares the next phase and then releases
// the others, so a barrier costs one atomic addition per worker and one store. Waiting workers spin for `spin_us`, then
// sleep in the operating system.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace infeng {

// The work that a pool runs. No member may throw.
class Job {
 public:
  enum class Next {
    everyone,  // call `work` on all workers
    alone,     // call `work` on worker 0 only while the others sleep
    end        // the job is over
  };
  virtual Next advance(int worker) = 0;  // one worker at a time, all others wait
  virtual void work(int worker) = 0;

 protected:
  ~Job() = default;
};

class Pool {
 public:
  // `cpus`: the CPUs on which workers run; {}: those of the caller. `pin`: worker i stays on cpus[i % size]; the
  // caller's own mask is restored after every run.
  Pool(int threads, bool pin, int spin_us, std::vector<int> cpus = {}, int nice = 0);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // One job at a time: take the lock, prepare the job, then run it. Throws Error "forked" in a child process, which has
  // no copies of the threads, and "cancelled" if `cancelled` becomes true while another job has the lock.
  using Lock = std::unique_lock<std::timed_mutex>;
  Lock lock();
  Lock lock(const std::atomic<bool>& cancelled);
  void run(const Lock& held, Job& job);
  // Called by a job that works alone: calls share(context, worker) on all workers and returns when all have returned.
  // `share` may not throw.
  void lend(void (*share)(void* context, int worker), void* context);

  int threads() const { return threads_; }
  // The CPU of each worker if they are pinned, else the CPUs that all of them share.
  const std::vector<int>& cpus() const { return cpus_; }

 private:
  struct Thread {
    Pool* pool;
    int worker;
    pthread_t handle;
  };

  static void* start(void* thread);
  void check_process() const;
  void loop(int worker);
  void start_threads();
  void stop_threads();
  uint32_t wait(uint32_t seen);
  void publish(uint32_t flags);
  bool next_phase(int worker);
  bool arrive(int worker);

  const int threads_;
  int spin_us_;
  const int nice_;  // how far workers stand behind the thread that made the pool
  std::vector<int> cpus_;
  std::vector<std::vector<int>> masks_;  // CPUs of each worker; {}: wherever the caller may run
  const long owner_;                     // process id
  std::timed_mutex mutex_;
  std::vector<Thread> workers_;

  // Written by the publishing worker, read by the others after they see the new state.
  Job* job_ = nullptr;
  void (*share_)(void*, int) = nullptr;
  void* context_ = nullptr;
  // The low bits say what to do, the rest counts publications. Both change in one store, so that a worker never takes
  // an old order for a new one.
  alignas(64) std::atomic<uint32_t> state_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  alignas(64) std::atomic<uint32_t> lent_{0};  // workers that have not returned from `share_`
};

}  // namespace infeng
