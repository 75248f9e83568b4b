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
                               attn_page_class *pages, attn_dtype kv_dtype, bool keep_inputs,
                               uint32_t ttl_s)
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
    session->kv_dtype = kv_dtype;
    session->keep_inputs = keep_inputs;
    session->ttl_s = ttl_s;
    session->created_s = attn_unix_s();
    session->last_used_s = session->created_s;
    session->last_output = last_output;
    attn_mutex_init(&session->table_mutex);
    attn_cond_init(&session->read);
    attn_arena_charge(arena, attn_session_record_bytes(model));
    return session;
}

void attn_session_give_back(attn_session *session)
{
    if (session->given_back)
        return;
    session->given_back = true;
    attn_session_settle(session, 0);
    attn_arena_discharge(session->arena, attn_session_record_bytes(session->model));
}

void attn_session_free(attn_session *session)
{
    if (session == NULL)
        return;
    attn_session_give_back(session);
    attn_cond_destroy(&session->read);
    attn_mutex_destroy(&session->table_mutex);
    attn_free(session->last_output);
    attn_free(session);
}

void attn_session_commit(attn_session *session, uint64_t length)
{
    if (session->id[0] != '\0')
        session->model->n_positions += length - session->length;
    session->length = length;
}

void attn_session_commit_output(attn_session *session, uint64_t length, const float *output)
{
    attn_mutex_lock(&session->table_mutex);
    memcpy(session->last_output, output,
           session->model->config.hidden_size * sizeof *session->last_output);
    session->has_last_output = true;
    attn_session_commit(session, length);
    attn_mutex_unlock(&session->table_mutex);
}

/* Sets the page table's capacity; its bytes are charged by the caller. */
static bool resize_table(attn_session *session, size_t capacity)
{
    bool ok = true;
    attn_mutex_lock(&session->table_mutex);
    if (capacity == 0) {
        free(session->page_table);
        session->page_table = NULL;
    } else {
        uint32_t *table = realloc(session->page_table, capacity * sizeof *table);
        ok = table != NULL;
        session->page_table = ok ? table : session->page_table;
    }
    if (ok)
        session->page_table_capacity = capacity;
    attn_mutex_unlock(&session->table_mutex);
    return ok;
}

/* Whether the last page must be copied before a position is written to it. */
static bool last_page_is_shared(const attn_session *session)
{
    return session->length % ATTN_PAGE_POSITIONS != 0 &&
           attn_page_is_shared(session->pages, session->page_table[session->n_pages - 1]);
}

/* Copies the first n positions of a page: only these are settled; others may be being written. */
static void copy_positions(const attn_session *session, void *to, void *from, size_t n)
{
    const attn_config *c = &session->model->config;
    for (size_t l = 0; l < c->num_hidden_layers; l++) {
        for (size_t h = 0; h < c->num_key_value_heads; h++)
            attn_block_copy(session->kv_dtype, c->head_dim,
                            attn_session_page_block(session, to, l, h),
                            attn_session_page_block(session, from, l, h), n);
    }
    const size_t kv_bytes = attn_page_kv_bytes(session->pages);
    if (session->keep_inputs)
        memcpy((char *)to + kv_bytes, (const char *)from + kv_bytes,
               n * attn_config_input_bytes(c));
}

/* A page of the caller's own with the first n positions of page `id`. */
static uint32_t copy_page(const attn_session *session, uint32_t id, size_t n)
{
    uint32_t copy = attn_page_take(session->pages);
    copy_positions(session, attn_page_data(session->pages, copy),
                   attn_page_data(session->pages, id), n);
    return copy;
}

/* Whether the last page is shared when no fork copies it just now: waits for these. Those that come
 * after them copy committed positions, to which the caller, who holds the session, only adds. */
static bool last_page_stays_shared(attn_session *session)
{
    attn_mutex_lock(&session->table_mutex);
    while (session->n_copying > 0)
        attn_cond_wait(&session->read, &session->table_mutex);
    bool shared = last_page_is_shared(session);
    attn_mutex_unlock(&session->table_mutex);
    return shared;
}

static attn_status reserve(attn_session *session, uint64_t length, bool copies_last,
                           attn_error *err)
{
    uint64_t n_pages = pages_for(length), have = session->n_pages;
    uint64_t extra = (n_pages > have ? n_pages - have : 0) + copies_last;
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
    session->copies_last = copies_last;
    return ATTN_OK;
}

