#include "engine/compute/trace.h"

#include "engine/base/base.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef enum axes {
    ROW,      /* [n, hidden_size] */
    HEADS,    /* [n, heads, head_dim] */
    KV_HEADS, /* [n, kv_heads, head_dim] */
    KEYS,     /* [heads, n, keys] */
    CACHE,    /* [keys, kv_heads, head_dim] */
} axes;

static const struct {
    const char *name, *prefix; /* before the name, with a %u for the layer; NULL: no layer */
    axes axes;
} kinds[ATTN_TENSOR_KINDS] = {
    [ATTN_TENSOR_EMBED] = {"hook_embed", NULL, ROW},
    [ATTN_TENSOR_RESID_PRE] = {"hook_resid_pre", "blocks.%u.", ROW},
    [ATTN_TENSOR_Q] = {"hook_q", "blocks.%u.attn.", HEADS},
    [ATTN_TENSOR_K] = {"hook_k", "blocks.%u.attn.", KV_HEADS},
    [ATTN_TENSOR_V] = {"hook_v", "blocks.%u.attn.", KV_HEADS},
    [ATTN_TENSOR_Q_NORMED] = {"hook_q_normed", "blocks.%u.attn.", HEADS},
    [ATTN_TENSOR_K_NORMED] = {"hook_k_normed", "blocks.%u.attn.", KV_HEADS},
    [ATTN_TENSOR_ROT_Q] = {"hook_rot_q", "blocks.%u.attn.", HEADS},
    [ATTN_TENSOR_ROT_K] = {"hook_rot_k", "blocks.%u.attn.", KV_HEADS},
    [ATTN_TENSOR_SCORES] = {"hook_attn_scores", "blocks.%u.attn.", KEYS},
    [ATTN_TENSOR_PATTERN] = {"hook_pattern", "blocks.%u.attn.", KEYS},
    [ATTN_TENSOR_Z] = {"hook_z", "blocks.%u.attn.", HEADS},
    [ATTN_TENSOR_ATTN_OUT] = {"hook_attn_out", "blocks.%u.", ROW},
    [ATTN_TENSOR_RESID_MID] = {"hook_resid_mid", "blocks.%u.", ROW},
    [ATTN_TENSOR_MLP_OUT] = {"hook_mlp_out", "blocks.%u.", ROW},
    [ATTN_TENSOR_RESID_POST] = {"hook_resid_post", "blocks.%u.", ROW},
    [ATTN_TENSOR_KEY] = {"key", "past_key_values.%u.", CACHE},
    [ATTN_TENSOR_VALUE] = {"value", "past_key_values.%u.", CACHE},
};

/* The memory of a trace: this, then its tensors, indices, heads and data. */
typedef struct trace {
    attn_trace public; /* first */
    _Atomic uint32_t references;
    size_t bytes, n_layers;
    attn_trace_tensor *tensors;
    /* [n_layers][ATTN_TENSOR_KINDS] 1 + index of a tensor, or 0 */
    uint32_t *index;
} trace;

static _Atomic uint64_t all_bytes;

/* -------------------------------------------------------------------------------- names */

const char *attn_tensor_kind_name(attn_tensor_kind kind)
{
    return kinds[kind].name;
}

attn_tensor_kind attn_tensor_kind_find(const char *name, size_t len)
{
    for (int kind = 0; kind < ATTN_TENSOR_KINDS; kind++) {
        if (strlen(kinds[kind].name) == len && memcmp(kinds[kind].name, name, len) == 0)
            return (attn_tensor_kind)kind;
    }
    return ATTN_TENSOR_KINDS;
}

/* "blocks.3.attn." of "blocks.%u.attn.": what is before the layer, the layer, what is after it. */
static size_t write_prefix(const char *prefix, uint32_t layer, char name[ATTN_TENSOR_NAME_MAX])
{
    if (prefix == NULL)
        return 0;
    const char *mark = strchr(prefix, '%');
    return (size_t)snprintf(name, ATTN_TENSOR_NAME_MAX, "%.*s%u%s", (int)(mark - prefix), prefix,
                            (unsigned)layer, mark + 2);
}

