/* engine.h: the engine's public boundary: models, sessions, jobs, numbers to report.
 *
 * An engine owns its models, one KV cache per session under one memory budget, a scheduler thread
 * and a pool of compute threads. A host submits jobs (prefill, decode, verify) and is called back
 * as they advance. The engine knows nothing of HTTP or JSON requests.
 *
 * Thread: every function may be called from any thread at any time between open and close unless
 * it says otherwise. Functions marked "may block" wait for the batch in progress; the others take
 * only short locks. Callbacks (attn_sink) must not block and must not call back into the engine,
 * except attn_job_wake and attn_job_cancel.
 */
#ifndef ATTN_ENGINE_H
#define ATTN_ENGINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ATTN_MUST_CHECK __attribute__((warn_unused_result))

/* The version of the numeric rules. Any change that changes one output bit bumps it. */
#define ATTN_NUMERICS 1
/* Longest session id and model name, without the terminating NUL. */
#define ATTN_ID_MAX 64
#define ATTN_MODEL_NAME_MAX 64
#define ATTN_PAGE_POSITIONS 16
/* Room for one token's text in a list of probable tokens. */
#define ATTN_TOKEN_TEXT_MAX 64

/* ------------------------------------------------------------------------------- status */

typedef enum attn_status {
    ATTN_OK = 0,
    ATTN_E_INVALID,        /* a field is wrong; `param` names it */
    ATTN_E_CONTEXT_LENGTH, /* details: length, requested, limit */
    ATTN_E_TOKEN_RANGE,    /* details: index, limit */
    ATTN_E_SESSION_NOT_FOUND,
    ATTN_E_MODEL_NOT_FOUND,
    ATTN_E_SESSION_BUSY,
    ATTN_E_SESSION_EXISTS,  /* creation options differ from the session's; `param` names one */
    ATTN_E_LENGTH_MISMATCH, /* details: length */
    ATTN_E_MODEL_MISMATCH,
    ATTN_E_INPUTS_NOT_KEPT,
    ATTN_E_CANCELLED,
    ATTN_E_NON_FINITE, /* details: position */
    ATTN_E_QUEUE_FULL,
    ATTN_E_TOO_MANY_SESSIONS,
    ATTN_E_KV_BUDGET, /* details: needed, available (bytes) */
    ATTN_E_SHUTTING_DOWN,
    ATTN_E_NOT_SUPPORTED,
    ATTN_E_TENSOR_NOT_FOUND, /* the model has no tensor, layer or head like that; `param` */
    ATTN_E_TENSOR_TOO_LARGE, /* details: bytes, limit */
    ATTN_E_NO_MEMORY,        /* the system refused memory outside the budget */
    ATTN_E_IO,               /* loading only: a file cannot be read */
    ATTN_E_FORMAT,           /* loading only: a file is wrong */
    ATTN_E_INTERNAL,
} attn_status;

#define ATTN_ERROR_DETAILS 3

/* What went wrong. Owned by the caller; every field but `status` is meaningless when ATTN_OK.
 * `param` is a static string (a field name of the wire contract) or NULL. `message` is one line,
 * never contains input bytes except the names of files and tensors at load time. */
typedef struct attn_error {
    attn_status status;
    const char *param;
    unsigned n_details;
    struct {
        const char *name;
        uint64_t value;
    } details[ATTN_ERROR_DETAILS];
    char message[256];
} attn_error;

/* ------------------------------------------------------------------------------- engine */

/* What weights and caches are kept in. Q8: int8 in groups that share one f32 scale. */
typedef enum attn_dtype { ATTN_F32, ATTN_BF16, ATTN_F16, ATTN_Q8, ATTN_DTYPES } attn_dtype;
const char *attn_dtype_name(attn_dtype dtype); /* "f32", "bf16", "f16", "q8" */

typedef struct attn_engine attn_engine;

/* One --model: a folder with config.json and model.safetensors. Strings are borrowed for open. */
typedef struct attn_model_source {
    const char *name; /* NULL: the folder's last component */
    const char *dir;
} attn_model_source;

