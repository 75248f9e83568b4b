#include "server/tensors.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/json/json_write.h"

/* ------------------------------------------------------------------------------- asking */

/* Digits of a number below ATTN_CHOICE_MAX. */
static bool read_number(const char **p, size_t *number)
{
    size_t n = strspn(*p, "0123456789");
    if (n == 0 || n > 4)
        return false;
    for (*number = 0; n > 0; n--)
        *number = *number * 10 + (size_t)(*(*p)++ - '0');
    return *number < ATTN_CHOICE_MAX;
}

bool srv_choice_parse(const char *p, attn_choice *choice)
{
    memset(choice, 0, sizeof(*choice));
    for (;; p++) {
        size_t first, last;
        if (!read_number(&p, &first))
            return false;
        last = first;
        if (*p == '-') {
            p++;
            if (!read_number(&p, &last) || last < first)
                return false;
        }
        for (size_t i = first; i <= last; i++)
            attn_choice_add(choice, i);
        if (*p != ',')
            return *p == '\0';
    }
}

static bool add_name(const char *name, size_t len, uint32_t *tensors)
{
    attn_tensor_kind kind = attn_tensor_kind_find(name, len);
    if (kind == ATTN_TENSOR_KINDS || (*tensors >> kind & 1))
        return false;
    *tensors |= 1u << kind;
    return true;
}

bool srv_tensor_names_parse(const char *p, uint32_t *tensors)
{
    *tensors = 0;
    for (;; p++) {
        size_t len = strcspn(p, ",");
        if (!add_name(p, len, tensors))
            return false;
        p += len;
        if (!*p)
            return true;
    }
}

bool srv_tensor_dtype_parse(const char *dtype, bool *u8)
{
    *u8 = !strcmp(dtype, "U8");
    return *u8 || !strcmp(dtype, "F32");
}

enum { TENSORS, LAYERS, HEADS, TOP_K, DTYPE, COUNT };

static const srv_json_field fields[COUNT] = {
    [TENSORS] = {"tensors", SRV_JSON_STRINGS, false, 0, ATTN_TENSOR_KINDS},
    [LAYERS] = {"layers", SRV_JSON_INTEGERS, false, 1, ATTN_CHOICE_MAX},
    [HEADS] = {"heads", SRV_JSON_INTEGERS, false, 1, ATTN_CHOICE_MAX},
    [TOP_K] = {"top_k", SRV_JSON_INTEGER, false, 0, SRV_TOP_K_MAX},
    [DTYPE] = {"dtype", SRV_JSON_STRING, false, 0, SIZE_MAX},
};

static bool read_choice(const srv_json_value *value, bool *some, attn_choice *choice)
{
    *some = value->present;
    for (size_t i = 0; *some && i < value->integers.count; i++) {
        if (value->integers.values[i] >= ATTN_CHOICE_MAX)
            return false;
        attn_choice_add(choice, (size_t)value->integers.values[i]);
    }
    return true;
}

/* Names the field that is wrong, or NULL. */
static const char *read_fields(const srv_json_value *v, srv_trace *t)
{
    for (size_t i = 0; v[TENSORS].present && i < v[TENSORS].strings.count; i++) {
        const char *name = v[TENSORS].strings.texts[i];
        if (!add_name(name, strlen(name), &t->show.tensors))
            return "tensors";
    }
    if (!read_choice(&v[LAYERS], &t->show.some_layers, &t->show.layers))
        return "layers";
    if (!read_choice(&v[HEADS], &t->show.some_heads, &t->show.heads))
        return "heads";
    if (v[DTYPE].present && !srv_tensor_dtype_parse(v[DTYPE].string.text, &t->u8))
        return "dtype";
    t->top_k = v[TOP_K].present ? v[TOP_K].integer : 0;
    t->capture = t->show;
    if (t->top_k && !(t->show.tensors >> ATTN_TENSOR_PATTERN & 1)) {
        t->capture.tensors |= 1u << ATTN_TENSOR_PATTERN;
        t->capture.last_rows |= 1u << ATTN_TENSOR_PATTERN;
    }
    return t->capture.tensors ? NULL : "tensors";
}

bool srv_trace_read(const srv_json_value *value, srv_trace *t, srv_json_error *error)
{
    srv_json_value v[COUNT];
    memset(t, 0, sizeof(*t));
    if (!srv_json_read(value->string.text, value->string.len, fields, COUNT, v, error)) {
        error->param = error->param ? error->param : "trace";
        error->offset = SIZE_MAX;
        return false;
    }
    const char *wrong = read_fields(v, t);
    srv_json_values_free(fields, COUNT, v);
    if (!wrong)
        return true;
    *error = (srv_json_error){"invalid_request", wrong,
                              "a trace names tensors (as hook_pattern, each once), layers, heads "
                              "and a dtype (F32, U8) that there are",
                              SIZE_MAX};
    return false;
}