attn_status attn_session_reserve(attn_session *session, uint64_t length, attn_error *err)
{
    bool copies_last = length > session->length && last_page_is_shared(session);
    attn_status status = reserve(session, length, copies_last, err);
    if (status == ATTN_E_KV_BUDGET && copies_last && !last_page_stays_shared(session))
        status = reserve(session, length, false, err);
    return status;
}

void attn_session_take_pages(attn_session *session, uint64_t length)
{
    uint64_t n_pages = session->n_pages;
    if (session->copies_last) {
        ATTN_ASSERT(session->reserved_pages > 0);
        session->copies_last = false;
        uint32_t shared = session->page_table[n_pages - 1];
        uint32_t own = copy_page(session, shared, session->length % ATTN_PAGE_POSITIONS);
        session->reserved_pages--;
        attn_mutex_lock(&session->table_mutex);
        session->page_table[n_pages - 1] = own;
        attn_mutex_unlock(&session->table_mutex);
        attn_page_drop(session->pages, &shared, 1);
    }
    while (n_pages < pages_for(length)) {
        ATTN_ASSERT(session->reserved_pages > 0 && n_pages < session->page_table_capacity);
        session->page_table[n_pages++] = attn_page_take(session->pages);
        session->reserved_pages--;
        session->n_pages = n_pages;
    }
}

/* Why positions that a session had are no more. */
static attn_status why_lost(const attn_session *session)
{
    return session->given_back ? ATTN_E_SESSION_NOT_FOUND : ATTN_E_LENGTH_MISMATCH;
}

/* Turns the readers of positions from `length` on out. Under table_mutex, which it releases while it
 * waits for the one that is reading. */
static void turn_readers_out(attn_session *session, uint64_t length)
{
    const attn_status why = why_lost(session);
    for (bool reading = true; reading;) {
        reading = false;
        for (attn_reader *reader = session->readers; reader != NULL; reader = reader->next) {
            if (reader->end <= length)
                continue;
            reader->lost = why;
            reading |= reader->reading;
        }
        if (reading)
            attn_cond_wait(&session->read, &session->table_mutex);
    }
}

