/* plot.h: line plots as inline SVG, coloured by the page's style sheet. */
#ifndef LOAD_PLOT_H
#define LOAD_PLOT_H

#include <stdbool.h>
#include <stddef.h>

#include "clients/load/text.h"

typedef enum load_unit {
    LOAD_UNIT_COUNT,
    LOAD_UNIT_BYTES,
    LOAD_UNIT_SECONDS,
    LOAD_UNIT_MS,
    LOAD_UNIT_QUANTILE, /* -log10(1 - q): 0 is none of them, 2 is 99 % */
} load_unit;

enum { LOAD_CURVES = 4 };

/* Points of one line, in the order in which they are joined. */
typedef struct load_curve {
    const char *name;
    const double *x, *y;
    size_t n;
} load_curve;

/* A linear y axis begins at 0; a logarithmic one takes only what is above 0. */
typedef struct load_plot {
    const char *title;
    load_unit x_unit, y_unit;
    bool log_y;
    load_curve curves[LOAD_CURVES];
    size_t n_curves;
} load_plot;

/* Appends a <figure>, or nothing when there is nothing to show. */
void load_plot_svg(load_text *out, const load_plot *plot);
/* The style rules that it needs. */
extern const char *const load_plot_style;

#endif