/* ------------------------------------------------------------------------------ writing */

/* A tensor as three axes around its heads: [outer, heads, inner]. */
typedef struct view {
    const attn_trace_tensor *tensor;
    bool u8;
    size_t outer, inner;
    size_t n_heads;                  /* chosen ones; 1 of a tensor without heads */
    uint32_t heads[ATTN_CHOICE_MAX]; /* their indices in the tensor */
} view;

/* Whether a head of the trace is shown: a query head, or a KV head that a shown one reads. */
static bool shows_head(const attn_trace *t, const attn_selection *show, bool kv, uint32_t head)
{
    if (!show->some_heads)
        return true;
    if (!kv)
        return attn_choice_has(&show->heads, head);
    for (uint32_t h = head * t->group; h < (head + 1) * t->group; h++) {
        if (attn_choice_has(&show->heads, h))
            return true;
    }
    return false;
}

static bool make_view(const attn_trace *t, const attn_trace_tensor *tensor,
                      const attn_selection *show, bool u8, view *v)
{
    const bool kv = attn_tensor_has_kv_heads(tensor->kind), q = attn_tensor_has_heads(tensor->kind);
    if (!(show->tensors >> tensor->kind & 1) ||
        (show->some_layers && tensor->kind != ATTN_TENSOR_EMBED &&
         !attn_choice_has(&show->layers, tensor->layer)))
        return false;
    v->tensor = tensor;
    v->u8 = u8 && tensor->kind == ATTN_TENSOR_PATTERN;
    v->n_heads = 0;
    if (!kv && !q) {
        v->outer = (size_t)tensor->shape[0];
        v->inner = (size_t)tensor->shape[1];
        v->heads[v->n_heads++] = 0;
        return true;
    }
    const bool heads_first = q && attn_tensor_has_keys(tensor->kind);
    v->outer = heads_first ? 1 : (size_t)tensor->shape[0];
    v->inner = (size_t)(heads_first ? tensor->shape[1] * tensor->shape[2] : tensor->shape[2]);
    const uint32_t *heads = kv ? t->kv_heads : t->heads;
    size_t n = kv ? t->n_kv_heads : t->n_heads;
    for (size_t i = 0; i < n; i++) {
        if (shows_head(t, show, kv, heads[i]))
            v->heads[v->n_heads++] = (uint32_t)i;
    }
    return true;
}

static uint64_t view_bytes(const view *v)
{
    return (uint64_t)v->outer * v->n_heads * v->inner * (v->u8 ? 1 : sizeof(float));
}

static uint8_t quantize(float p)
{
    return (uint8_t)(255.0f * sqrtf(p) + 0.5f);
}

static void put_data(srv_buf *b, const view *v)
{
    const size_t all =
        (size_t)(attn_tensor_has_heads(v->tensor->kind) || attn_tensor_has_kv_heads(v->tensor->kind)
                     ? v->tensor->shape[v->outer == 1 && attn_tensor_has_keys(v->tensor->kind) &&
                                                attn_tensor_has_heads(v->tensor->kind)
                                            ? 0
                                            : 1]
                     : 1);
    for (size_t o = 0; o < v->outer; o++) {
        for (size_t h = 0; h < v->n_heads; h++) {
            const float *from = v->tensor->data + (o * all + v->heads[h]) * v->inner;
            if (!v->u8) {
                srv_buf_append(b, from, v->inner * sizeof(float));
                continue;
            }
            char *to = srv_buf_reserve(b, v->inner);
            for (size_t i = 0; to && i < v->inner; i++)
                to[i] = (char)quantize(from[i]);
            if (to)
                srv_buf_commit(b, v->inner);
        }
    }
}

/* "0,1,5": which heads of the trace are shown. */
static void put_heads(srv_blob *blob, const attn_trace *t, const attn_selection *show, bool kv)
{
    const uint32_t *heads = kv ? t->kv_heads : t->heads;
    size_t n = kv ? t->n_kv_heads : t->n_heads;
    srv_buf list;
    srv_buf_init(&list, SIZE_MAX);
    for (size_t i = 0; i < n; i++) {
        if (shows_head(t, show, kv, heads[i]))
            srv_buf_printf(&list, "%s%" PRIu32, list.len ? "," : "", heads[i]);
    }
    srv_blob_text(blob, kv ? "kv_heads" : "heads", list.len ? list.data : "", list.len);
    blob->b->failed |= list.failed;
    srv_buf_free(&list);
}

/* The axes that the tensors shown have: what of a trace is to be told. */
typedef struct axes {
    bool positions, keys, heads, kv_heads;
} axes;