void attn_session_settle(attn_session *session, uint64_t length)
{
    uint64_t n_pages = session->n_pages, keep = pages_for(length);
    ATTN_ASSERT(keep <= n_pages);
    const bool shorter = length < session->length;
    /* A fork that looks now either sees the new length or has its references already; a reader that
     * comes now does not get what goes. */
    attn_mutex_lock(&session->table_mutex);
    attn_session_commit(session, length);
    if (shorter) {
        session->has_last_output = false;
        turn_readers_out(session, length);
    }
    session->n_pages = keep;
    attn_mutex_unlock(&session->table_mutex);
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

/* Of positions that a session has no more. */
static attn_status fail_lost(const attn_session *session, attn_status status, const char *param,
                             attn_error *err)
{
    if (status == ATTN_E_SESSION_NOT_FOUND)
        return attn_fail(err, status, "session", "no such session");
    attn_fail(err, status, param, "the session became shorter meanwhile");
    attn_error_detail(err, "length", session->length);
    return status;
}

/* Takes the pages' references and copies the last output, under the mutex that keeps both still; then
 * copies a page that is not filled. The fork's pages and table are reserved. */
static bool share_pages(attn_session *session, uint64_t length, attn_session *fork)
{
    uint64_t n_full = length / ATTN_PAGE_POSITIONS, rest = length % ATTN_PAGE_POSITIONS;
    uint32_t last = 0;
    attn_mutex_lock(&session->table_mutex);
    bool ok = !session->given_back && length <= session->length;
    for (uint64_t p = 0; ok && p < n_full + (rest > 0); p++) {
        attn_page_share(session->pages, session->page_table[p]);
        fork->page_table[p] = session->page_table[p];
    }
    if (ok && length == session->length && session->has_last_output) {
        memcpy(fork->last_output, session->last_output,
               session->model->config.hidden_size * sizeof *fork->last_output);
        fork->has_last_output = true;
    }
    session->n_copying += ok && rest > 0;
    if (ok && n_full > 0)
        session->forked = fork->forked = true;
    attn_mutex_unlock(&session->table_mutex);
    if (!ok)
        return false;
    fork->n_pages = n_full;
    if (rest > 0) {
        last = fork->page_table[n_full];
        fork->page_table[n_full] = copy_page(session, last, rest);
        fork->reserved_pages--;
        fork->n_pages = n_full + 1;
        attn_page_drop(session->pages, &last, 1);
        attn_mutex_lock(&session->table_mutex);
        session->n_copying--;
        attn_cond_broadcast(&session->read);
        attn_mutex_unlock(&session->table_mutex);
    }
    return true;
}

attn_status attn_session_share(attn_session *session, uint64_t length, attn_session *fork,
                               attn_error *err)
{
    size_t n_pages = pages_for(length);
    uint64_t n_own = length % ATTN_PAGE_POSITIONS != 0;
    uint64_t table_bytes = n_pages * sizeof(uint32_t);
    uint64_t page_bytes = n_own * attn_page_bytes(fork->pages);
    attn_status status = attn_arena_reserve(fork->arena, table_bytes + page_bytes, err);
    if (status != ATTN_OK)
        return status;
    if (!resize_table(fork, n_pages)) {
        attn_arena_unreserve(fork->arena, table_bytes + page_bytes);
        return attn_fail(err, ATTN_E_NO_MEMORY, NULL, "out of memory for a page table");
    }
    attn_arena_charge(fork->arena, table_bytes);
    fork->reserved_pages = n_own;
    if (!share_pages(session, length, fork))
        return fail_lost(session, why_lost(session), "at", err);
    attn_session_commit(fork, length);
    return ATTN_OK;
}

uint64_t attn_session_shared_pages(attn_session *session)
{
    uint64_t n = 0;
    if (!session->forked)
        return 0;
    attn_mutex_lock(&session->table_mutex);
    for (uint64_t p = 0; p < session->n_pages; p++)
        n += attn_page_is_shared(session->pages, session->page_table[p]);
    attn_mutex_unlock(&session->table_mutex);
    return n;
}

/* ------------------------------------------------------------------------------------- readers */

attn_status attn_session_add_reader(attn_session *session, attn_reader *reader, uint64_t end,
                                    attn_error *err)
{
    attn_mutex_lock(&session->table_mutex);
    const bool lost = session->given_back || end > session->length;
    const attn_status status = lost ? why_lost(session) : ATTN_OK;
    if (status == ATTN_OK) {
        reader->end = end;
        reader->next = session->readers;
        session->readers = reader;
    }
    attn_mutex_unlock(&session->table_mutex);
    return status == ATTN_OK ? ATTN_OK : fail_lost(session, status, NULL, err);
}

void attn_session_remove_reader(attn_session *session, attn_reader *reader)
{
    attn_mutex_lock(&session->table_mutex);
    ATTN_ASSERT(!reader->reading);
    attn_reader **at = &session->readers;
    while (*at != reader)
        at = &(*at)->next;
    *at = reader->next;
    attn_mutex_unlock(&session->table_mutex);
}

attn_status attn_session_begin_reading(attn_session *session, attn_reader *reader,
                                       attn_session *view, attn_error *err)
{
    attn_mutex_lock(&session->table_mutex);
    /* Looked at once: who turns it out from now on waits until it pauses. */
    const attn_status lost = reader->lost;
    reader->reading = lost == ATTN_OK;
    if (reader->reading)
        memcpy(view->page_table, session->page_table,
               pages_for(reader->end) * sizeof *view->page_table);
    attn_mutex_unlock(&session->table_mutex);
    return lost == ATTN_OK ? ATTN_OK : fail_lost(session, lost, NULL, err);
}

void attn_session_pause_reader(attn_session *session, attn_reader *reader)
{
    attn_mutex_lock(&session->table_mutex);
    reader->reading = false;
    attn_cond_broadcast(&session->read);
    attn_mutex_unlock(&session->table_mutex);
}

attn_status attn_session_check_reader(const attn_session *session, const attn_reader *reader,
                                      attn_error *err)
{
    const attn_status lost = reader->lost;
    return lost == ATTN_OK ? ATTN_OK : fail_lost(session, lost, NULL, err);
}

attn_session *attn_session_new_view(const attn_session *session, uint64_t end)
{
    const size_t n_pages = pages_for(end);
    attn_session *view = attn_alloc(1, sizeof *view + n_pages * sizeof *view->page_table);
    if (view == NULL)
        return NULL;
    view->model = session->model;
    view->pages = session->pages;
    view->kv_dtype = session->kv_dtype;
    view->keep_inputs = session->keep_inputs;
    view->page_table = (uint32_t *)(view + 1);
    view->page_table_capacity = n_pages;
    return view;
}
