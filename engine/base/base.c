#include "engine/base/base.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static _Thread_local unsigned locks_held;

void attn_assert_failed(const char *condition, const char *file, int line)
{
    fprintf(stderr, "attnd: internal error: %s:%d: %s\n", file, line, condition);
    abort();
}

/* Names of files and tensors may hold anything; a message is one line that no terminal obeys. */
static void hide_controls(char *message)
{
    for (unsigned char *c = (unsigned char *)message; *c != '\0'; c++) {
        if (*c < ' ' || *c == 0x7f)
            *c = '?';
        else if (*c == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0) /* U+0080 to U+009F */
            c[0] = c[1] = '?';
    }
}

attn_status attn_fail(attn_error *err, attn_status status, const char *param, const char *format,
                      ...)
{
    if (err == NULL)
        return status;
    err->status = status;
    err->param = param;
    err->n_details = 0;
    va_list args;
    va_start(args, format);
    vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    hide_controls(err->message);
    return status;
}

void attn_error_detail(attn_error *err, const char *name, uint64_t value)
{
    if (err == NULL || err->n_details == ATTN_ERROR_DETAILS)
        return;
    err->details[err->n_details].name = name;
    err->details[err->n_details].value = value;
    err->n_details++;
}

void attn_printable(const char *text, char *out, size_t size)
{
    size_t n = 0;
    for (; text[n] != '\0' && n + 1 < size; n++)
        out[n] = text[n] > ' ' && text[n] <= '~' ? text[n] : '?';
    out[n] = '\0';
}

void *attn_alloc(size_t n, size_t size)
{
    size_t bytes;
    if (!attn_mul(n, size, &bytes) || bytes > SIZE_MAX - 64)
        return NULL;
    bytes = (bytes + 63) & ~(size_t)63;
    void *p = aligned_alloc(64, bytes ? bytes : 64);
    if (p != NULL)
        memset(p, 0, bytes ? bytes : 64);
    return p;
}

void attn_free(void *p)
{
    free(p);
}

void *attn_map(size_t bytes, bool huge)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    madvise(p, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    return p;
}

void attn_unmap(void *p, size_t bytes)
{
    if (p != NULL)
        munmap(p, bytes);
}

uint64_t attn_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int64_t attn_unix_s(void)
{
    return (int64_t)time(NULL);
}

void attn_mutex_init(attn_mutex *m)
{
    pthread_mutex_init(&m->mutex, NULL);
}

void attn_mutex_destroy(attn_mutex *m)
{
    pthread_mutex_destroy(&m->mutex);
}

void attn_mutex_lock(attn_mutex *m)
{
    ATTN_ASSERT(locks_held == 0);
    pthread_mutex_lock(&m->mutex);
    locks_held++;
}

void attn_mutex_unlock(attn_mutex *m)
{
    locks_held--;
    pthread_mutex_unlock(&m->mutex);
}

void attn_cond_init(attn_cond *c)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->cond, &attr);
    pthread_condattr_destroy(&attr);
}

void attn_cond_destroy(attn_cond *c)
{
    pthread_cond_destroy(&c->cond);
}

void attn_cond_broadcast(attn_cond *c)
{
    pthread_cond_broadcast(&c->cond);
}

void attn_cond_wait(attn_cond *c, attn_mutex *m)
{
    pthread_cond_wait(&c->cond, &m->mutex);
}

void attn_cond_wait_until(attn_cond *c, attn_mutex *m, uint64_t deadline_ns)
{
    if (deadline_ns == UINT64_MAX) {
        attn_cond_wait(c, m);
        return;
    }
    struct timespec t = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
                         .tv_nsec = (long)(deadline_ns % 1000000000u)};
    pthread_cond_timedwait(&c->cond, &m->mutex, &t);
}
