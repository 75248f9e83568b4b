#include "clients/load/report.h"
void load_report_html(const load_result *r, load_text *out)
{
    (void)r;
    load_text_puts(out, "");
}
