#include "server/json/utf8.h"

static size_t length_from_lead(unsigned char lead)
{
    if (lead < 0x80)
        return 1;
    if (lead < 0xc2) /* continuation bytes, and the overlong leads c0 and c1 */
        return 0;
    if (lead < 0xe0)
        return 2;
    if (lead < 0xf0)
        return 3;
    return lead < 0xf5 ? 4 : 0;
}

size_t srv_utf8_length(const char *p, const char *end)
{
    const unsigned char *s = (const unsigned char *)p;
    const size_t n = length_from_lead(s[0]);
    if (n > (size_t)(end - p))
        return 0;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    }
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90))
        return 0; /* overlong */
    if ((s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf4 && s[1] > 0x8f))
        return 0; /* surrogates; past U+10FFFF */
    return n;
}