typedef struct attn_options {
    const attn_model_source *models; /* besides the built-in ones, which a same name replaces */
    size_t n_models;
    const char *default_model; /* a name; NULL: the first, else "stories" */
    bool has_random_seed;      /* fill `models` that lack weights from `random_seed` */
    uint64_t random_seed;
    unsigned n_threads;       /* compute threads, >= 1 */
    uint64_t kv_memory_bytes; /* the one budget: pages, kept inputs, tables, sessions */
    uint64_t max_sessions;
    uint32_t queue;            /* most jobs unfinished at once */
    uint32_t ttl_s;            /* default idle lifetime of a session, 0 = never */
    uint32_t stall_timeout_ms; /* longest time a job waits for its sink to become ready */
    const char *kernels;       /* "auto", "scalar", "avx2", "avx512" */
    bool has_weights_dtype;    /* else each model keeps its files' dtype */
    attn_dtype weights_dtype;
} attn_options;

/* Opens an engine: loads every model, maps the arena, starts the threads.
 * Errors: IO, FORMAT (one line naming file and tensor or field), INVALID (`param`: "models",
 * "default_model", "kernels", "threads"), NO_MEMORY. On error returns NULL and nothing stays behind. */
ATTN_MUST_CHECK attn_engine *attn_engine_open(const attn_options *options, attn_error *err);

/* Refuses new jobs with SHUTTING_DOWN and ends every unfinished one with reason SHUTDOWN, each
 * after the batch it is in. Does not block; `done` callbacks follow on the scheduler thread. */
void attn_engine_shutdown(attn_engine *engine);

/* Stops the threads and frees everything. Unfinished jobs get their `done` first (SHUTDOWN).
 * May block for one batch. No other call may be in progress; jobs still held by the host stay
 * readable until released. NULL is allowed. */
void attn_engine_close(attn_engine *engine);

/* ------------------------------------------------------------------------------- models */

/* A model's shape, as Hugging Face's config names it, and what a session of it costs. */
typedef struct attn_model_info {
    const char *name;       /* lives as long as the engine */
    const char *model_type; /* "attention", "llama", "qwen3", "qwen3_moe", "minimind" */
    bool is_language_model; /* token ids in and out; else rows */
    bool has_tokenizer;     /* takes and gives text */
    bool built_in, random_weights;
    uint32_t hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim;
    uint64_t max_position_embeddings;
    double rope_theta, rms_norm_eps;
    bool qk_norm;
    /* Language models only. */
    uint32_t vocab_size, intermediate_size, num_experts, num_experts_per_tok;
    bool attention_bias, tie_word_embeddings;
    attn_dtype weights_dtype;
    uint64_t n_parameters;
    uint64_t weights_bytes;                      /* resident, packed */
    uint64_t kv_bytes_per_position[ATTN_DTYPES]; /* by the cache's dtype */
    uint64_t input_bytes_per_position;           /* when inputs are kept */
    uint64_t n_sessions;
} attn_model_info;

size_t attn_model_count(const attn_engine *engine);
/* `index` < attn_model_count. Model 0 is the default one. */
void attn_model_get(const attn_engine *engine, size_t index, attn_model_info *info);
/* The index of the model with that name, or -1. NULL names the default model. */
ptrdiff_t attn_model_find(const attn_engine *engine, const char *name);

/* The kernels in use ("scalar", "avx2", "avx512") and the number of compute threads. */
const char *attn_engine_kernels(const attn_engine *engine);
unsigned attn_engine_threads(const attn_engine *engine);

/* ----------------------------------------------------------------------------- sessions */

typedef enum attn_session_state {
    ATTN_SESSION_IDLE,
    ATTN_SESSION_QUEUED,
    ATTN_SESSION_PREFILL,
    ATTN_SESSION_DECODE,
    ATTN_SESSION_VERIFY,
} attn_session_state;
const char *attn_session_state_name(attn_session_state state);

typedef struct attn_kv_info {
    attn_dtype dtype;
    uint64_t bytes;          /* allocated pages: n_pages * 16 * kv_bytes_per_position */
    uint64_t shared_bytes;   /* of these, on pages that another session holds too */
    uint64_t reserved_bytes; /* promised to the running job, not allocated yet */
    uint64_t n_pages;
} attn_kv_info;

