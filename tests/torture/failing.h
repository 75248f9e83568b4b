/* failing.h: makes chosen allocations of a process fail, and counts the blocks that it holds.
 *
 * failing.c defines malloc and its relatives, mmap and munmap, and strdup. Linked into a program it
 * stands before libc's, so what the libraries allocate passes through it too.
 *
 * Thread: all fields are atomic. Every thread's allocations count.
 */
#ifndef TESTS_TORTURE_FAILING_H
#define TESTS_TORTURE_FAILING_H

#include <stdatomic.h>
#include <stdint.h>

typedef struct failing {
    _Atomic uint64_t fail_at;  /* the allocation to fail, counted from 1; 0: none */
    _Atomic uint64_t fail_new; /* not 0: the first one whose call stack has not failed yet */
    _Atomic uint64_t fail_all; /* not 0: and all that follow it */
    _Atomic uint64_t n_tried;  /* allocations since it was set to 0 */
    _Atomic uint64_t n_failed; /* of these */
    _Atomic int64_t n_live;    /* blocks and mappings that were not freed */
} failing;

/* The process's own; or, if the environment variable ATTND_FAILING names a file of that size, shared
 * with whoever maps it. */
extern failing *failing_control;

/* From now on no call stack has failed. */
void failing_forget_stacks(void);

#endif