size_t attn_tensor_name(attn_tensor_kind kind, uint32_t layer, char name[ATTN_TENSOR_NAME_MAX])
{
    size_t n = write_prefix(kinds[kind].prefix, layer, name);
    return n + (size_t)snprintf(name + n, ATTN_TENSOR_NAME_MAX - n, "%s", kinds[kind].name);
}

/* The number at *p, of 1 to 9 digits without leading zeros. */
static bool read_layer(const char **p, uint32_t *layer)
{
    size_t digits = strspn(*p, "0123456789");
    if (digits == 0 || digits > 9 || (digits > 1 && **p == '0'))
        return false;
    *layer = 0;
    for (; digits > 0; digits--)
        *layer = *layer * 10 + (uint32_t)(*(*p)++ - '0');
    return true;
}

bool attn_tensor_parse(const char *name, attn_tensor_kind *kind, uint32_t *layer)
{
    for (int k = 0; k < ATTN_TENSOR_KINDS; k++) {
        const char *p = name, *prefix = kinds[k].prefix;
        *layer = 0;
        if (prefix != NULL) {
            size_t before = (size_t)(strchr(prefix, '%') - prefix),
                   after = strlen(prefix + before + 2);
            if (strncmp(p, prefix, before) != 0)
                continue;
            p += before;
            if (!read_layer(&p, layer) || strncmp(p, prefix + before + 2, after) != 0)
                continue;
            p += after;
        }
        if (strcmp(p, kinds[k].name) == 0) {
            *kind = (attn_tensor_kind)k;
            return true;
        }
    }
    return false;
}

bool attn_tensor_has_heads(attn_tensor_kind kind)
{
    return kinds[kind].axes == HEADS || kinds[kind].axes == KEYS;
}

bool attn_tensor_has_kv_heads(attn_tensor_kind kind)
{
    return kinds[kind].axes == KV_HEADS || kinds[kind].axes == CACHE;
}

bool attn_tensor_has_keys(attn_tensor_kind kind)
{
    return kinds[kind].axes == KEYS || kinds[kind].axes == CACHE;
}

/* --------------------------------------------------------------------------- selections */

static bool has_kind(const attn_config *c, attn_tensor_kind kind)
{
    if (kind == ATTN_TENSOR_Q_NORMED || kind == ATTN_TENSOR_K_NORMED)
        return c->qk_norm;
    if (kind == ATTN_TENSOR_RESID_MID || kind == ATTN_TENSOR_MLP_OUT ||
        kind == ATTN_TENSOR_RESID_POST)
        return attn_config_is_decoder(c);
    return kind < ATTN_TENSOR_KINDS;
}

static attn_status check_choice(const attn_choice *choice, bool some, uint32_t limit,
                                const char *param, attn_error *err)
{
    bool any = !some;
    for (size_t i = 0; some && i < ATTN_CHOICE_MAX; i++) {
        if (!attn_choice_has(choice, i))
            continue;
        any = true;
        if (i >= limit) {
            attn_fail(err, ATTN_E_TENSOR_NOT_FOUND, param, "the model has not so many");
            attn_error_detail(err, "limit", limit);
            return ATTN_E_TENSOR_NOT_FOUND;
        }
    }
    return any ? ATTN_OK : attn_fail(err, ATTN_E_INVALID, param, "at least one is needed");
}

attn_status attn_trace_check(const attn_config *c, const attn_selection *s, attn_error *err)
{
    if (s->tensors == 0)
        return attn_fail(err, ATTN_E_INVALID, "tensors", "at least one is needed");
    for (int kind = 0; kind < 32; kind++) {
        if ((s->tensors >> kind & 1) != 0 && !has_kind(c, (attn_tensor_kind)kind))
            return attn_fail(err, ATTN_E_TENSOR_NOT_FOUND, "tensors",
                             "this model has no such tensor");
    }
    attn_status status =
        check_choice(&s->layers, s->some_layers, c->num_hidden_layers, "layers", err);
    if (status != ATTN_OK)
        return status;
    return check_choice(&s->heads, s->some_heads, c->num_attention_heads, "heads", err);
}