typedef struct attn_session_info {
    char id[ATTN_ID_MAX + 1];
    const char *model; /* name; lives as long as the engine */
    uint64_t length;   /* committed positions */
    attn_session_state state;
    attn_kv_info kv;
    uint64_t inputs_bytes;
    int64_t created_s, last_used_s; /* Unix time */
    uint32_t ttl_s;                 /* 0 = never expires */
    bool in_flight;
} attn_session_info;

typedef struct attn_totals {
    uint64_t sessions, positions;
    attn_kv_info kv; /* each shared page once */
    uint64_t inputs_bytes;
    uint64_t table_bytes; /* page tables, session records, last output rows */
    uint64_t budget_bytes, allocated_bytes, reserved_bytes, available_bytes;
} attn_totals;

/* True for 1-64 of A-Z a-z 0-9 . _ : - and not "." or "..". */
bool attn_session_id_valid(const char *id);

/* Errors: SESSION_NOT_FOUND. */
ATTN_MUST_CHECK attn_status attn_session_get(attn_engine *engine, const char *id,
                                             attn_session_info *info, attn_error *err);

/* Lists up to `limit` sessions that follow `after` (NULL or "": from the start) in a fixed order
 * that creations and deletions of others do not disturb; `after` need not exist any more. Returns
 * the number written to `infos` and sets `*more` when others follow the last one. Holds no lock
 * for longer than one hash bucket. */
size_t attn_session_list(attn_engine *engine, const char *after, size_t limit,
                         attn_session_info *infos, bool *more);

void attn_engine_totals(attn_engine *engine, attn_totals *totals);

/* Removes a session and returns its memory to the budget before it returns; a running job of it
 * ends first with reason CANCELLED. May block. Errors: SESSION_NOT_FOUND. */
ATTN_MUST_CHECK attn_status attn_session_delete(attn_engine *engine, const char *id,
                                                attn_error *err);

/* Rewinds a session to `length` (at most its present length). `if_length` UINT64_MAX: no
 * precondition. May block. Errors: SESSION_NOT_FOUND, SESSION_BUSY, LENGTH_MISMATCH, INVALID
 * ("length"). */
ATTN_MUST_CHECK attn_status attn_session_truncate(attn_engine *engine, const char *id,
                                                  uint64_t length, uint64_t if_length,
                                                  attn_session_info *info, attn_error *err);

/* Copies the first `at` positions (UINT64_MAX: all) of a session to a new one named `as`, with the
 * same options. Pages are shared until one of them diverges; neither sees the other's new positions.
 * Also of a session at work, at its committed length. May block for the copy of one page.
 * Errors: INVALID ("as", "at"), SESSION_NOT_FOUND, SESSION_EXISTS ("as"), LENGTH_MISMATCH,
 * TOO_MANY_SESSIONS, KV_BUDGET, SHUTTING_DOWN, NO_MEMORY. */
ATTN_MUST_CHECK attn_status attn_session_fork(attn_engine *engine, const char *id, const char *as,
                                              uint64_t at, uint64_t if_length,
                                              attn_session_info *info, attn_error *err);

/* Ends the session's running job, if any, with reason CANCELLED and waits for its end. May block.
 * Errors: SESSION_NOT_FOUND. */
ATTN_MUST_CHECK attn_status attn_session_cancel(attn_engine *engine, const char *id,
                                                attn_session_info *info, attn_error *err);

/* The committed token ids of a language model's session, and their text (NULL without a tokenizer).
 * Both are the caller's, attn_buffer_free. May block. Errors: SESSION_NOT_FOUND, SESSION_BUSY,
 * NOT_SUPPORTED (its model takes rows), NO_MEMORY. */
ATTN_MUST_CHECK attn_status attn_session_tokens(attn_engine *engine, const char *id,
                                                uint32_t **tokens, size_t *n, char **text,
                                                size_t *text_len, attn_error *err);

