#include "engine/model/tokenizer_pattern.h"

#include "engine/model/tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

/* Steps of one match attempt. Linear expressions need a few per byte of text; one that would
 * explode is stopped after a fraction of a second. Memory is for expressions that repeat groups. */
#define MATCH_STEPS_MAX (5 * ATTN_TOKENIZER_TEXT_MAX)
#define MATCH_KIB_MAX 65536u
#define PATTERN_MAX 65536u

struct attn_pattern {
    char *literal; /* NULL: a regular expression */
    size_t literal_len;
    pcre2_code *code;
    pcre2_match_context *limits;
};

/* --------------------------------------------------------------------------- Oniguruma to PCRE2 */

typedef struct translation {
    const char *at; /* NUL-terminated */
    attn_text out;
    bool no_memory;
} translation;

static void put(translation *t, const char *bytes, size_t len)
{
    t->no_memory |= !attn_text_append(&t->out, bytes, len);
}

static void put_string(translation *t, const char *string)
{
    put(t, string, strlen(string));
}

/* \p{..}: general categories are the same; PCRE2 takes a script's bare name to include its
 * extensions, Oniguruma does not. Returns what is wrong, or NULL. */
static const char *translate_property(translation *t)
{
    const char *name = t->at + 2;
    if (*name != '{')
        return "has a \\p without braces";
    name++;
    bool negated = *name == '^';
    name += negated;
    size_t len = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_");
    if (len == 0 || name[len] != '}')
        return "has a \\p{} that is not supported";
    put(t, t->at, 3);
    put_string(t, negated ? "^" : "");
    put_string(t, len > 2 ? "sc:" : "");
    put(t, name, len + 1);
    t->at = name + len + 1;
    return NULL;
}

static bool is_hex(char c)
{
    return c != '\0' && strchr("0123456789abcdefABCDEF", c) != NULL;
}

