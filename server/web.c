#include "server/web.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/log.h"

/* A built-in file, plain and compressed. The build lists them (Makefile: web_files.S). */
typedef struct web_file {
    const char *name, *plain, *plain_end, *gzip, *gzip_end;
} web_file;

extern const web_file srv_web_files[], srv_web_files_end[];

static const struct {
    const char *ending, *type;
} types[] = {
    {".html", "text/html; charset=utf-8"},
    {".js", "text/javascript; charset=utf-8"},
    {".css", "text/css; charset=utf-8"},
    {".json", "application/json"},
    {".svg", "image/svg+xml"},
};

/* The type of a file by its name; NULL: no file of the page has such a name. */
static const char *type_of(const char *name)
{
    size_t n = strlen(name);
    if (strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-.") != n || name[0] == '-' ||
        name[0] == '.')
        return NULL;
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        size_t ending = strlen(types[i].ending);
        if (n > ending && !strcmp(name + n - ending, types[i].ending))
            return types[i].type;
    }
    return NULL;
}

static bool read_all(int fd, srv_buf *b)
{
    char piece[16384];
    for (;;) {
        ssize_t n = read(fd, piece, sizeof(piece));
        if (n == 0)
            return !b->failed;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 || b->len + (size_t)n > SRV_WEB_FILE_MAX)
            return false;
        srv_buf_append(b, piece, (size_t)n);
    }
}

static bool read_file(const char *folder, const char *name, srv_buf *b)
{
    char path[4096];
    int n = snprintf(path, sizeof(path), "%s/%s", folder, name);
    struct stat status;
    if (n < 0 || (size_t)n >= sizeof(path))
        return false;
    /* Never a pipe, which could block, nor what a link points to. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return false;
    bool ok = !fstat(fd, &status) && S_ISREG(status.st_mode) && read_all(fd, b);
    close(fd);
    return ok;
}

static bool find_built_in(srv_exchange *x, const char *name)
{
    for (const web_file *file = srv_web_files; file < srv_web_files_end; file++) {
        if (strcmp(file->name, name))
            continue;
        x->gzipped = x->takes_gzip;
        if (x->gzipped)
            srv_buf_append(&x->reply, file->gzip, (size_t)(file->gzip_end - file->gzip));
        else
            srv_buf_append(&x->reply, file->plain, (size_t)(file->plain_end - file->plain));
        return true;
    }
    return false;
}

/* FNV-1a, quoted. The compressed and the plain bytes differ, and so do their tags. */
static void make_etag(const srv_buf *b, char *etag, size_t size)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < b->len; i++)
        hash = (hash ^ (unsigned char)b->data[i]) * UINT64_C(1099511628211);
    snprintf(etag, size, "\"%016" PRIx64 "\"", hash);
}

void srv_web_reply(srv_exchange *x, const char *name)
{
    const char *type = type_of(name), *root = x->app->config->web_root;
    srv_exchange_expect(x, SRV_WEB_FILE_MAX);
    bool found = type && (root ? read_file(root, name, &x->reply) : find_built_in(x, name));
    if (!found) {
        srv_fail_with(x, 404, "not_found", NULL, "the page has no such file");
        return;
    }
    make_etag(&x->reply, x->etag, sizeof(x->etag));
    if (!strcmp(x->if_none_match, x->etag)) {
        srv_buf_clear(&x->reply);
        srv_reply(x, 304, NULL);
        return;
    }
    srv_reply(x, 200, type);
}