attn_status attn_trace_check_step(const attn_config *c, const attn_selection *s, attn_error *err)
{
    if ((s->tensors & (1u << ATTN_TENSOR_KEY | 1u << ATTN_TENSOR_VALUE)) != 0)
        return attn_fail(err, ATTN_E_INVALID, "tensors",
                         "a trace has no cache tensors: look at them in the session");
    return attn_trace_check(c, s, err);
}

void attn_trace_choose(const attn_config *c, const attn_selection *s, attn_trace_heads *heads)
{
    const uint32_t group = c->num_attention_heads / c->num_key_value_heads;
    heads->n = heads->n_kv = 0;
    for (uint32_t h = 0; h < c->num_attention_heads && h < ATTN_CHOICE_MAX; h++) {
        if (s->some_heads && !attn_choice_has(&s->heads, h))
            continue;
        heads->query[heads->n++] = h;
        if (heads->n_kv == 0 || heads->kv[heads->n_kv - 1] != h / group)
            heads->kv[heads->n_kv++] = h / group;
    }
}

static bool has_layer(const attn_selection *s, attn_tensor_kind kind, size_t layer)
{
    if (kinds[kind].prefix == NULL)
        return layer == 0;
    return layer < ATTN_CHOICE_MAX && (!s->some_layers || attn_choice_has(&s->layers, layer));
}

static void set_shape(attn_trace_tensor *t, const attn_config *c, const attn_selection *s,
                      const attn_trace_heads *heads, uint64_t n_rows, uint64_t n_keys)
{
    n_rows = (s->last_rows >> t->kind & 1) != 0 ? 1 : n_rows;
    switch (kinds[t->kind].axes) {
    case ROW:
        t->n_dims = 2;
        t->shape[0] = n_rows;
        t->shape[1] = c->hidden_size;
        t->shape[2] = 1;
        return;
    case KEYS:
        t->n_dims = 3;
        t->shape[0] = heads->n;
        t->shape[1] = n_rows;
        t->shape[2] = n_keys;
        return;
    case HEADS:
    case KV_HEADS:
    case CACHE:
        t->n_dims = 3;
        t->shape[0] = kinds[t->kind].axes == CACHE ? n_keys : n_rows;
        t->shape[1] = kinds[t->kind].axes == HEADS ? heads->n : heads->n_kv;
        t->shape[2] = c->head_dim;
        return;
    }
}

/* The number of the selection's tensors, and of the floats of all. */
static size_t measure(const attn_config *c, const attn_selection *s, const attn_trace_heads *heads,
                      uint64_t n_rows, uint64_t n_keys, uint64_t *n_floats)
{
    size_t n = 0;
    *n_floats = 0;
    for (size_t layer = 0; layer < c->num_hidden_layers; layer++) {
        for (int kind = 0; kind < ATTN_TENSOR_KINDS; kind++) {
            attn_trace_tensor t = {.kind = (attn_tensor_kind)kind};
            if ((s->tensors >> kind & 1) == 0 || !has_layer(s, t.kind, layer))
                continue;
            set_shape(&t, c, s, heads, n_rows, n_keys);
            uint64_t floats;
            if (__builtin_mul_overflow(t.shape[0], t.shape[1], &floats) ||
                __builtin_mul_overflow(floats, t.shape[2], &floats) ||
                __builtin_add_overflow(*n_floats, floats, n_floats) || *n_floats > UINT64_MAX / 8)
                *n_floats = UINT64_MAX / 8;
            n++;
        }
    }
    return n;
}

