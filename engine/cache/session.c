#include "engine/cache/session.h"

#include "engine/base/base.h"

#include <stdlib.h>
#include <string.h>

static uint64_t pages_for(uint64_t length)
{
    return (length + ATTN_PAGE_POSITIONS - 1) / ATTN_PAGE_POSITIONS;
}

uint64_t attn_session_record_bytes(const attn_model *model)
{
    return sizeof(attn_session) + (uint64_t)model->config.hidden_size * sizeof(float);
}

attn_session *attn_session_new(const char *id, attn_model *model, attn_arena *arena,
                               attn_page_class *pages, bool keep_inputs, uint32_t ttl_s)
{
    attn_session *session = attn_alloc(1, sizeof *session);
    float *last_output = attn_alloc(model->config.hidden_size, sizeof *last_output);
    if (session == NULL || last_output == NULL) {
        attn_free(session);
        attn_free(last_output);
        return NULL;
    }
    memcpy(session->id, id, strlen(id) + 1);
    session->model = model;
    session->arena = arena;
    session->pages = pages;
    session->keep_inputs = keep_inputs;
    session->ttl_s = ttl_s;
    session->created_s = attn_unix_s();
    session->last_used_s = session->created_s;
    session->last_output = last_output;
    attn_arena_charge(arena, attn_session_record_bytes(model));
    return session;
}

void attn_session_free(attn_session *session)
{
    if (session == NULL)
        return;
    attn_session_settle(session, 0);
    attn_arena_discharge(session->arena, attn_session_record_bytes(session->model));
    attn_free(session->last_output);
    attn_free(session);
}

void attn_session_commit(attn_session *session, uint64_t length)
{
    if (session->id[0] != '\0')
        session->model->n_positions += length - session->length;
    session->length = length;
}

/* Sets the page table's capacity; its bytes are charged by the caller. */
static bool resize_table(attn_session *session, size_t capacity)
{
    if (capacity == 0) {
        free(session->page_table);
        session->page_table = NULL;
    } else {
        uint32_t *table = realloc(session->page_table, capacity * sizeof *table);
        if (table == NULL)
            return false;
        session->page_table = table;
    }
    session->page_table_capacity = capacity;
    return true;
}

attn_status attn_session_reserve(attn_session *session, uint64_t length, attn_error *err)
{
    uint64_t n_pages = pages_for(length), have = session->n_pages;
    uint64_t extra = n_pages > have ? n_pages - have : 0;
    uint64_t table_extra = n_pages > session->page_table_capacity
                               ? (n_pages - session->page_table_capacity) * sizeof(uint32_t)
                               : 0;
    uint64_t page_bytes = extra * attn_page_bytes(session->pages);
    attn_status status = attn_arena_reserve(session->arena, page_bytes + table_extra, err);
    if (status != ATTN_OK)
        return status;
    if (table_extra > 0 && !resize_table(session, n_pages)) {
        attn_arena_unreserve(session->arena, page_bytes + table_extra);
        return attn_fail(err, ATTN_E_NO_MEMORY, NULL, "out of memory for a page table");
    }
    attn_arena_charge(session->arena, table_extra);
    session->reserved_pages = extra;
    return ATTN_OK;
}

void attn_session_take_pages(attn_session *session, uint64_t length)
{
    uint64_t n_pages = session->n_pages;
    while (n_pages < pages_for(length)) {
        ATTN_ASSERT(session->reserved_pages > 0 && n_pages < session->page_table_capacity);
        session->page_table[n_pages++] = attn_page_take(session->pages);
        session->reserved_pages--;
        session->n_pages = n_pages;
    }
}

void attn_session_settle(attn_session *session, uint64_t length)
{
    uint64_t n_pages = session->n_pages, keep = pages_for(length);
    ATTN_ASSERT(keep <= n_pages);
    if (length < session->length)
        session->has_last_output = false;
    attn_session_commit(session, length);
    session->n_pages = keep;
    if (keep < n_pages)
        attn_page_drop(session->pages, session->page_table + keep, n_pages - keep);
    if (session->reserved_pages > 0) {
        attn_arena_unreserve(session->arena,
                             session->reserved_pages * attn_page_bytes(session->pages));
        session->reserved_pages = 0;
    }
    size_t spare = session->page_table_capacity - keep;
    if (spare > 0 && resize_table(session, keep))
        attn_arena_discharge(session->arena, spare * sizeof(uint32_t));
}
