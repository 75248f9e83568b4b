/* session.h: one session: its KV cache as a page table, its inputs, its last output.
 *
 * Who may touch what:
 * - "fixed" fields are written before the session is published and never again;
 * - "table" fields belong to the session table and are read and written under its stripe's lock
 *   (sessions.h);
 * - "held" fields belong to whoever holds the session busy (a job on the scheduler, or a verb);
 *   the atomic ones among them may be read by anyone. The page table, and the last output with the
 *   committed length, are changed under table_mutex as well, so that a fork can read them while the
 *   session is at work;
 * - "readers" fields are guarded by table_mutex; a fork's copy of a page reads too.
 *
 * Sharing: a page may stand in several page tables. A fork shares the pages that its positions fill
 * and copies the positions of a page that they do not fill, so what a running session still writes
 * is never shared, but for the moment of such a copy, which reads committed positions alone. After a
 * truncate the last page may be a shared one: attn_session_reserve sees that and counts a copy, which
 * is made before the next position is written; if only a fork's moment makes it so, it may count one
 * too many, but refuses nothing for it.
 *
 * Readers: looks into a session read its committed positions in place, from time to time, without a
 * share in its pages, so they cost no budget. Whoever makes the session shorter turns those out that
 * read what goes, and waits for the one that is reading just then.
 *
 * Page layout: for each layer the keys of all KV heads, after RoPE, and then their values (block.h),
 * so that a decode step reads long runs; then, when inputs are kept, inputs [16][hidden_size] f32 or,
 * in a decoder, token ids [16] u32.
 */
#ifndef ATTN_SESSION_H
#define ATTN_SESSION_H

#include "engine/base/base.h"
#include "engine/cache/arena.h"
#include "engine/cache/block.h"
#include "engine/model/model.h"

struct attn_job;

/* Somebody who reads the first `end` positions of a session. */
typedef struct attn_reader {
    struct attn_reader *next;
    uint64_t end;
    bool reading;
    _Atomic attn_status lost; /* why these positions are no more; OK: they are there */
} attn_reader;

typedef struct attn_session {
    /* fixed */
    char id[ATTN_ID_MAX + 1];
    uint64_t hash;
    attn_model *model;
    attn_arena *arena;
    attn_page_class *pages;
    attn_dtype kv_dtype;
    bool keep_inputs; /* always in a decoder */
    uint32_t ttl_s;
    int64_t created_s;

    /* table */
    struct attn_session *next; /* in its bucket */
    uint32_t references;       /* the table, the holder and each waiter or verb at work */
    uint32_t n_waiting;        /* jobs that wait for it, served before newcomers */
    bool removed, busy;
    bool vanished;    /* removed as the prefill that made it failed */
    uint64_t n_holds; /* how often it became busy */
    attn_session_state state;
    struct attn_job *job; /* the holder, when it is a job */
    int64_t last_used_s;

    /* held */
    _Atomic uint64_t length;         /* committed positions */
    _Atomic uint64_t n_pages;        /* page_table[0, n_pages) are taken */
    _Atomic uint64_t reserved_pages; /* promised to the running job */
    bool copies_last;                /* one of them is for a copy of the last page, a shared one */
    attn_mutex table_mutex;
    uint32_t *page_table;
    size_t page_table_capacity;
    _Atomic bool forked; /* some page of it may be shared */
    float *last_output;  /* [hidden_size]; in a decoder the final hidden row */
    bool has_last_output;
    _Atomic bool given_back; /* it costs the arena nothing any more */

    /* readers */
    attn_reader *readers;
    uint32_t n_copying; /* forks that copy a page just now, which is shared meanwhile */
    attn_cond read;     /* a reader has paused, a copy is made */
} attn_session;

/* Bytes of budget that a session costs before its first position. */
uint64_t attn_session_record_bytes(const attn_model *model);

/* Makes a session of `length` 0 that nothing refers to yet, its record charged to the arena from
 * an existing reservation of attn_session_record_bytes. NULL when out of memory (the reservation
 * then stands). Owner: attn_session_free. */
attn_session *attn_session_new(const char *id, attn_model *model, attn_arena *arena,
                               attn_page_class *pages, attn_dtype kv_dtype, bool keep_inputs,
                               uint32_t ttl_s);
/* Returns everything to the arena. For whoever removed the session, once nobody holds it: its few
 * hundred bytes themselves stay until the last reference goes. */
void attn_session_give_back(attn_session *session);
/* Gives back what was not, and frees the session. */
void attn_session_free(attn_session *session);

/* Sets the committed length and keeps the model's count of positions. A session without an id (the
 * temporary one of a verify) is not counted. */