static axes find_axes(const attn_trace *t, const attn_selection *show)
{
    axes a = {0};
    bool any = false;
    for (size_t i = 0; i < t->n_tensors; i++) {
        const attn_tensor_kind kind = t->tensors[i].kind;
        view v;
        if (!make_view(t, &t->tensors[i], show, false, &v))
            continue;
        const bool keys = attn_tensor_has_keys(kind), heads = attn_tensor_has_heads(kind);
        any = true;
        a.keys |= keys;
        a.heads |= heads;
        a.kv_heads |= attn_tensor_has_kv_heads(kind);
        a.positions |= !keys || heads; /* not the cache's */
    }
    a.positions |= !any;
    return a;
}

void srv_trace_put_metadata(srv_blob *blob, const attn_trace *t, const attn_selection *show,
                            bool u8)
{
    const axes a = find_axes(t, show);
    if (a.positions)
        srv_blob_number(blob, "position", t->position);
    if (a.keys)
        srv_blob_number(blob, "first_key", t->first_key);
    if (a.heads)
        put_heads(blob, t, show, false);
    if (a.kv_heads)
        put_heads(blob, t, show, true);
    for (size_t i = 0; u8 && i < t->n_tensors; i++) {
        view v;
        char name[sizeof("quant.") + ATTN_TENSOR_NAME_MAX] = "quant.";
        if (!make_view(t, &t->tensors[i], show, u8, &v) || !v.u8)
            continue;
        attn_tensor_name(t->tensors[i].kind, t->tensors[i].layer, name + strlen(name));
        srv_blob_text(blob, name, "sqrt255", strlen("sqrt255"));
    }
}

static void put_entry(srv_blob *blob, const view *v)
{
    char name[ATTN_TENSOR_NAME_MAX];
    const attn_trace_tensor *t = v->tensor;
    const bool heads_first = attn_tensor_has_keys(t->kind) && attn_tensor_has_heads(t->kind);
    uint64_t shape[3] = {t->shape[0], t->shape[1], t->shape[2]};
    if (t->n_dims == 3)
        shape[heads_first ? 0 : 1] = v->n_heads;
    attn_tensor_name(t->kind, t->layer, name);
    srv_blob_tensor(blob, name, v->u8 ? "U8" : "F32", shape, t->n_dims, view_bytes(v));
}

/* F32 first, so that it lies aligned. */

void srv_trace_put_entries(srv_blob *blob, const attn_trace *t, const attn_selection *show, bool u8)
{
    for (int bytes = 0; bytes < 2; bytes++) {
        for (size_t i = 0; i < t->n_tensors; i++) {
            view v;
            if (make_view(t, &t->tensors[i], show, u8, &v) && v.u8 == (bytes == 1))
                put_entry(blob, &v);
        }
    }
}

void srv_trace_put_data(srv_buf *b, const attn_trace *t, const attn_selection *show, bool u8)
{
    for (int bytes = 0; bytes < 2; bytes++) {
        for (size_t i = 0; i < t->n_tensors; i++) {
            view v;
            if (make_view(t, &t->tensors[i], show, u8, &v) && v.u8 == (bytes == 1))
                put_data(b, &v);
        }
    }
}

void srv_tensors_write(srv_buf *b, const attn_trace *t, const attn_selection *show, bool u8,
                       const srv_metadata *metadata, size_t n_metadata)
{
    srv_blob blob = srv_blob_begin(b);
    srv_trace_put_metadata(&blob, t, show, u8);
    for (size_t i = 0; i < n_metadata; i++)
        srv_blob_text(&blob, metadata[i].name, metadata[i].value, strlen(metadata[i].value));
    srv_trace_put_entries(&blob, t, show, u8);
    srv_blob_end_header(&blob);
    srv_trace_put_data(b, t, show, u8);
}

/* What a blob has besides its numbers, for each tensor and in all. */
#define ENTRY_BYTES 192
#define BLOB_BYTES 4096

uint64_t srv_tensors_bytes(const attn_trace *t)
{
    uint64_t n = BLOB_BYTES;
    for (size_t i = 0; i < t->n_tensors; i++)
        n += ENTRY_BYTES +
             t->tensors[i].shape[0] * t->tensors[i].shape[1] * t->tensors[i].shape[2] * 4;
    return n;
}

void srv_base64(srv_buf *b, const void *bytes, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *from = bytes;
    char *to = srv_buf_reserve(b, (n + 2) / 3 * 4);
    if (!to)
        return;
    for (size_t i = 0; i < n; i += 3, to += 4) {
        unsigned bits = (unsigned)from[i] << 16;
        bits |= i + 1 < n ? (unsigned)from[i + 1] << 8 : 0;
        bits |= i + 2 < n ? (unsigned)from[i + 2] : 0;
        to[0] = digits[bits >> 18];
        to[1] = digits[bits >> 12 & 63];
        to[2] = i + 1 < n ? digits[bits >> 6 & 63] : '=';
        to[3] = i + 2 < n ? digits[bits & 63] : '=';
    }
    srv_buf_commit(b, (n + 2) / 3 * 4);
}

