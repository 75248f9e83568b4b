#include "server/machine.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_BYTES 4096

/* Reads a file's first line, without its newline. */
static bool read_line(const char *path, char *line, size_t size)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool ok = fgets(line, (int)size, file) != NULL;
    fclose(file);
    if (ok)
        line[strcspn(line, "\n")] = '\0';
    return ok;
}

/* Finds this process's group in a v1 controller's hierarchy, or ("") in the v2 one. */
static bool find_group(const char *root, const char *controller, char *group, size_t size)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool found = false;
    char line[PATH_BYTES];
    /* A line is id:controllers:path, the controllers separated by commas, none for v2. */
    while (!found && fgets(line, sizeof(line), file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *at = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!at)
            continue;
        *at = '\0';
        for (char *name = controllers + 1; !found && name;) {
            char *comma = strchr(name, ',');
            size_t length = comma ? (size_t)(comma - name) : strlen(name);
            found = length == strlen(controller) && memcmp(name, controller, length) == 0;
            name = comma ? comma + 1 : NULL;
        }
        if (found)
            snprintf(group, size, "%s", at + 1);
    }
    fclose(file);
    return found;
}

/* Calls `read` for the group's folder and every one above it: a limit anywhere binds. In a
 * container the group's own path is often not mounted, but the root of what is mounted always is
 * the tightest limit that can be seen. */
static uint64_t tightest(const char *root, const char *mount, char *group,
                         uint64_t (*read)(const char *folder), uint64_t least)
{
    for (;;) {
        char folder[2 * PATH_BYTES];
        snprintf(folder, sizeof(folder), "%s/sys/fs/cgroup%s%s", root, mount, group);
        uint64_t limit = read(folder);
        if (limit < least)
            least = limit;
        char *slash = strrchr(group, '/');
        if (!slash)
            return least;
        *slash = '\0';
    }
}

/* The number in folder/name, or UINT64_MAX when there is none: no such file, "max", "-1". */
static uint64_t read_number(const char *folder, const char *name)
{
    char path[3 * PATH_BYTES], line[64];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    if (!read_line(path, line, sizeof(line)) || line[0] < '0' || line[0] > '9')
        return UINT64_MAX;
    return strtoull(line, NULL, 10);
}

static uint64_t memory_v1(const char *folder)
{
    return read_number(folder, "memory.limit_in_bytes");
}

static uint64_t memory_v2(const char *folder)
{
    return read_number(folder, "memory.max");
}

static uint64_t cpus_of_quota(uint64_t quota, uint64_t period)
{
    if (quota == UINT64_MAX || quota == 0 || period == UINT64_MAX || period == 0)
        return UINT64_MAX;
    return quota / period + (quota % period != 0);
}

static uint64_t cpus_v1(const char *folder)
{
    return cpus_of_quota(read_number(folder, "cpu.cfs_quota_us"),
                         read_number(folder, "cpu.cfs_period_us"));
}

static uint64_t cpus_v2(const char *folder)
{
    char path[3 * PATH_BYTES], line[64];
    snprintf(path, sizeof(path), "%s/cpu.max", folder);
    if (!read_line(path, line, sizeof(line)) || line[0] < '0' || line[0] > '9')
        return UINT64_MAX;
    char *end;
    uint64_t quota = strtoull(line, &end, 10);
    return cpus_of_quota(quota, strtoull(end, NULL, 10));
}

uint64_t srv_machine_cpus(const char *root)
{
    cpu_set_t sets[8]; /* 8192 CPUs */
    uint64_t cpus = 1;
    if (sched_getaffinity(0, sizeof(sets), sets) == 0)
        cpus = (uint64_t)CPU_COUNT_S(sizeof(sets), sets);
    char group[PATH_BYTES];
    if (find_group(root, "cpu", group, sizeof(group)))
        cpus = tightest(root, "/cpu", group, cpus_v1, cpus);
    if (find_group(root, "", group, sizeof(group)))
        cpus = tightest(root, "", group, cpus_v2, cpus);
    return cpus ? cpus : 1;
}

uint64_t srv_machine_memory_bytes(const char *root)
{
    uint64_t bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    char group[PATH_BYTES];
    if (find_group(root, "memory", group, sizeof(group)))
        bytes = tightest(root, "/memory", group, memory_v1, bytes);
    if (find_group(root, "", group, sizeof(group)))
        bytes = tightest(root, "", group, memory_v2, bytes);
    return bytes;
}
