// RoPE: the pairs (i, i + D/2) of a query or key, turned by position * theta^(-2i/D).
import { el, fill, panel, svg } from './dom.js';
import { t } from './i18n.js';
import { number } from './format.js';
import { focus } from './focus.js';
import { inspected } from './panel-inspector.js';
import { dot, largestDifference, length, rotate } from './maths.js';
import { subscribe } from './state.js';

const body = el('div', { class: 'rope', testid: 'rope' });

export function rope() {
  const { root } = panel('rope', 'rope.title', { note: 'rope.note' }, body);
  subscribe(['inspector', 'lang'], render);
  return root;
}

function dial(i, before, after, angle) {
  const radius = 26;
  const size = Math.max(1e-30, Math.hypot(...before));
  const hand = (pair, name) => svg('line', { x1: 0, y1: 0, x2: ((radius * pair[0]) / size).toFixed(2), y2: ((-radius * pair[1]) / size).toFixed(2), class: name });
  const turn = ((angle % (2 * Math.PI)) * 180) / Math.PI;
  return el('figure', { class: 'dial', testid: `dial-${i}`, data: { angle: String(angle) } },
    svg('svg', { viewBox: '-30 -30 60 60', 'aria-hidden': 'true' }, svg('circle', { r: radius, class: 'ring' }), hand(before, 'before'), hand(after, 'after')),
    el('figcaption', { text: t('rope.pair', { i, j: i + focus.model.head_dim / 2, angle: number(Number(angle.toPrecision(4))), turn: turn.toFixed(0) }) }));
}

function render() {
  const one = inspected();
  if (!one || !focus?.model) return void fill(body, el('p', { class: 'note', i18n: 'inspector.none' }));
  const { rope_theta: theta, head_dim: dim } = focus.model;
  const before = one.q.normed;
  const after = one.q.rot;
  const own = rotate(before, one.query, theta);
  const difference = largestDifference(own, after, 1);
  const same = difference <= 1e-4;
  const pairs = Array.from({ length: Math.min(dim / 2, 32) }, (_, i) => i);
  const unit = (m) => rotate(before, m, theta);
  const n = one.query;
  const [a, b] = [n, n + 1].map((m) => dot(unit(m), unit(m + 1)));
  fill(body,
    el('p', { class: 'what', text: t('rope.what', { head: one.head, query: n, theta: number(theta) }) }),
    el('div', { class: 'dials' }, ...pairs.map((i) => dial(i, [before[i], before[i + dim / 2]], [after[i], after[i + dim / 2]], n * theta ** ((-2 * i) / dim)))),
    el('ul', { class: 'checks' },
      check(same, t('rope.check', { difference: difference.toExponential(1) }), 'rope-check'),
      check(Math.abs(length(before) - length(after)) <= 1e-5 * Math.max(1, length(before)), t('rope.norm', { before: number(length(before)), after: number(length(after)) }), 'rope-norm'),
      check(Math.abs(a - b) <= 1e-4 * Math.max(1, Math.abs(a)), t('rope.dots', { m: n, m1: n + 1, m2: n + 2, a: number(a), b: number(b) }), 'rope-dots')));
}

function check(ok, text, testid) {
  return el('li', { class: ok ? 'ok' : 'bad', testid, data: { ok: String(ok) } }, el('span', { class: 'tick', 'aria-hidden': 'true', text: ok ? '✓' : '✗' }), el('span', { text }));
}