/* Copies the kept input rows of positions [first, first + n) into `rows`
 * Shapes: rows [n, hidden_size] f32. May block. Errors: SESSION_NOT_FOUND, SESSION_BUSY,
 * INPUTS_NOT_KEPT, INVALID ("length") when the range passes the session's length. */
ATTN_MUST_CHECK attn_status attn_session_inputs(attn_engine *engine, const char *id, uint64_t first,
                                                size_t n, float *rows, attn_error *err);

/* --------------------------------------------------------------------------------- text */

/* Encodes text by a model's tokenizer (NULL: the default model). *tokens [*n] is the caller's,
 * attn_buffer_free. Cost: linear in the text. Errors: MODEL_NOT_FOUND, NOT_SUPPORTED (no tokenizer),
 * INVALID ("text": not UTF-8), NO_MEMORY. */
ATTN_MUST_CHECK attn_status attn_tokenize(attn_engine *engine, const char *model, const char *text,
                                          size_t len, bool add_special, uint32_t **tokens,
                                          size_t *n, attn_error *err);
/* Decodes ids to text, NUL-terminated, the caller's, attn_buffer_free. Errors: as above, TOKEN_RANGE. */
ATTN_MUST_CHECK attn_status attn_detokenize(attn_engine *engine, const char *model,
                                            const uint32_t *tokens, size_t n, char **text,
                                            size_t *len, attn_error *err);
void attn_buffer_free(void *p);

/* ------------------------------------------------------------------------------- inside */

/* The tensors of a step, by the names of TransformerLens where it has them. n: the step's positions
 * (queries); T: the keys. Row-major, f32. */
typedef enum attn_tensor_kind {
    ATTN_TENSOR_EMBED,      /* hook_embed                        [n, hidden_size] the input */
    ATTN_TENSOR_RESID_PRE,  /* blocks.{l}.hook_resid_pre         [n, hidden_size] */
    ATTN_TENSOR_Q,          /* blocks.{l}.attn.hook_q            [n, heads, head_dim] projected */
    ATTN_TENSOR_K,          /* blocks.{l}.attn.hook_k            [n, kv_heads, head_dim] */
    ATTN_TENSOR_V,          /* blocks.{l}.attn.hook_v            [n, kv_heads, head_dim] */
    ATTN_TENSOR_Q_NORMED,   /* blocks.{l}.attn.hook_q_normed     after QK-norm, with its weight */
    ATTN_TENSOR_K_NORMED,   /* blocks.{l}.attn.hook_k_normed */
    ATTN_TENSOR_ROT_Q,      /* blocks.{l}.attn.hook_rot_q        after RoPE */
    ATTN_TENSOR_ROT_K,      /* blocks.{l}.attn.hook_rot_k */
    ATTN_TENSOR_SCORES,     /* blocks.{l}.attn.hook_attn_scores  [heads, n, T] masked: -inf */
    ATTN_TENSOR_PATTERN,    /* blocks.{l}.attn.hook_pattern      [heads, n, T] masked: 0 */
    ATTN_TENSOR_Z,          /* blocks.{l}.attn.hook_z            [n, heads, head_dim] */
    ATTN_TENSOR_ATTN_OUT,   /* blocks.{l}.hook_attn_out          [n, hidden_size] */
    ATTN_TENSOR_RESID_MID,  /* blocks.{l}.hook_resid_mid         language models only, */
    ATTN_TENSOR_MLP_OUT,    /* blocks.{l}.hook_mlp_out           as are these three */
    ATTN_TENSOR_RESID_POST, /* blocks.{l}.hook_resid_post */
    ATTN_TENSOR_KEY, /* past_key_values.{l}.key     [T, kv_heads, head_dim] as the cache keeps it */
    ATTN_TENSOR_VALUE, /* past_key_values.{l}.value   [T, kv_heads, head_dim] */
    ATTN_TENSOR_KINDS
} attn_tensor_kind;

/* Room for a tensor's whole name. */
#define ATTN_TENSOR_NAME_MAX 64
/* The most bytes that one request may look at, for all its tensors, of one step. */
#define ATTN_TRACE_BYTES_MAX ((uint64_t)16 << 20)
/* The most bytes of all traces that there are at once, in the process: what a job asks for past that
 * ends with NO_MEMORY, what an observer wants is not captured. */
