/* Preloaded into a Python process: counts every allocation of every thread. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>

static atomic_long count;
__attribute__((visibility("default"))) long allocations(void) { return atomic_load(&count); }

void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

#define COUNTED __attribute__((visibility("default")))
COUNTED void* malloc(size_t size) {
  atomic_fetch_add(&count, 1);
  return __libc_malloc(size);
}
COUNTED void* calloc(size_t items, size_t size) {
  atomic_fetch_add(&count, 1);
  return __libc_calloc(items, size);
}
COUNTED void* realloc(void* old, size_t size) {
  atomic_fetch_add(&count, 1);
  return __libc_realloc(old, size);
}
COUNTED void* memalign(size_t align, size_t size) {
  atomic_fetch_add(&count, 1);
  return __libc_memalign(align, size);
}
COUNTED void* aligned_alloc(size_t align, size_t size) { return memalign(align, size); }
COUNTED int posix_memalign(void** out, size_t align, size_t size) {
  *out = memalign(align, size);
  return *out == NULL ? 12 : 0;
}