void attn_session_commit(attn_session *session, uint64_t length);
/* The same, together with the output of the last position, [hidden_size]. The caller holds the
 * session. */
void attn_session_commit_output(attn_session *session, uint64_t length, const float *output);

/* Reserves the pages, and grows the page table, for positions up to `length`. The caller holds the
 * session. May block for a fork's copy of a page when the budget is full. Errors: KV_BUDGET,
 * NO_MEMORY; the session is then unchanged. */
ATTN_MUST_CHECK attn_status attn_session_reserve(attn_session *session, uint64_t length,
                                                 attn_error *err);
/* Takes the pages of positions below `length` out of the reservation; cannot fail. */
void attn_session_take_pages(attn_session *session, uint64_t length);
/* Returns the rest of the reservation, and pages and table past `length`, which becomes the
 * committed length. The last output is forgotten when the length shrinks. */
void attn_session_settle(attn_session *session, uint64_t length);

/* Makes `fork`, a new session of the same model and options with no position yet, hold the first
 * `length` committed positions of `session`, which may be at work but must be referenced. Pages are
 * shared; the account grows by the page table and at most one page. The last output is copied when
 * the lengths are equal. Cost: the page table, one page.
 * Errors: KV_BUDGET, NO_MEMORY; LENGTH_MISMATCH, SESSION_NOT_FOUND: the session was truncated, or
 * deleted, meanwhile. */
ATTN_MUST_CHECK attn_status attn_session_share(attn_session *session, uint64_t length,
                                               attn_session *fork, attn_error *err);
/* Lets a reader in, of the first `end` positions of a session that the caller has a reference to, as
 * long as the reader stays. Errors: SESSION_NOT_FOUND, LENGTH_MISMATCH (it is shorter). */
ATTN_MUST_CHECK attn_status attn_session_add_reader(attn_session *session, attn_reader *reader,
                                                    uint64_t end, attn_error *err);
void attn_session_remove_reader(attn_session *session, attn_reader *reader);
/* Until attn_session_pause_reader the pages stay that `view` (attn_session_new_view) then has.
 * Errors: as above, if the positions are no more. Thread: the scheduler's, between batches. */
ATTN_MUST_CHECK attn_status attn_session_begin_reading(attn_session *session, attn_reader *reader,
                                                       attn_session *view, attn_error *err);
void attn_session_pause_reader(attn_session *session, attn_reader *reader);
/* Whether the reader's positions are no more. Errors: as above. */
ATTN_MUST_CHECK attn_status attn_session_check_reader(const attn_session *session,
                                                      const attn_reader *reader, attn_error *err);
/* What a reader passes to a forward pass in the session's place: its fixed fields, and room for the
 * page table of the first `end` positions. In no account. NULL when out of memory. Owner: attn_free. */
attn_session *attn_session_new_view(const attn_session *session, uint64_t end);

/* Pages that others hold too. Any thread that has a reference. Cost: the page table. */
uint64_t attn_session_shared_pages(attn_session *session);

static inline float *attn_session_page(const attn_session *session, uint64_t position)
{
    return attn_page_data(session->pages, session->page_table[position / ATTN_PAGE_POSITIONS]);
}

/* Keys and values of a layer and KV head in a page of the session's class. */
static inline attn_kv_block attn_session_page_block(const attn_session *session, void *page,
                                                    size_t layer, size_t kv_head)
{
    const attn_config *c = &session->model->config;
    const size_t bytes = attn_block_bytes(session->kv_dtype, c->head_dim);
    char *keys = (char *)page + (2 * layer * c->num_key_value_heads + kv_head) * bytes;
    return (attn_kv_block){keys, keys + c->num_key_value_heads * bytes};
}

/* The same in the page that holds `position`. */
static inline attn_kv_block attn_session_block(const attn_session *session, uint64_t position,
                                               size_t layer, size_t kv_head)
{
    return attn_session_page_block(session, attn_session_page(session, position), layer, kv_head);
}

/* The kept input of a position: a row [hidden_size], or in a decoder a token id. */
static inline void *attn_session_input(const attn_session *session, uint64_t position)
{
    return (char *)attn_session_page(session, position) + attn_page_kv_bytes(session->pages) +
           position % ATTN_PAGE_POSITIONS * attn_config_input_bytes(&session->model->config);
}

static inline const float *attn_session_input_row(const attn_session *session, uint64_t position)
{
    return attn_session_input(session, position);
}

static inline const uint32_t *attn_session_input_token(const attn_session *session,
                                                       uint64_t position)
{
    return attn_session_input(session, position);
}

#endif