/* The k largest weights of a row, largest first, the earlier key of equals. Returns how many. */
static size_t find_top(const float *row, size_t n, size_t k, uint64_t *keys)
{
    size_t found = 0;
    for (size_t i = 0; i < n; i++) {
        if (found == k && !(row[i] > row[keys[found - 1]]))
            continue;
        size_t at = found < k ? found++ : found - 1;
        for (; at > 0 && row[i] > row[keys[at - 1]]; at--)
            keys[at] = keys[at - 1];
        keys[at] = i;
    }
    return found;
}

static void put_top(srv_buf *b, const attn_trace *t, const attn_trace_tensor *pattern, size_t head,
                    size_t k)
{
    uint64_t keys[SRV_TOP_K_MAX];
    const size_t n = (size_t)pattern->shape[2];
    const float *row = pattern->data + ((head + 1) * (size_t)pattern->shape[1] - 1) * n;
    size_t found = find_top(row, n, k, keys);
    srv_buf_printf(b, "{\"layer\":%" PRIu32 ",\"head\":%" PRIu32 ",\"keys\":[", pattern->layer,
                   t->heads[head]);
    for (size_t i = 0; i < found; i++)
        srv_buf_printf(b, "%s%" PRIu64, i ? "," : "", t->first_key + keys[i]);
    srv_buf_puts(b, "],\"weights\":[");
    for (size_t i = 0; i < found; i++) {
        if (i)
            srv_buf_puts(b, ",");
        srv_json_float(b, row[keys[i]]);
    }
    srv_buf_puts(b, "]}");
}

void srv_wire_top_k(srv_buf *b, const attn_trace *t, size_t k)
{
    const char *comma = "";
    srv_buf_puts(b, "[");
    for (size_t i = 0; i < t->n_tensors; i++) {
        for (size_t h = 0; t->tensors[i].kind == ATTN_TENSOR_PATTERN && h < t->n_heads; h++) {
            srv_buf_puts(b, comma);
            put_top(b, t, &t->tensors[i], h, k);
            comma = ",";
        }
    }
    srv_buf_puts(b, "]");
}

void srv_wire_trace(srv_buf *b, const attn_trace *t, const srv_trace *asked)
{
    if (asked->show.tensors) {
        srv_buf blob;
        srv_buf_init(&blob, SIZE_MAX);
        srv_tensors_write(&blob, t, &asked->show, asked->u8, NULL, 0);
        srv_buf_puts(b, ",\"tensors\":\"");
        if (!blob.failed)
            srv_base64(b, blob.data, blob.len);
        b->failed |= blob.failed;
        srv_buf_free(&blob);
        srv_buf_puts(b, "\"");
    }
    if (asked->top_k) {
        srv_buf_puts(b, ",\"top_k\":");
        srv_wire_top_k(b, t, (size_t)asked->top_k);
    }
}

uint64_t srv_trace_text_bytes(const attn_trace *t, const srv_trace *asked)
{
    uint64_t n = asked->show.tensors ? srv_tensors_bytes(t) / 3 * 4 : 0;
    return n + asked->top_k * t->n_heads * t->n_tensors * 48;
}

static void put_number(srv_buf *b, float v, bool u8)
{
    if (u8)
        srv_buf_printf(b, "%u", (unsigned)quantize(v));
    else if (isinf(v) && v < 0)
        srv_buf_puts(b, "\"-inf\"");
    else
        srv_json_float(b, v);
}

void srv_wire_tensor(srv_buf *b, const attn_trace_tensor *t, bool u8)
{
    const size_t rows = (size_t)t->shape[1], columns = t->n_dims == 3 ? (size_t)t->shape[2] : 1;
    const float *v = t->data;
    for (size_t i = 0; i < t->shape[0]; i++) {
        srv_buf_puts(b, i ? ",[" : "[[");
        for (size_t j = 0; j < rows; j++) {
            srv_buf_puts(b, t->n_dims == 3 ? j ? ",[" : "[" : j ? "," : "");
            for (size_t k = 0; k < columns; k++) {
                if (k)
                    srv_buf_puts(b, ",");
                put_number(b, *v++, u8);
            }
            if (t->n_dims == 3)
                srv_buf_puts(b, "]");
        }
        srv_buf_puts(b, "]");
    }
    srv_buf_puts(b, t->shape[0] ? "]" : "[]");
}
