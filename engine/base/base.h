/* base.h: what every engine file needs: errors, assertions, memory, time, locks. */
#ifndef ATTN_BASE_H
#define ATTN_BASE_H

#include "engine/engine.h"

#include <pthread.h>

/* Assertions guard our own bugs and stay on in release builds; the world's faults are errors. */
#define ATTN_ASSERT(condition) \
    ((condition) ? (void)0 : attn_assert_failed(#condition, __FILE__, __LINE__))
_Noreturn void attn_assert_failed(const char *condition, const char *file, int line);

/* Fills *err (NULL allowed) and returns `status`, so that `return attn_fail(...)` reads well.
 * `param` is a static string or NULL. */
attn_status attn_fail(attn_error *err, attn_status status, const char *param, const char *format,
                      ...) __attribute__((format(printf, 4, 5)));
/* Adds one number to an error made by attn_fail. `name` is a static string. */
void attn_error_detail(attn_error *err, const char *name, uint64_t value);

/* Copies what of a foreign text can stand in a one-line message: printable ASCII, cut to `size`. */
void attn_printable(const char *text, char *out, size_t size);

/* a * b, or false when it does not fit. */
static inline bool attn_mul(size_t a, size_t b, size_t *product)
{
    return !__builtin_mul_overflow(a, b, product);
}

/* Zeroed memory for n objects of `size` bytes on a 64-byte boundary; NULL when n * size overflows
 * or the system refuses. n or size 0 gives a unique pointer. Owner: the caller, attn_free. */
void *attn_alloc(size_t n, size_t size);
void attn_free(void *p);

/* Zeroed, page-aligned memory straight from the system, not touched yet. `huge` asks for huge
 * pages. NULL when refused. Owner: the caller, attn_unmap with the same size. */
void *attn_map(size_t bytes, bool huge);
void attn_unmap(void *p, size_t bytes);

uint64_t attn_now_ns(void); /* monotonic */
int64_t attn_unix_s(void);

/* A mutex under the engine's one lock rule: no thread ever holds two of these at once, so no order
 * among them exists to get wrong. Lock asserts it. */
typedef struct attn_mutex {
    pthread_mutex_t mutex;
} attn_mutex;

void attn_mutex_init(attn_mutex *m);
void attn_mutex_destroy(attn_mutex *m);
void attn_mutex_lock(attn_mutex *m);
void attn_mutex_unlock(attn_mutex *m);

/* A condition variable on the monotonic clock. */
typedef struct attn_cond {
    pthread_cond_t cond;
} attn_cond;

void attn_cond_init(attn_cond *c);
void attn_cond_destroy(attn_cond *c);
void attn_cond_broadcast(attn_cond *c);
void attn_cond_wait(attn_cond *c, attn_mutex *m);
/* Waits until `deadline_ns` (attn_now_ns clock; UINT64_MAX = for ever) at the latest. */
void attn_cond_wait_until(attn_cond *c, attn_mutex *m, uint64_t deadline_ns);

#endif