#define ATTN_TRACES_BYTES_MAX ((uint64_t)1 << 30)
/* Layers and heads past these cannot be chosen. */
#define ATTN_CHOICE_MAX 256

/* "hook_pattern", "key": the kind's name without block and layer. */
const char *attn_tensor_kind_name(attn_tensor_kind kind);
/* The kind of that name, or ATTN_TENSOR_KINDS. */
attn_tensor_kind attn_tensor_kind_find(const char *name, size_t len);
/* The whole name, as "blocks.3.attn.hook_pattern". Returns its length. */
size_t attn_tensor_name(attn_tensor_kind kind, uint32_t layer, char name[ATTN_TENSOR_NAME_MAX]);
/* Reads a whole name. False: no tensor is called so, in any model. */
bool attn_tensor_parse(const char *name, attn_tensor_kind *kind, uint32_t *layer);
/* Whether the tensor's heads are query heads, KV heads, or it has none. */
bool attn_tensor_has_heads(attn_tensor_kind kind);
bool attn_tensor_has_kv_heads(attn_tensor_kind kind);
/* Whether it has an axis of keys. */
bool attn_tensor_has_keys(attn_tensor_kind kind);

/* A set of numbers below ATTN_CHOICE_MAX. */
typedef struct attn_choice {
    uint64_t bits[ATTN_CHOICE_MAX / 64];
} attn_choice;

static inline bool attn_choice_has(const attn_choice *choice, size_t i)
{
    return i < ATTN_CHOICE_MAX && (choice->bits[i / 64] >> (i % 64) & 1) != 0;
}

static inline void attn_choice_add(attn_choice *choice, size_t i)
{
    choice->bits[i / 64] |= (uint64_t)1 << (i % 64);
}

/* What of a step to look at. */
typedef struct attn_selection {
    uint32_t tensors;             /* bit 1 << attn_tensor_kind */
    bool some_layers, some_heads; /* else all */
    attn_choice layers;
    attn_choice heads;  /* query heads; of tensors with KV heads, those that these read */
    uint32_t last_rows; /* of these of the tensors only the last position's row */
} attn_selection;

/* Whether a model (an index) has all that. Errors: TENSOR_NOT_FOUND (`param`: "tensors", "layers",
 * "heads"; details: limit). */
ATTN_MUST_CHECK attn_status attn_selection_check(const attn_engine *engine, size_t model,
                                                 const attn_selection *selection, attn_error *err);
/* Bytes of its tensors for n_rows positions that look at n_keys keys. */
uint64_t attn_selection_bytes(const attn_engine *engine, size_t model,
                              const attn_selection *selection, uint64_t n_rows, uint64_t n_keys);

typedef struct attn_trace_tensor {
    attn_tensor_kind kind;
    uint32_t layer;
    unsigned n_dims;
    uint64_t shape[3];
    const float *data; /* [product of shape] */
} attn_trace_tensor;

/* Tensors of the positions [position, position + n_rows) of a session, as they were computed.
 * Immutable once it is handed out; counted by references. */
typedef struct attn_trace {
    uint64_t position;
    size_t n_rows;
    uint64_t first_key, n_keys; /* the keys of scores, pattern and cache */
    size_t n_heads, n_kv_heads; /* which heads the tensors have, ascending */
    const uint32_t *heads, *kv_heads;
    uint32_t group; /* query heads that read one KV head */
    size_t n_tensors;
    const attn_trace_tensor *tensors; /* by layer, then by kind */
} attn_trace;

/* Thread: any. The last release frees. */
attn_trace *attn_trace_retain(attn_trace *trace);
void attn_trace_release(attn_trace *trace); /* NULL allowed */

/* What happens to sessions, for whoever watches. Strings and `trace` are borrowed for the callback;
 * the trace may be retained. */
