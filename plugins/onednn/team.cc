// SPDX-License-Identifier: Apache-2.0
#include "team.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>

#include "vendor.h"

namespace infeng::onednn {
namespace {

struct Task {
  int threads;
  void (*run)(void*);
  void* context;
};

class Team {
 public:
  bool run(const Task& task) {
    const std::lock_guard turn(turn_);
    std::unique_lock lock(mutex_);
    if (!is_started() && !start()) return false;
    task_ = &task;
    changed_.notify_all();
    changed_.wait(lock, [this] { return task_ == nullptr; });
    return true;
  }

 private:
  // A child process of fork has no thread of ours.
  bool is_started() const { return process_ == getpid(); }

  bool start() {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are the host's
    pthread_t thread;
    const int error = pthread_create(&thread, nullptr, &Team::loop, this);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (error != 0) return false;
    pthread_detach(thread);
    process_ = getpid();
    return true;
  }

  static void* loop(void* team) {
    // The main thread may run wherever the process may; the worker that started us is pinned.
    cpu_set_t everywhere;
    if (sched_getaffinity(getpid(), sizeof everywhere, &everywhere) == 0)
      sched_setaffinity(0, sizeof everywhere, &everywhere);
    static_cast<Team*>(team)->serve();
    return nullptr;
  }

  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return task_ != nullptr; });
      const Task& task = *task_;
      lock.unlock();
      vendor()->set_threads(task.threads);
      task.run(task.context);
      lock.lock();
      task_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex turn_;  // held while a caller's task runs
  std::mutex mutex_;
  std::condition_variable changed_;
  const Task* task_ = nullptr;
  pid_t process_ = 0;
};

struct Part {
  void (*run)(void*, int);
  void* context;
};

void run_part(void* data) {
  const auto& part = *static_cast<const Part*>(data);
  part.run(part.context, vendor()->thread());
}

}  // namespace

bool run_in_team(int threads, void (*task)(void*), void* context) {
  static Team* const team = new Team;  // never deleted: its thread may outlive static objects
  return team->run({threads, task, context});
}

void on_every_thread(int threads, void (*part)(void*, int), void* context) {
  Part data = {part, context};
  vendor()->parallel(&run_part, &data, unsigned(threads), 0);
}

}  // namespace infeng::onednn
