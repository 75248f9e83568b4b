#include "engine/cache/arena.h"

#include "engine/base/base.h"

#include <sys/mman.h>

#define SYSTEM_PAGE ((size_t)4096)
/* Small pages go back to the system in groups of about this size. */
#define GROUP_BYTES ((size_t)64 << 10)
/* Free memory of a class that stays resident, so that short sessions do not fault it in anew. */
#define WARM_BYTES ((uint64_t)4 << 20)

typedef enum group_state {
    GROUP_COLD, /* no page in use, no memory */
    GROUP_USED,
    GROUP_WARM, /* no page in use, memory still resident */
} group_state;

typedef struct group {
    uint32_t n_used;
    uint32_t state; /* group_state */
} group;

struct attn_page_class {
    attn_arena *arena;
    attn_page_class *next;
    size_t kv_bytes, inputs_bytes, page_bytes;
    uint32_t n_pages; /* address space */
    uint32_t pages_per_group;
    /* Guarded by arena->mutex. */
    uint32_t n_fresh; /* pages never taken are those from here on */
    uint32_t n_free;
    uint64_t n_allocated, warm_bytes;
    /* Mapped for n_pages, touched as used. */
    unsigned char *base;
    uint32_t *free_list;
    _Atomic uint32_t *references;
    _Atomic uint64_t n_shared; /* pages with more than one reference */
    group *groups;
};

struct attn_arena {
    attn_mutex mutex;
    uint64_t budget, allocated, reserved, other;
    attn_page_class *classes;
};

attn_arena *attn_arena_create(uint64_t budget_bytes, attn_error *err)
{
    attn_arena *arena = attn_alloc(1, sizeof *arena);
    if (arena == NULL) {
        attn_fail(err, ATTN_E_NO_MEMORY, NULL, "arena: out of memory");
        return NULL;
    }
    attn_mutex_init(&arena->mutex);
    arena->budget = budget_bytes;
    return arena;
}

static size_t class_groups(const attn_page_class *pages)
{
    return pages->n_pages / pages->pages_per_group + 1;
}

static void class_destroy(attn_page_class *pages)
{
    attn_unmap(pages->base, (size_t)pages->n_pages * pages->page_bytes);
    attn_unmap(pages->free_list, (size_t)pages->n_pages * sizeof *pages->free_list);
    attn_unmap(pages->references, (size_t)pages->n_pages * sizeof *pages->references);
    attn_unmap(pages->groups, class_groups(pages) * sizeof *pages->groups);
    attn_free(pages);
}

void attn_arena_destroy(attn_arena *arena)
{
    if (arena == NULL)
        return;
    while (arena->classes != NULL) {
        attn_page_class *pages = arena->classes;
        arena->classes = pages->next;
        class_destroy(pages);
    }
    attn_mutex_destroy(&arena->mutex);
    attn_free(arena);
}

attn_page_class *attn_arena_add_class(attn_arena *arena, size_t kv_bytes, size_t inputs_bytes,
                                      attn_error *err)
{
    attn_page_class *pages = attn_alloc(1, sizeof *pages);
    if (pages == NULL) {
        attn_fail(err, ATTN_E_NO_MEMORY, NULL, "arena: out of memory");
        return NULL;
    }
    pages->arena = arena;
    pages->kv_bytes = kv_bytes;
    pages->inputs_bytes = inputs_bytes;
    pages->page_bytes = kv_bytes + inputs_bytes;
    uint64_t n = arena->budget / pages->page_bytes;
    pages->n_pages = n >= UINT32_MAX ? UINT32_MAX - 1 : n == 0 ? 1 : (uint32_t)n;
    pages->pages_per_group =
        pages->page_bytes >= GROUP_BYTES ? 1 : (uint32_t)(GROUP_BYTES / pages->page_bytes);
    /* Huge pages: decode walks through far more memory than 4 KiB translations cover. Pages are
     * taken in order, so at most the last huge page of a class is partly used; giving memory back
     * splits them. */
    pages->base = attn_map((size_t)pages->n_pages * pages->page_bytes, true);
    pages->free_list = attn_map((size_t)pages->n_pages * sizeof *pages->free_list, false);
    pages->references = attn_map((size_t)pages->n_pages * sizeof *pages->references, false);
    pages->groups = attn_map(class_groups(pages) * sizeof *pages->groups, false);
    if (!pages->base || !pages->free_list || !pages->references || !pages->groups) {
        class_destroy(pages);
        attn_fail(err, ATTN_E_NO_MEMORY, NULL, "arena: no address space for the KV memory");
        return NULL;
    }
    pages->next = arena->classes;
    arena->classes = pages;
    return pages;
}

