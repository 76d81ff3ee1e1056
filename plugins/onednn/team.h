// The thread on which oneDNN is called. OpenMP keeps a team of helpers for every thread that calls it, and helpers
// inherit the processor to which their creator is pinned: called from the host's workers, there would be a team for
// each of them, all threads of it on one core. This thread is on no core of its own, and neither are its helpers. The
// host's worker sleeps while it works, so that nothing that oneDNN leaves in a thread's registers reaches the host.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace infeng::onednn {

// Runs task(context) on that thread with `threads` threads of OpenMP, and returns when it has ended. Calls from several
// threads take turns. False if the system has no more threads.
bool run_in_team(int threads, void (*task)(void*), void* context);

// Within a task: runs part(context, thread) on every thread of the team.
void on_every_thread(int threads, void (*part)(void*, int), void* context);

}  // namespace infeng::onednn
