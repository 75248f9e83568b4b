#include "clients/load/plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    WIDTH = 640,
    HEIGHT = 260,
    LEFT = 72,
    RIGHT = 14,
    TOP = 10,
    BOTTOM = 30,
    MAX_TICKS = 12,
    MAX_DOTS = 150, /* points of a curve that tell their values */
};

const char *const load_plot_style =
    "figure{margin:0;padding:12px 14px;background:var(--card);border:1px solid var(--line);"
    "border-radius:8px}\n"
    "figcaption{font-weight:600;display:flex;flex-wrap:wrap;gap:2px 14px;align-items:baseline}\n"
    "figcaption span{font-weight:400;font-size:13px;color:var(--soft)}\n"
    "figcaption i{display:inline-block;width:14px;height:3px;margin-right:5px;"
    "vertical-align:middle;border-radius:2px}\n"
    "svg{width:100%;height:auto;display:block;margin-top:6px}\n"
    "svg text{font-size:12px;fill:var(--soft)}\n"
    "svg .grid{stroke:var(--line);stroke-width:1}\n"
    "svg .curve{fill:none;stroke-width:2;stroke-linejoin:round}\n"
    "svg .dot{opacity:0;stroke:var(--card);stroke-width:2}\n"
    "svg .dot:hover{opacity:1}\n"
    ".c0{stroke:var(--c0)}.c1{stroke:var(--c1)}.c2{stroke:var(--c2)}.c3{stroke:var(--c3)}\n"
    ".f0{fill:var(--c0)}.f1{fill:var(--c1)}.f2{fill:var(--c2)}.f3{fill:var(--c3)}\n"
    ".b0{background:var(--c0)}.b1{background:var(--c1)}.b2{background:var(--c2)}"
    ".b3{background:var(--c3)}\n";

/* One axis: values from low to high on so many pixels. */
typedef struct axis {
    load_unit unit;
    bool log;
    double low, high;
    double begin, length; /* pixels; a y axis has a negative length */
    double ticks[MAX_TICKS];
    size_t n_ticks;
} axis;

static double place(const axis *a, double value)
{
    double low = a->log ? log10(a->low) : a->low, high = a->log ? log10(a->high) : a->high;
    return a->begin + ((a->log ? log10(value) : value) - low) / (high - low) * a->length;
}

static void duration_text(double ms, char text[LOAD_SIZE_TEXT])
{
    if (ms >= 1000)
        snprintf(text, LOAD_SIZE_TEXT, "%.3g s", ms / 1000);
    else if (ms >= 0.1 || ms <= 0)
        snprintf(text, LOAD_SIZE_TEXT, "%.3g ms", ms);
    else if (ms >= 1e-4)
        snprintf(text, LOAD_SIZE_TEXT, "%.3g \302\265s", ms * 1e3);
    else
        snprintf(text, LOAD_SIZE_TEXT, "%.3g ns", ms * 1e6);
}

static void value_text(load_unit unit, double value, char text[LOAD_SIZE_TEXT])
{
    switch (unit) {
    case LOAD_UNIT_BYTES:
        load_size_text(value, text);
        break;
    case LOAD_UNIT_SECONDS:
        snprintf(text, LOAD_SIZE_TEXT, "%.4g s", value);
        break;
    case LOAD_UNIT_MS:
        duration_text(value, text);
        break;
    case LOAD_UNIT_QUANTILE:
        snprintf(text, LOAD_SIZE_TEXT, "%.*f %%", value > 2 ? (int)ceil(value - 2) : 0,
                 100 * (1 - pow(10, -value)));
        break;
    case LOAD_UNIT_COUNT:
        snprintf(text, LOAD_SIZE_TEXT, fabs(value) >= 1e6 ? "%.4g" : "%.0f", value);
        break;
    }
}

/* --------------------------------------------------------------------------------------- ticks */

static void add_tick(axis *a, double value)
{
    if (a->n_ticks < MAX_TICKS)
        a->ticks[a->n_ticks++] = value;
}

/* Decades for a logarithmic axis, which is widened to whole ones. */
static void ticks_log(axis *a)
{
    double low = floor(log10(a->low)), high = ceil(log10(a->high));
    high = high > low ? high : low + 1;
    a->low = pow(10, low);
    a->high = pow(10, high);
    double step = ceil((high - low) / 6);
    for (double e = low; e <= high; e += step)
        add_tick(a, pow(10, e));
}

/* Round numbers, about so many, of bytes in their unit; an axis that begins at 0 is widened to the next one. */
static void ticks_linear(axis *a, double about, bool widen)
{
    static const double rounds[] = {1, 2, 5, 10};
    double unit = 1, span = a->high - a->low;
    while (a->unit == LOAD_UNIT_BYTES && span / unit >= 1024)
        unit *= 1024;
    double rough = span / unit / about, power = pow(10, floor(log10(rough)));
    size_t i = 0;
    while (i < 3 && rounds[i] * power < rough)
        i++;
    double step = rounds[i] * power * unit;
    if (a->unit != LOAD_UNIT_MS && a->unit != LOAD_UNIT_SECONDS && step < 1)
        step = 1;
    if (widen)
        a->high = ceil(a->high / step) * step;
    for (double v = ceil(a->low / step) * step; v <= a->high * (1 + 1e-9); v += step)
        add_tick(a, v);
}