size_t attn_page_bytes(const attn_page_class *pages)
{
    return pages->page_bytes;
}

size_t attn_page_kv_bytes(const attn_page_class *pages)
{
    return pages->kv_bytes;
}

size_t attn_page_inputs_bytes(const attn_page_class *pages)
{
    return pages->inputs_bytes;
}

attn_status attn_arena_reserve(attn_arena *arena, uint64_t bytes, attn_error *err)
{
    attn_mutex_lock(&arena->mutex);
    uint64_t available = arena->budget - arena->allocated - arena->reserved;
    bool fits = bytes <= available;
    if (fits)
        arena->reserved += bytes;
    attn_mutex_unlock(&arena->mutex);
    if (fits)
        return ATTN_OK;
    attn_fail(err, ATTN_E_KV_BUDGET, NULL, "the KV memory budget has no room for this request");
    attn_error_detail(err, "needed", bytes);
    attn_error_detail(err, "available", available);
    return ATTN_E_KV_BUDGET;
}

void attn_arena_unreserve(attn_arena *arena, uint64_t bytes)
{
    attn_mutex_lock(&arena->mutex);
    ATTN_ASSERT(arena->reserved >= bytes);
    arena->reserved -= bytes;
    attn_mutex_unlock(&arena->mutex);
}

void attn_arena_charge(attn_arena *arena, uint64_t bytes)
{
    attn_mutex_lock(&arena->mutex);
    ATTN_ASSERT(arena->reserved >= bytes);
    arena->reserved -= bytes;
    arena->allocated += bytes;
    arena->other += bytes;
    attn_mutex_unlock(&arena->mutex);
}

void attn_arena_discharge(attn_arena *arena, uint64_t bytes)
{
    attn_mutex_lock(&arena->mutex);
    ATTN_ASSERT(arena->other >= bytes);
    arena->allocated -= bytes;
    arena->other -= bytes;
    attn_mutex_unlock(&arena->mutex);
}

static size_t group_bytes(const attn_page_class *pages)
{
    return (size_t)pages->pages_per_group * pages->page_bytes;
}

uint32_t attn_page_take(attn_page_class *pages)
{
    attn_arena *arena = pages->arena;
    attn_mutex_lock(&arena->mutex);
    ATTN_ASSERT(arena->reserved >= pages->page_bytes);
    ATTN_ASSERT(pages->n_free > 0 || pages->n_fresh < pages->n_pages);
    uint32_t id = pages->n_free > 0 ? pages->free_list[--pages->n_free] : pages->n_fresh++;
    group *g = &pages->groups[id / pages->pages_per_group];
    if (g->n_used++ == 0) {
        if (g->state == GROUP_WARM)
            pages->warm_bytes -= group_bytes(pages);
        g->state = GROUP_USED;
    }
    pages->references[id] = 1;
    pages->n_allocated++;
    arena->reserved -= pages->page_bytes;
    arena->allocated += pages->page_bytes;
    attn_mutex_unlock(&arena->mutex);
    return id;
}

/* Gives [begin, end) of the class's memory back; both are on system pages. */
static void return_memory(const attn_page_class *pages, size_t begin, size_t end)
{
    if (end > begin)
        madvise(pages->base + begin, end - begin, MADV_DONTNEED);
}

