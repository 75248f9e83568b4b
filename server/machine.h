/* What this machine lets the process use: CPUs and memory, cgroup limits (v1 and v2) included.
 *
 * `root` is "" or, in tests, a folder that stands in for the file system's root. */
#ifndef SRV_MACHINE_H
#define SRV_MACHINE_H

#include <stdint.h>

/* CPUs the process may run on at once: its affinity mask, and the cgroup's quota rounded up. At
 * least 1. */
uint64_t srv_machine_cpus(const char *root);

/* Bytes of memory the process may use: the machine's, or the tightest cgroup limit above it. */
uint64_t srv_machine_memory_bytes(const char *root);

#endif