typedef enum attn_event_kind {
    ATTN_EVENT_CREATED,
    ATTN_EVENT_PREFILL, /* some of its positions are computed; at the end, committed */
    ATTN_EVENT_STEP,
    ATTN_EVENT_TRUNCATED,
    ATTN_EVENT_FORKED, /* the new session; `from`: its parent */
    ATTN_EVENT_EXPIRED,
    ATTN_EVENT_DELETED,
} attn_event_kind;
const char *attn_event_kind_name(attn_event_kind kind); /* "created" ... */

typedef struct attn_event {
    attn_event_kind kind;
    const char *session, *model, *from;
    uint64_t length, kv_bytes;    /* after it */
    uint64_t n_done, n_positions; /* PREFILL: how far it is */
    uint64_t step, position;      /* STEP */
    bool has_token;               /* STEP of a language model */
    uint32_t token;
    const char *text; /* NULL: no tokenizer */
    size_t text_len;
    attn_trace
        *trace; /* STEP: what `wants` asked for; NULL: it did not, or there was no time or memory */
} attn_event;

/* Who is told. Callbacks must not block nor call back into the engine; they run on any thread, those
 * of one session's steps on the scheduler's.
 * event: something happened. What is told of one id is in order, and a session's end is the last of
 *        it. A lock of the session table may be held meanwhile.
 * wants: asked before a decode step of a session is computed: fills the selection and returns true
 *        if the step's tensors are wanted. While others have work, captures get a quarter of the
 *        time; what is wanted past that is not captured. */
typedef struct attn_observer {
    void *ctx;
    void (*event)(void *ctx, const attn_event *event);
    bool (*wants)(void *ctx, const char *session, attn_selection *selection);
} attn_observer;

/* Names the observer: once, before the first request. Nothing is told until it is switched on, and
 * while it is off nothing is done for it. Events that are under way when it is switched off may still
 * come. */
void attn_engine_set_observer(attn_engine *engine, const attn_observer *observer);
void attn_engine_observe(attn_engine *engine, bool on);

/* --------------------------------------------------------------------------------- jobs */

typedef enum attn_job_kind {
    ATTN_JOB_PREFILL,
    ATTN_JOB_DECODE,
    ATTN_JOB_VERIFY,
    ATTN_JOB_TENSOR, /* one tensor of committed positions, also of a session at work */
    ATTN_JOB_KINDS
} attn_job_kind;
typedef enum attn_output { ATTN_OUTPUT_LAST, ATTN_OUTPUT_ALL, ATTN_OUTPUT_NONE } attn_output;

/* How a language model's next token is chosen (Order: repetition_penalty, temperature, top_k,
 * top_p, min_p). The draw is u = philox(seed, position), so a run depends on nothing else. */
typedef struct attn_sampling {
    float temperature;        /* 0: the most probable token, the lower id of equals */
    uint32_t top_k;           /* 0: all */
    float top_p;              /* 1: all */
    float min_p;              /* 0: all */
    float repetition_penalty; /* 1: none */
    bool has_seed;
    uint64_t seed; /* below 2^53; chosen and reported when !has_seed */
    bool ignore_eos;
    uint32_t n_logprobs; /* report so many of the most probable tokens of the unmodified softmax */
    const char *const *stop; /* texts that end the run */
    size_t n_stop;
    const uint32_t *stop_token_ids;
    size_t n_stop_token_ids;
} attn_sampling;

#define ATTN_LOGPROBS_MAX 20
#define ATTN_STOP_MAX 16
#define ATTN_NEXT 5 /* most probable tokens that a prefill reports */

/* What to run. Rows, tokens, text and sampling's arrays are borrowed until the job's `done`, or until
 * attn_engine_submit fails; `session` and `model` for its call. */