static bool group_is_cold(const attn_page_class *pages, size_t index)
{
    return index >= class_groups(pages) || pages->groups[index].state == GROUP_COLD;
}

/* Returns the memory of a group whose last page is being freed. The system pages at its ends it may
 * share with its neighbours: those go when they hold nothing either. Of a group of small pages
 * others could be taken meanwhile, so it goes under the lock; a page that is a group by itself is on
 * no list, so its megabytes may go outside it. */
static void return_group_locked(attn_page_class *pages, size_t index)
{
    size_t begin = index * group_bytes(pages), end = begin + group_bytes(pages);
    size_t size = (size_t)pages->n_pages * pages->page_bytes;
    end = end < size ? end : size;
    size_t first = (begin + SYSTEM_PAGE - 1) & ~(SYSTEM_PAGE - 1), last = end & ~(SYSTEM_PAGE - 1);
    bool alone = pages->pages_per_group == 1;
    if (alone)
        attn_mutex_unlock(&pages->arena->mutex);
    return_memory(pages, first, last);
    if (alone)
        attn_mutex_lock(&pages->arena->mutex);
    if (first > begin && group_is_cold(pages, index - 1))
        return_memory(pages, first - SYSTEM_PAGE, first);
    if (last < end && group_is_cold(pages, index + 1))
        return_memory(pages, last, last + SYSTEM_PAGE);
}

/* Frees one page whose last reference went; its memory is returned before it counts as available
 * again. */
static void free_page(attn_page_class *pages, uint32_t id)
{
    attn_arena *arena = pages->arena;
    size_t index = id / pages->pages_per_group;
    group *g = &pages->groups[index];
    attn_mutex_lock(&arena->mutex);
    bool cold = g->n_used == 1 && pages->warm_bytes + group_bytes(pages) > WARM_BYTES;
    if (cold)
        return_group_locked(pages, index);
    if (--g->n_used == 0) {
        g->state = cold ? GROUP_COLD : GROUP_WARM;
        if (!cold)
            pages->warm_bytes += group_bytes(pages);
    }
    pages->free_list[pages->n_free++] = id;
    pages->n_allocated--;
    arena->allocated -= pages->page_bytes;
    attn_mutex_unlock(&arena->mutex);
}

void attn_page_share(attn_page_class *pages, uint32_t id)
{
    uint32_t before = pages->references[id]++;
    ATTN_ASSERT(before > 0);
    pages->n_shared += before == 1;
}

bool attn_page_is_shared(const attn_page_class *pages, uint32_t id)
{
    return pages->references[id] > 1;
}

void attn_page_drop(attn_page_class *pages, const uint32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t before = pages->references[ids[i]]--;
        ATTN_ASSERT(before > 0);
        pages->n_shared -= before == 2;
        if (before == 1)
            free_page(pages, ids[i]);
    }
}

float *attn_page_data(const attn_page_class *pages, uint32_t id)
{
    return (float *)(void *)(pages->base + (size_t)id * pages->page_bytes);
}

void attn_arena_account_get(attn_arena *arena, attn_arena_account *account)
{
    *account = (attn_arena_account){0};
    attn_mutex_lock(&arena->mutex);
    account->budget_bytes = arena->budget;
    account->allocated_bytes = arena->allocated;
    account->reserved_bytes = arena->reserved;
    account->other_bytes = arena->other;
    for (const attn_page_class *pages = arena->classes; pages != NULL; pages = pages->next) {
        account->kv_bytes += pages->n_allocated * pages->kv_bytes;
        account->inputs_bytes += pages->n_allocated * pages->inputs_bytes;
        account->n_pages += pages->n_allocated;
        account->shared_kv_bytes += pages->n_shared * pages->kv_bytes;
    }
    attn_mutex_unlock(&arena->mutex);
}
