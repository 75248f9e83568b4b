#include "server/head.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool is(const char *name, size_t len, const char *wanted)
{
    return len == strlen(wanted) && !strncasecmp(name, wanted, len);
}

static void set_first(const char **to, const char *value)
{
    if (!*to)
        *to = value;
}

void srv_head_add(srv_head *h, const char *name, size_t len, const char *value, size_t value_len)
{
    if (!value)
        value = "";
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)name[i] <= ' ' || name[i] == 127)
            h->bad_name = true;
    if (is(name, len, "Content-Length")) {
        h->n_lengths++;
        set_first(&h->content_length, value);
    } else if (is(name, len, "Transfer-Encoding")) {
        h->n_codings++;
        h->other_coding |= !is(value, value_len, "chunked");
    } else if (is(name, len, "Host")) {
        h->n_hosts++;
        set_first(&h->host, value);
    } else if (is(name, len, "Origin")) {
        set_first(&h->origin, value);
    } else if (is(name, len, "Content-Type")) {
        set_first(&h->content_type, value);
    } else if (is(name, len, "Accept")) {
        set_first(&h->accept, value);
    } else if (is(name, len, "Accept-Encoding")) {
        set_first(&h->accept_encoding, value);
    } else if (is(name, len, "If-None-Match")) {
        set_first(&h->if_none_match, value);
    } else if (is(name, len, "X-Session")) {
        set_first(&h->x_session, value);
    } else if (is(name, len, "Expect")) {
        h->expects = true;
    }
}

void srv_head_add_param(srv_head *h, const char *name, const char *value)
{
    if (h->n_params > SRV_QUERY_MAX)
        return;
    h->params[h->n_params].name = name;
    h->params[h->n_params].value = value ? value : "";
    h->n_params++;
}

unsigned srv_head_framing(const srv_head *h)
{
    if (h->bad_name || h->n_lengths > 1 || h->n_codings > 1 || (h->n_lengths && h->n_codings))
        return 400;
    if (h->n_codings && h->other_coding)
        return 501;
    if (h->n_codings && h->http_1_0)
        return 400;
    if (h->n_hosts > 1 || (!h->http_1_0 && h->n_hosts == 0))
        return 400;
    return 0;
}

uint64_t srv_head_content_length(const srv_head *h)
{
    uint64_t n = 0;
    if (!h->content_length)
        return 0;
    for (const char *p = h->content_length; *p; p++) {
        unsigned digit = (unsigned char)*p - (unsigned)'0';
        if (digit > 9)
            break;
        if (n > (UINT64_MAX - digit) / 10)
            return UINT64_MAX;
        n = n * 10 + digit;
    }
    return n;
}

bool srv_head_has_body(const srv_head *h)
{
    return h->n_codings || srv_head_content_length(h);
}

/* ------------------------------------------------------------------------ Host and Origin */

/* The length of the name in "name:port", "name" or "[v6]:port"; *port points behind the colon, or is
 * NULL. */
static size_t host_name(const char *host, const char **port)
{
    size_t n = *host == '[' ? strcspn(host, "]") : strcspn(host, ":");
    if (*host == '[' && host[n])
        n++;
    *port = host[n] == ':' ? host + n + 1 : NULL;
    return n;
}

static bool is_port(const char *s)
{
    size_t n = strspn(s, "0123456789");
    return n <= 5 && !s[n];
}

static bool is_loopback(const char *name, size_t n)
{
    return is(name, n, "localhost") || is(name, n, "127.0.0.1") || is(name, n, "[::1]");
}

bool srv_head_host_allowed(const srv_head *h, const srv_config *config)
{
    const char *port;
    if (!h->host)
        return h->http_1_0;
    size_t n = host_name(h->host, &port);
    if (port ? !is_port(port) : h->host[n] != '\0')
        return false;
    if (is_loopback(h->host, n))
        return true;
    for (size_t i = 0; i < config->allowed_hosts.n; i++) {
        const char *allowed = config->allowed_hosts.items[i], *allowed_port;
        size_t allowed_n = host_name(allowed, &allowed_port);
        if (allowed_port ? !strcasecmp(h->host, allowed)
                         : n == allowed_n && !strncasecmp(h->host, allowed, n))
            return true;
    }
    return false;
}