uint64_t attn_trace_bytes(const attn_config *c, const attn_selection *s,
                          const attn_trace_heads *heads, uint64_t n_rows, uint64_t n_keys)
{
    uint64_t n_floats;
    measure(c, s, heads, n_rows, n_keys, &n_floats);
    return n_floats * sizeof(float);
}

/* ------------------------------------------------------------------------------- traces */

/* What causality hides: keys after each row's own. */
static void mask(const attn_trace *t, const attn_trace_tensor *tensor, float *data)
{
    const float hidden = tensor->kind == ATTN_TENSOR_SCORES ? -INFINITY : 0.0f;
    for (uint64_t h = 0; h < tensor->shape[0]; h++) {
        for (uint64_t r = 0; r < tensor->shape[1]; r++) {
            float *row = data + (h * tensor->shape[1] + r) * tensor->shape[2];
            uint64_t end = t->position + (t->n_rows - tensor->shape[1]) + r + 1;
            for (uint64_t k = end > t->first_key ? end - t->first_key : 0; k < t->n_keys; k++)
                row[k] = hidden;
        }
    }
}

attn_trace *attn_trace_create(const attn_config *c, const attn_selection *s,
                              const attn_trace_heads *heads, uint64_t position, size_t n_rows,
                              uint64_t first_key, uint64_t n_keys)
{
    uint64_t n_floats;
    size_t n = measure(c, s, heads, n_rows, n_keys, &n_floats);
    size_t n_index = (size_t)c->num_hidden_layers * ATTN_TENSOR_KINDS;
    size_t words = n_index + heads->n + heads->n_kv;
    if (n_floats * sizeof(float) > ATTN_TRACE_BYTES_MAX)
        return NULL;
    const size_t bytes = sizeof(trace) + n * sizeof(attn_trace_tensor) + words * sizeof(uint32_t) +
                         n_floats * sizeof(float);
    const bool fits = atomic_fetch_add(&all_bytes, bytes) + bytes <= ATTN_TRACES_BYTES_MAX;
    trace *t = fits ? attn_alloc(1, bytes) : NULL;
    if (t == NULL) {
        all_bytes -= bytes;
        return NULL;
    }
    t->bytes = bytes;
    t->tensors = (attn_trace_tensor *)(t + 1);
    t->index = (uint32_t *)(t->tensors + n);
    uint32_t *query = t->index + n_index, *kv = query + heads->n;
    memcpy(query, heads->query, heads->n * sizeof *query);
    memcpy(kv, heads->kv, heads->n_kv * sizeof *kv);
    t->references = 1;
    t->n_layers = c->num_hidden_layers;
    t->public = (attn_trace){
        .position = position,
        .n_rows = n_rows,
        .first_key = first_key,
        .n_keys = n_keys,
        .n_heads = heads->n,
        .n_kv_heads = heads->n_kv,
        .heads = query,
        .kv_heads = kv,
        .group = c->num_attention_heads / c->num_key_value_heads,
        .tensors = t->tensors,
    };
    float *data = (float *)(kv + heads->n_kv);
    for (size_t layer = 0; layer < c->num_hidden_layers; layer++) {
        for (int kind = 0; kind < ATTN_TENSOR_KINDS; kind++) {
            if ((s->tensors >> kind & 1) == 0 || !has_layer(s, (attn_tensor_kind)kind, layer))
                continue;
            attn_trace_tensor *tensor = &t->tensors[t->public.n_tensors++];
            *tensor = (attn_trace_tensor){
                .kind = (attn_tensor_kind)kind, .layer = (uint32_t)layer, .data = data};
            t->index[layer * ATTN_TENSOR_KINDS + (size_t)kind] = (uint32_t)t->public.n_tensors;
            set_shape(tensor, c, s, heads, n_rows, n_keys);
            if (kinds[kind].axes == KEYS)
                mask(&t->public, tensor, data);
            data += tensor->shape[0] * tensor->shape[1] * tensor->shape[2];
        }
    }
    return &t->public;
}