/* One escape. The classes are Oniguruma's for Unicode, which PCRE2's \s, \w and \v are not. */
static const char *translate_escape(translation *t, bool in_class)
{
    static const char word[] = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
    char c = t->at[1];
    size_t used = 2;
    switch (c) {
    case '\0':
        return "ends with a backslash";
    case 'p':
    case 'P':
        return translate_property(t);
    case 's':
        put_string(t, "\\p{White_Space}");
        break;
    case 'S':
        put_string(t, "\\P{White_Space}");
        break;
    case 'w':
    case 'W':
        if (c == 'W' && in_class)
            return "has \\W in brackets, which is not supported";
        put_string(t, in_class ? "" : c == 'w' ? "[" : "[^");
        put_string(t, word);
        put_string(t, in_class ? "" : "]");
        break;
    case 'v':
        put_string(t, "\\x{0b}");
        break;
    case 'u':
        for (; used < 6; used++) {
            if (!is_hex(t->at[used]))
                return "has a \\u without four digits";
        }
        put_string(t, "\\x{");
        put(t, t->at + 2, 4);
        put_string(t, "}");
        break;
    case 'x':
        if (t->at[2] != '{' && (!is_hex(t->at[2]) || !is_hex(t->at[3])))
            return "has a \\x without two digits";
        while (t->at[2] == '{' && t->at[used] != '\0' && t->at[used++] != '}')
            ;
        put(t, t->at, used);
        break;
    default:
        if (((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) &&
            strchr("dDnrtfae", c) == NULL)
            return "has an escape that is not supported";
        put(t, t->at, 2);
    }
    t->at += used;
    return NULL;
}

/* A bracket class. Nested ones and && mean something else in PCRE2. */
static const char *translate_class(translation *t)
{
    size_t open = t->at[1] == '^' ? 2 : 1;
    put(t, t->at, open);
    t->at += open;
    if (*t->at == ']')
        return "has empty brackets";
    while (*t->at != '\0') {
        if (*t->at == '[' || (t->at[0] == '&' && t->at[1] == '&'))
            return "has brackets within brackets or &&, which is not supported";
        if (*t->at == '\\') {
            const char *problem = translate_escape(t, true);
            if (problem != NULL)
                return problem;
            continue;
        }
        put(t, t->at++, 1);
        if (t->at[-1] == ']')
            return NULL;
    }
    return "has a bracket that is not closed";
}

static const char *translate_group(translation *t)
{
    static const char *const known[] = {"(?:", "(?i:", "(?=", "(?!", "(?>", "(?<=", "(?<!"};
    if (t->at[1] == '*')
        return "has a (* that is not supported";
    if (t->at[1] != '?') {
        put(t, t->at++, 1);
        return NULL;
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        size_t len = strlen(known[i]);
        if (strncmp(t->at, known[i], len) == 0) {
            put(t, t->at, len);
            t->at += len;
            return NULL;
        }
    }
    return "has a kind of group that is not supported";
}

static const char *translate(translation *t)
{
    while (*t->at != '\0') {
        const char *problem = NULL;
        if (*t->at == '\\')
            problem = translate_escape(t, false);
        else if (*t->at == '[')
            problem = translate_class(t);
        else if (*t->at == '(')
            problem = translate_group(t);
        else if (t->at[0] == '{' && t->at[1] == ',')
            problem = "has a {, that is not supported";
        else if (t->at[0] == '}' && (t->at[1] == '+' || t->at[1] == '?'))
            problem = "has a }+ or }? that is not supported";
        else
            put(t, t->at++, 1);
        if (problem != NULL)
            return problem;
    }
    return NULL;
}

/* ----------------------------------------------------------------------------------- life cycle */

static attn_status compile(const attn_reader *reader, const char *what, const attn_text *text,
                           attn_pattern *pattern)
{
    int problem;
    PCRE2_SIZE offset;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    pattern->limits = pcre2_match_context_create(NULL);
    if (context == NULL || pattern->limits == NULL) {
        pcre2_compile_context_free(context);
        return attn_read_no_memory(reader);
    }
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_max_pattern_length(context, PATTERN_MAX);
    pcre2_set_match_limit(pattern->limits, MATCH_STEPS_MAX);
    pcre2_set_heap_limit(pattern->limits, MATCH_KIB_MAX);
    pattern->code = pcre2_compile((PCRE2_SPTR)text->data, text->len,
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_AUTO_CAPTURE,
                                  &problem, &offset, context);
    pcre2_compile_context_free(context);
    if (pattern->code == NULL && problem == PCRE2_ERROR_HEAP_FAILED)
        return attn_read_no_memory(reader);
    if (pattern->code == NULL) {
        PCRE2_UCHAR message[128];
        pcre2_get_error_message(problem, message, sizeof message);
        return attn_fail(reader->err, ATTN_E_FORMAT, NULL,
                         "%s: %.80s: the regular expression is not supported: %s", reader->label,
                         what, (const char *)message);
    }
    /* Where the system allows no generated code, the same matches come slower. */
    pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE);
    return ATTN_OK;
}

attn_pattern *attn_pattern_regex(const attn_reader *reader, const char *regex, const char *what)
{
    translation t = {.at = regex};
    attn_pattern *pattern = attn_alloc(1, sizeof *pattern);
    const char *problem = *regex == '\0' ? "is empty" : translate(&t);
    attn_status status;
    if (pattern == NULL || t.no_memory)
        status = attn_read_no_memory(reader);
    else if (problem != NULL)
        status = attn_fail(reader->err, ATTN_E_FORMAT, NULL, "%s: %.80s: the regular expression %s",
                           reader->label, what, problem);
    else
        status = compile(reader, what, &t.out, pattern);
    attn_text_free(&t.out);
    if (status != ATTN_OK) {
        attn_pattern_free(pattern);
        pattern = NULL;
    }
    return pattern;
}

attn_pattern *attn_pattern_literal(const attn_reader *reader, const char *literal, const char *what)
{
    if (*literal == '\0') {
        attn_read_fail(reader, what, "has an empty pattern");
        return NULL;
    }
    attn_pattern *pattern = attn_alloc(1, sizeof *pattern);
    if (pattern != NULL)
        pattern->literal = strdup(literal);
    if (pattern == NULL || pattern->literal == NULL) {
        attn_pattern_free(pattern);
        attn_read_no_memory(reader);
        return NULL;
    }
    pattern->literal_len = strlen(literal);
    return pattern;
}