typedef struct attn_request {
    attn_job_kind kind;
    const char *session; /* PREFILL: NULL makes an id */
    const char *model;   /* PREFILL: NULL = not named */
    const float *inputs; /* [n_inputs, input_size] f32, finite; NULL = none */
    size_t n_inputs, input_size;
    const uint32_t *tokens; /* language models: ids, instead of inputs; NULL = none */
    size_t n_tokens;
    const char *text; /* or text to be encoded (PREFILL); NULL = none */
    size_t text_len;
    bool has_add_special, add_special; /* BOS and the leading space mark; default: at length 0 */
    uint64_t steps; /* DECODE without inputs: run this many; rows: feeding the last output back
                           in, language models: sampling */
    attn_sampling sampling;
    bool logits;        /* PREFILL: keep the logits behind the last position in the result */
    attn_output output; /* PREFILL: which output rows to keep in the result */
    uint64_t if_length; /* UINT64_MAX: no precondition */
    uint32_t wait_ms;   /* PREFILL, DECODE: wait this long for a busy session */
    /* Creation options; on an existing session they must match. */
    bool has_kv_dtype, has_ttl, has_keep_inputs;
    attn_dtype kv_dtype;
    uint32_t ttl_s;
    bool keep_inputs;
    /* PREFILL: the tensors of its positions, in the result; DECODE: of each step, with it. */
    bool has_trace;
    attn_selection trace;
    /* TENSOR: which one, of which queries and keys. Ends UINT64_MAX: the session's length, and for
     * keys the queries' end. A cache tensor has keys only, the others without keys queries only. */
    attn_tensor_kind tensor;
    uint32_t layer;
    bool some_heads; /* else all; of the tensor's own head axis */
    attn_choice heads;
    uint64_t first_query, end_query, first_key, end_key;
} attn_request;

/* A request with nothing set: if_length and the ends of ranges UINT64_MAX, top_p and
 * repetition_penalty 1, the rest zero. */
attn_request attn_request_init(attn_job_kind kind);

/* A token, its text (complete characters, or U+FFFD), and the logarithm of its probability. */
typedef struct attn_logprob {
    uint32_t token;
    float logprob;
    char text[ATTN_TOKEN_TEXT_MAX]; /* cut there, at a character; NUL-terminated */
} attn_logprob;

/* One committed decode step. Pointers are borrowed for the callback. */
typedef struct attn_step {
    uint64_t step;       /* 0-based within the job */
    uint64_t position;   /* the position it appended */
    uint64_t length;     /* the session's length after it */
    const float *output; /* rows: [output_size] f32; NULL for a language model */
    size_t output_size;
    uint32_t token;
    const char *text; /* what became complete with this token; NULL without a tokenizer */
    size_t text_len;
    const attn_logprob *logprobs; /* [n_logprobs], most probable first */
    size_t n_logprobs;
    attn_trace *trace; /* what was asked for, or NULL; may be retained */
} attn_step;

/* How a job reports. All are called on the scheduler thread (`done` also on the closing thread).
 * ready: may the next decode step be delivered? When false the job is parked, for at most
 *        stall_timeout_ms, until attn_job_wake. NULL: always.
 * step:  a decode step was committed; called only after ready said true. NULL: none wanted.
 * done:  the job has ended, its session is released, its result may be read. Exactly once. */
typedef struct attn_sink {
    void *ctx;
    bool (*ready)(void *ctx);
    void (*step)(void *ctx, const attn_step *step);
    void (*done)(void *ctx);
} attn_sink;

typedef enum attn_reason {
    ATTN_REASON_LENGTH,
    ATTN_REASON_STOP,
    ATTN_REASON_CANCELLED,
    ATTN_REASON_STALLED,
    ATTN_REASON_SHUTDOWN,
    ATTN_REASON_ERROR,
} attn_reason;
const char *attn_reason_name(attn_reason reason); /* the wire's word, "length" ... */

typedef struct attn_job attn_job;

/* A job's end. Pointers live as long as the job. */
typedef struct attn_result {
    attn_reason reason;
    attn_error error;          /* status ATTN_OK unless reason is ERROR */
    attn_session_info session; /* as it stood when the job released it */
    uint64_t appended;         /* PREFILL: positions added */
    uint64_t steps;            /* DECODE: steps committed */
    const float *outputs;      /* PREFILL: [n_outputs, output_size] f32 as `output` asked */
    size_t n_outputs, output_size;
    const uint32_t *tokens; /* PREFILL of a language model: the ids it appended [n_tokens] */
    size_t n_tokens;
    const float *logits; /* PREFILL: [n_logits] as asked */
    size_t n_logits;
    attn_logprob next[ATTN_NEXT]; /* PREFILL of a language model: most probable first */
    size_t n_next;
    uint64_t seed;    /* DECODE that sampled */
    const char *text; /* DECODE: what was held back for a stop text and is owed at the end */
    size_t text_len;
    attn_trace *trace;          /* PREFILL, TENSOR: what was asked for, or NULL; may be retained */
    double verify_max_abs_diff; /* VERIFY */
    bool verify_bit_identical;
    double queue_ms, compute_ms;
} attn_result;