attn_trace *attn_trace_retain(attn_trace *public)
{
    ((trace *)public)->references++;
    return public;
}

void attn_trace_release(attn_trace *public)
{
    trace *t = (trace *)public;
    if (t == NULL || --t->references > 0)
        return;
    all_bytes -= t->bytes;
    attn_free(t);
}

uint64_t attn_trace_all_bytes(void)
{
    return all_bytes;
}

double attn_trace_cost(const attn_trace *t, size_t head_dim)
{
    double cost = 0;
    for (size_t i = 0; i < t->n_tensors; i++) {
        const attn_trace_tensor *tensor = &t->tensors[i];
        cost += (double)(tensor->shape[0] * tensor->shape[1] * tensor->shape[2]) *
                (kinds[tensor->kind].axes == KEYS ? (double)head_dim : 1.0);
    }
    return cost;
}

/* The tensor's memory, or NULL. */
static float *find(attn_trace *public, attn_tensor_kind kind, size_t layer,
                   const attn_trace_tensor **tensor)
{
    trace *t = (trace *)public;
    uint32_t i = layer < t->n_layers ? t->index[layer * ATTN_TENSOR_KINDS + (size_t)kind] : 0;
    if (i == 0)
        return NULL;
    *tensor = &t->tensors[i - 1];
    return (float *)t + ((*tensor)->data - (const float *)t);
}

bool attn_trace_has(const attn_trace *public, attn_tensor_kind kind, size_t layer)
{
    const trace *t = (const trace *)public;
    return layer < t->n_layers && t->index[layer * ATTN_TENSOR_KINDS + (size_t)kind] != 0;
}

size_t attn_trace_layers(const attn_trace *t)
{
    /* Tensors stand by layer; the embedding needs none. */
    const attn_trace_tensor *last = t->n_tensors > 0 ? &t->tensors[t->n_tensors - 1] : NULL;
    return last == NULL || kinds[last->kind].prefix == NULL ? 0 : last->layer + (size_t)1;
}

/* The row of a position in a tensor that has the last n rows. */
static bool find_row(const attn_trace *t, uint64_t n, uint64_t position, uint64_t *r)
{
    const uint64_t end = t->position + t->n_rows;
    *r = position - (end - n);
    return position < end && position >= end - n;
}

void attn_trace_row(attn_trace *t, attn_tensor_kind kind, size_t layer, uint64_t position,
                    const float *row, size_t head_dim)
{
    const attn_trace_tensor *tensor;
    float *data = find(t, kind, layer, &tensor);
    uint64_t r;
    if (data == NULL || !find_row(t, tensor->shape[0], position, &r))
        return;
    if (kinds[kind].axes == ROW) {
        memcpy(data + r * tensor->shape[1], row, tensor->shape[1] * sizeof *row);
        return;
    }
    const uint32_t *heads = attn_tensor_has_heads(kind) ? t->heads : t->kv_heads;
    float *to = data + r * tensor->shape[1] * head_dim;
    for (uint64_t h = 0; h < tensor->shape[1]; h++)
        memcpy(to + h * head_dim, row + heads[h] * head_dim, head_dim * sizeof *row);
}

float *attn_trace_keys(attn_trace *t, attn_tensor_kind kind, size_t layer, uint64_t position,
                       size_t head)
{
    const attn_trace_tensor *tensor;
    float *data = find(t, kind, layer, &tensor);
    uint64_t r;
    if (data == NULL || !find_row(t, tensor->shape[1], position, &r))
        return NULL;
    return data + (head * tensor->shape[1] + r) * t->n_keys;
}

float *attn_trace_cache_row(attn_trace *t, attn_tensor_kind kind, size_t layer, uint64_t key)
{
    const attn_trace_tensor *tensor;
    float *data = find(t, kind, layer, &tensor);
    if (data == NULL || key < t->first_key || key - t->first_key >= t->n_keys)
        return NULL;
    return data + (key - t->first_key) * tensor->shape[1] * tensor->shape[2];
}