static void ticks_quantile(axis *a)
{
    static const double quantiles[] = {0, 0.30103, 1, 2, 3, 4, 5, 6};
    for (size_t i = 0; i < sizeof quantiles / sizeof *quantiles; i++) {
        if (quantiles[i] <= a->high)
            add_tick(a, quantiles[i]);
    }
}

/* Whether a point can be drawn. */
static bool shown(const load_plot *p, const load_curve *c, size_t i)
{
    return isfinite(c->x[i]) && isfinite(c->y[i]) && (!p->log_y || c->y[i] > 0);
}

/* Finds the ranges. False: there is nothing to draw. */
static bool make_axes(const load_plot *p, axis *x, axis *y)
{
    size_t n = 0;
    *x = (axis){.unit = p->x_unit, .begin = LEFT, .length = WIDTH - LEFT - RIGHT};
    *y = (axis){.unit = p->y_unit,
                .log = p->log_y,
                .begin = HEIGHT - BOTTOM,
                .length = -(HEIGHT - BOTTOM - TOP)};
    x->low = y->low = INFINITY;
    x->high = y->high = -INFINITY;
    for (size_t k = 0; k < p->n_curves; k++) {
        const load_curve *c = &p->curves[k];
        for (size_t i = 0; i < c->n; i++) {
            if (!shown(p, c, i))
                continue;
            x->low = fmin(x->low, c->x[i]);
            x->high = fmax(x->high, c->x[i]);
            y->low = fmin(y->low, c->y[i]);
            y->high = fmax(y->high, c->y[i]);
            n++;
        }
    }
    if (n == 0)
        return false;
    if (!y->log)
        y->low = fmin(y->low, 0);
    x->low = fmin(x->low, 0);
    y->high = y->high > y->low ? y->high : y->low + 1;
    x->high = x->high > x->low ? x->high : x->low + 1;
    if (y->log)
        ticks_log(y);
    else
        ticks_linear(y, 4, true);
    if (x->unit == LOAD_UNIT_QUANTILE)
        ticks_quantile(x);
    else
        ticks_linear(x, 7, false);
    return true;
}

/* --------------------------------------------------------------------------------------- drawing */

static void draw_axes(load_text *out, const axis *x, const axis *y)
{
    char text[LOAD_SIZE_TEXT];
    for (size_t i = 0; i < y->n_ticks; i++) {
        double at = place(y, y->ticks[i]);
        value_text(y->unit, y->ticks[i], text);
        load_text_printf(out,
                         "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
                         "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                         LEFT, WIDTH - RIGHT, at, at, LEFT - 8, at + 4, text);
    }
    for (size_t i = 0; i < x->n_ticks; i++) {
        value_text(x->unit, x->ticks[i], text);
        load_text_printf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
                         place(x, x->ticks[i]), HEIGHT - 10, text);
    }
}

static void draw_curve(load_text *out, const load_plot *p, size_t k, const axis *x, const axis *y)
{
    const load_curve *c = &p->curves[k];
    load_text_printf(out, "<polyline class=\"curve c%zu\" points=\"", k);
    for (size_t i = 0; i < c->n; i++) {
        if (shown(p, c, i))
            load_text_printf(out, "%.1f,%.1f ", place(x, c->x[i]), place(y, c->y[i]));
    }
    load_text_puts(out, "\"/>\n");
    size_t step = c->n / MAX_DOTS + 1;
    for (size_t i = 0; i < c->n; i += step) {
        char at[LOAD_SIZE_TEXT], value[LOAD_SIZE_TEXT];
        if (!shown(p, c, i))
            continue;
        value_text(x->unit, c->x[i], at);
        value_text(y->unit, c->y[i], value);
        load_text_printf(out,
                         "<circle class=\"dot f%zu\" cx=\"%.1f\" cy=\"%.1f\" r=\"6\"><title>%s, "
                         "%s: %s</title></circle>",
                         k, place(x, c->x[i]), place(y, c->y[i]), c->name, at, value);
    }
    load_text_puts(out, "\n");
}

void load_plot_svg(load_text *out, const load_plot *p)
{
    axis x, y;
    if (!make_axes(p, &x, &y))
        return;
    load_text_puts(out, "<figure><figcaption>");
    load_text_html(out, p->title);
    for (size_t k = 0; k < p->n_curves && p->n_curves > 1; k++) {
        load_text_printf(out, "<span><i class=\"b%zu\"></i>", k);
        load_text_html(out, p->curves[k].name);
        load_text_puts(out, "</span>");
    }
    load_text_printf(out, "</figcaption>\n<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"",
                     WIDTH, HEIGHT);
    load_text_html(out, p->title);
    load_text_puts(out, "\">\n");
    draw_axes(out, &x, &y);
    for (size_t k = 0; k < p->n_curves; k++)
        draw_curve(out, p, k, &x, &y);
    load_text_puts(out, "</svg></figure>\n");
}