attn_pattern *attn_pattern_read(const attn_reader *reader, const attn_json *node, const char *what)
{
    const char *literal = attn_json_string(attn_json_get(node, "String"));
    const char *regex = attn_json_string(attn_json_get(node, "Regex"));
    if ((literal == NULL) == (regex == NULL) || attn_json_next(attn_json_first(node)) != NULL) {
        attn_read_fail(reader, what, "has a pattern that is neither a String nor a Regex");
        return NULL;
    }
    return literal != NULL ? attn_pattern_literal(reader, literal, what)
                           : attn_pattern_regex(reader, regex, what);
}

void attn_pattern_free(attn_pattern *pattern)
{
    if (pattern == NULL)
        return;
    free(pattern->literal);
    pcre2_code_free(pattern->code);
    pcre2_match_context_free(pattern->limits);
    attn_free(pattern);
}

bool attn_pattern_is_regex(const attn_pattern *pattern)
{
    return pattern->literal == NULL;
}

/* ------------------------------------------------------------------------------------- matching */

attn_match *attn_match_create(void)
{
    return pcre2_match_data_create(1, NULL);
}

void attn_match_free(attn_match *match)
{
    pcre2_match_data_free(match);
}

void attn_matches_start(attn_matches *walk, const attn_pattern *pattern, attn_match *match,
                        const char *text, size_t len)
{
    *walk = (attn_matches){
        .pattern = pattern, .match = match, .text = text, .len = len, .last_end = SIZE_MAX};
}

static attn_status next_literal(attn_matches *walk, bool *found)
{
    const attn_pattern *pattern = walk->pattern;
    const char *at = NULL; /* an empty text may be NULL, which memmem does not take */
    if (walk->from < walk->len)
        at = memmem(walk->text + walk->from, walk->len - walk->from, pattern->literal,
                    pattern->literal_len);
    *found = at != NULL;
    if (at != NULL) {
        walk->start = (size_t)(at - walk->text);
        walk->end = walk->from = walk->start + pattern->literal_len;
    }
    return ATTN_OK;
}

static int match_at(const attn_matches *walk, uint32_t options)
{
    return pcre2_match(walk->pattern->code, (PCRE2_SPTR)walk->text, walk->len, walk->from,
                       PCRE2_NO_UTF_CHECK | options, walk->match, walk->pattern->limits);
}

attn_status attn_matches_next(attn_matches *walk, bool *found, attn_error *err)
{
    if (walk->pattern->literal != NULL)
        return next_literal(walk, found);
    *found = false;
    while (walk->from <= walk->len) {
        int n = match_at(walk, 0);
        /* Generated code has little stack for repeated groups; the interpreter takes memory. */
        if (n == PCRE2_ERROR_JIT_STACKLIMIT)
            n = match_at(walk, PCRE2_NO_JIT);
        if (n == PCRE2_ERROR_NOMATCH)
            return ATTN_OK;
        if (n == PCRE2_ERROR_NOMEMORY)
            return attn_no_memory(err);
        if (n < 0)
            return attn_fail(err, ATTN_E_INVALID, "text",
                             "a pattern of the tokenizer needs too many steps for this text");
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(walk->match);
        walk->start = range[0];
        walk->end = range[1];
        if (walk->start != walk->end || walk->end != walk->last_end) {
            walk->from = walk->last_end = walk->end;
            *found = true;
            return ATTN_OK;
        }
        if (walk->from == walk->len)
            return ATTN_OK;
        walk->from += attn_utf8_prefix(walk->text + walk->from, walk->len - walk->from);
    }
    return ATTN_OK;
}

attn_status attn_pattern_replace(const attn_pattern *pattern, attn_match *match, const char *text,
                                 size_t len, const char *content, size_t most, attn_text *out,
                                 attn_error *err)
{
    attn_matches walk;
    size_t copied = 0, content_len = strlen(content);
    bool found;
    attn_matches_start(&walk, pattern, match, text, len);
    for (;;) {
        attn_status status = attn_matches_next(&walk, &found, err);
        if (status != ATTN_OK)
            return status;
        size_t kept = (found ? walk.start : len) - copied, put = found ? content_len : 0;
        if (out->len + kept + put > most)
            return attn_fail(err, ATTN_E_INVALID, "text",
                             "the tokenizer replaces parts of this text by far longer ones");
        if ((kept > 0 && !attn_text_append(out, text + copied, kept)) ||
            !attn_text_append(out, content, put))
            return attn_no_memory(err);
        if (!found)
            return ATTN_OK;
        copied = walk.end;
    }
}