srv_origin srv_head_origin(const srv_head *h, const srv_config *config, unsigned port,
                           const char **allow)
{
    if (!h->origin)
        return SRV_ORIGIN_OWN;
    const char *host = NULL;
    if (!strncasecmp(h->origin, "http://", 7))
        host = h->origin + 7;
    else if (!strncasecmp(h->origin, "https://", 8)) /* as a proxy with TLS is called */
        host = h->origin + 8;
    if (host) {
        const char *origin_port;
        char own_port[8];
        snprintf(own_port, sizeof(own_port), "%u", port);
        size_t n = host_name(host, &origin_port);
        if (h->host && !strcasecmp(host, h->host))
            return SRV_ORIGIN_OWN;
        if (is_loopback(host, n) && !strcmp(origin_port ? origin_port : "80", own_port))
            return SRV_ORIGIN_OWN;
    }
    for (size_t i = 0; i < config->cors_origins.n; i++) {
        const char *allowed = config->cors_origins.items[i];
        if (!strcmp(allowed, "*") || !strcmp(allowed, h->origin)) {
            *allow = allowed;
            return SRV_ORIGIN_ALLOWED;
        }
    }
    return SRV_ORIGIN_FOREIGN;
}

/* ---------------------------------------------------------------------------- media types */

static const char *skip_space(const char *p)
{
    return p + strspn(p, " \t");
}

static bool is_type(const char *content_type, const char *wanted)
{
    const char *p = skip_space(content_type);
    size_t n = strcspn(p, " \t;");
    return is(p, n, wanted);
}

bool srv_head_is_json(const srv_head *h)
{
    return !h->content_type || is_type(h->content_type, "application/json") ||
           is_type(h->content_type, "application/x-www-form-urlencoded");
}

bool srv_head_is_safetensors(const srv_head *h)
{
    return h->content_type && is_type(h->content_type, "application/x-safetensors");
}

/* How well a media range matches: 0 not, 1 by the star slash star, 2 by type, 3 by name. */
static int match_range(const char *range, size_t n, const char *type, const char *subtype)
{
    const char *slash = memchr(range, '/', n);
    if (!slash)
        return 0;
    size_t type_n = (size_t)(slash - range), subtype_n = n - type_n - 1;
    bool any_subtype = is(slash + 1, subtype_n, "*");
    if (is(range, type_n, "*") && any_subtype)
        return 1;
    if (!is(range, type_n, type))
        return 0;
    if (any_subtype)
        return 2;
    return is(slash + 1, subtype_n, subtype) ? 3 : 0;
}

#define QUALITY_MAX 1000u

/* Reads "0.25" as thousandths. What is no quality counts as if it were not there. */
static unsigned read_quality(const char *p, size_t n)
{
    unsigned quality = 0, unit = QUALITY_MAX;
    if (n < 1 || n > 5 || (n > 1 && p[1] != '.'))
        return QUALITY_MAX;
    for (size_t i = 0; i < n; i++) {
        if (i == 1)
            continue;
        if (p[i] < '0' || p[i] > '9')
            return QUALITY_MAX;
        quality += (unsigned)(p[i] - '0') * unit;
        unit /= 10;
    }
    return quality < QUALITY_MAX ? quality : QUALITY_MAX;
}

/* The `q` among the parameters behind a media range or a coding (RFC 9110, 12.4.2). */
static unsigned find_quality(const char *params, size_t n)
{
    for (const char *p = params, *end = params + n; (p = memchr(p, ';', (size_t)(end - p)));) {
        p++;
        while (p < end && (*p == ' ' || *p == '\t'))
            p++;
        if (end - p > 2 && (*p == 'q' || *p == 'Q') && p[1] == '=')
            return read_quality(p + 2, strcspn(p + 2, ",; \t"));
    }
    return QUALITY_MAX;
}

bool srv_head_takes_gzip(const srv_head *h)
{
    for (const char *p = h->accept_encoding; p && *p;) {
        p = skip_space(p);
        size_t whole = strcspn(p, ","), n = strcspn(p, ",; \t");
        if (is(p, n, "gzip"))
            return find_quality(p + n, whole - n) > 0;
        p += whole;
        if (*p)
            p++;
    }
    return false;
}

/* How much a type is wanted: its quality, which the most specific range decides (RFC 9110, 12.5.1),
 * and, in the last digit, how specific that is. 0: not at all. */
static unsigned score(const char *accept, const char *type, const char *subtype)
{
    int best = 0;
    unsigned quality = 0;
    if (!*skip_space(accept))
        accept = "*/*";
    for (const char *p = accept; *p;) {
        p = skip_space(p);
        size_t whole = strcspn(p, ","), n = strcspn(p, ",; \t");
        int match = match_range(p, n, type, subtype);
        if (match > best) {
            best = match;
            quality = find_quality(p + n, whole - n);
        }
        p += whole;
        if (*p)
            p++;
    }
    return quality ? quality * 10 + (unsigned)best : 0;
}

bool srv_accepts(const char *accept, const char *type, const char *subtype)
{
    return !accept || score(accept, type, subtype) > 0;
}

bool srv_prefers(const char *accept, const char *type, const char *subtype, const char *usual_type,
                 const char *usual_subtype)
{
    if (!accept)
        return false;
    const unsigned wanted = score(accept, type, subtype),
                   usual = score(accept, usual_type, usual_subtype);
    return wanted > usual || (wanted == usual && wanted % 10 == 3);
}