/* Admits a job: finds or creates its session, makes it busy and reserves all memory of the
 * positions the request declares. On ATTN_OK `*job` holds one reference and `sink->done` will be
 * called once; the session's id is attn_job_session(). On error nothing was changed and no
 * callback will come. Errors known only later (a wait that ran out, an overflow) end the job with
 * reason ERROR. A prefill that waits for a session whose making fails makes it itself.
 * Errors: INVALID, CONTEXT_LENGTH, TOKEN_RANGE, SESSION_NOT_FOUND, MODEL_NOT_FOUND, SESSION_BUSY,
 * SESSION_EXISTS, LENGTH_MISMATCH, MODEL_MISMATCH, INPUTS_NOT_KEPT, QUEUE_FULL,
 * TOO_MANY_SESSIONS, KV_BUDGET, SHUTTING_DOWN, NOT_SUPPORTED, TENSOR_NOT_FOUND, TENSOR_TOO_LARGE,
 * NO_MEMORY. A TENSOR job keeps nobody busy and takes nothing of the budget: it reads the committed
 * positions in place. When these go meanwhile, it ends with the error LENGTH_MISMATCH or
 * SESSION_NOT_FOUND. May block for the copy of one page.
 * Cost: allocates the job, the page table's growth and the kept output rows; never more than in
 * proportion to what the request declares, after the budget agreed. */
ATTN_MUST_CHECK attn_status attn_engine_submit(attn_engine *engine, const attn_request *request,
                                               const attn_sink *sink, attn_job **job,
                                               attn_error *err);

/* The sink has become ready: a parked job goes on. Cheap; harmless when it is not parked. */
void attn_job_wake(attn_job *job);
/* Ends the job soon with reason CANCELLED, wherever it is. Harmless after its end. */
void attn_job_cancel(attn_job *job);
/* The session's id, from the moment of submission on. */
const char *attn_job_session(const attn_job *job);
/* The result. Only after `done` was called. */
const attn_result *attn_job_result(const attn_job *job);
/* Gives the reference back. The job need not have ended (it then goes on unobserved, and its
 * callbacks still come). */
void attn_job_release(attn_job *job);

/* ------------------------------------------------------------------------------ numbers */

#define ATTN_HISTOGRAM_BUCKETS 24

/* Counts of observations in buckets of doubling width: bucket i counts values <= least * 2^i; the
 * last bucket counts everything above. Any thread may observe; readers see a recent state. */
typedef struct attn_histogram {
    double least;
    _Atomic uint64_t counts[ATTN_HISTOGRAM_BUCKETS];
    _Atomic uint64_t sum_micro; /* sum of values in millionths */
} attn_histogram;

void attn_histogram_observe(attn_histogram *histogram, double value);

/* The engine's counters, read without any lock. Pointers live as long as the engine. */
typedef struct attn_stats {
    uint64_t prefill_tokens, decode_steps, batches;
    uint64_t queue_depth; /* admitted, not started */
    uint64_t prefill_in_flight, decode_in_flight, verify_in_flight, tensor_in_flight;
    uint64_t sessions_created, sessions_expired;
    uint64_t trace_bytes;             /* of all traces there are: what jobs and observers look at */
    const attn_histogram *batch_size; /* rows in a batch, from 1 */
    const attn_histogram *queue_seconds; /* submission to first batch, from 1e-5 */
    const attn_histogram *ttft_seconds;  /* submission to first output, from 1e-5 */
    const attn_histogram *step_seconds;  /* between decode steps of a job, from 1e-5 */
} attn_stats;

void attn_engine_stats(const attn_engine *engine, attn_stats *stats);

#endif
