#include "tests/torture/failing.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What the functions are called that do the work: libc's, or a sanitizer's. REAL is their prefix. */
#define JOIN(prefix, name) prefix##name
#define NAME(prefix, name) JOIN(prefix, name)
#define real_malloc NAME(REAL, malloc)
#define real_calloc NAME(REAL, calloc)
#define real_realloc NAME(REAL, realloc)
#define real_memalign NAME(REAL, memalign)
#define real_free NAME(REAL, free)

void *real_malloc(size_t size);
void *real_calloc(size_t n, size_t size);
void *real_realloc(void *p, size_t size);
void *real_memalign(size_t align, size_t size);
void real_free(void *p);

static failing own;
failing *failing_control = &own;

/* The call stacks that failed, as hashes: a table with open addressing that is never full. */
#define N_STACKS ((size_t)1 << 16)
#define STACK_DEPTH 32
static _Atomic uint64_t stacks[N_STACKS];
/* A run repeats what the one before did up to the allocation that failed: so many are not new. */
static _Atomic uint64_t n_repeated;

__attribute__((constructor)) static void share_control(void)
{
    void *frames[1];
    backtrace(frames, 1); /* its first call allocates */
    const char *path = getenv("ATTND_FAILING");
    int fd = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    void *shared = mmap(NULL, sizeof own, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (shared == MAP_FAILED)
        abort();
    failing_control = shared;
    failing_control->n_live += own.n_live;
}

/* Whether the caller's stack is a new one. */
static bool is_new_stack(void)
{
    void *frames[STACK_DEPTH];
    int n = backtrace(frames, STACK_DEPTH);
    uint64_t hash = 1;
    for (int i = 0; i < n; i++)
        hash = (hash ^ (uintptr_t)frames[i]) * 0x9E3779B97F4A7C15u, hash ^= hash >> 29;
    for (size_t i = hash % N_STACKS;; i = (i + 1) % N_STACKS) {
        uint64_t seen = 0;
        if (atomic_compare_exchange_strong(&stacks[i], &seen, hash))
            return true;
        if (seen == hash)
            return false;
    }
}

/* A sanitizer asks libc for each new thread's stack and does not live without an answer, which comes
 * from these functions and one without a name. */
static bool is_sanitizers(const void *caller)
{
    Dl_info info;
    return dladdr(caller, &info) != 0 && strstr(info.dli_fname, "/libc.so") != NULL &&
           (info.dli_sname == NULL || strncmp(info.dli_sname, "pthread_", 8) == 0);
}

/* Whether the allocation that `caller` asks for is to fail. */
static bool fails(const void *caller)
{
    failing *f = failing_control;
    bool failed;
    if ((f->fail_at == 0 && f->fail_new == 0) || is_sanitizers(caller))
        return false;
    uint64_t n = ++f->n_tried, at = f->fail_at;
    if (f->n_failed > 0)
        failed = f->fail_all != 0;
    else
        failed = f->fail_new ? n > n_repeated && is_new_stack() : n == at;
    if (failed && f->n_failed++ == 0)
        n_repeated = n;
    return failed;
}

void failing_forget_stacks(void)
{
    for (size_t i = 0; i < N_STACKS; i++)
        stacks[i] = 0;
    n_repeated = 0;
}

/* A block that was asked for; errno says what NULL means. */
static void *count(void *p)
{
    failing_control->n_live += p != NULL;
    return p;
}

static void *refuse(void)
{
    errno = ENOMEM;
    return NULL;
}

/* LeakSanitizer knows what the dynamic linker keeps by its callers, which is this file now. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:dl_open_worker\nleak:_dl_*\n";
}

void *malloc(size_t size)
{
    return fails(__builtin_return_address(0)) ? refuse() : count(real_malloc(size));
}

void *calloc(size_t n, size_t size)
{
    return fails(__builtin_return_address(0)) ? refuse() : count(real_calloc(n, size));
}

void *realloc(void *p, size_t size)
{
    if (fails(__builtin_return_address(0)))
        return refuse();
    void *moved = real_realloc(p, size);
    failing_control->n_live += (p == NULL && moved != NULL) - (p != NULL && size == 0);
    return moved;
}

void *reallocarray(void *p, size_t n, size_t size)
{
    size_t bytes;
    return __builtin_mul_overflow(n, size, &bytes) ? refuse() : realloc(p, bytes);
}

void *memalign(size_t align, size_t size)
{
    return fails(__builtin_return_address(0)) ? refuse() : count(real_memalign(align, size));
}

void *aligned_alloc(size_t align, size_t size)
{
    return memalign(align, size);
}

int posix_memalign(void **out, size_t align, size_t size)
{
    void *p = memalign(align, size);
    if (p == NULL)
        return ENOMEM;
    *out = p;
    return 0;
}

void free(void *p)
{
    failing_control->n_live -= p != NULL;
    real_free(p);
}

/* The sanitizers' own would not pass through here. */
char *strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = malloc(bytes);
    return copy == NULL ? NULL : memcpy(copy, text, bytes);
}

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    if (fails(__builtin_return_address(0))) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    long p = syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
    failing_control->n_live += p != -1;
    return (void *)p;
}

int munmap(void *p, size_t bytes)
{
    failing_control->n_live--;
    return (int)syscall(SYS_munmap, p, bytes);
}
