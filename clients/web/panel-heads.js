// Heads and positions: the weights of one query, a row for each query head, grouped under the KV head
// that it reads; and below, row under row, those of all queries.
import { el, fill, panel, select, setText } from './dom.js';
import { t } from './i18n.js';
import { fixed, number } from './format.js';
import { weightByte } from './colors.js';
import { focus, setQuery, shownQuery, syncHistory } from './focus.js';
import { Heatmap, poolColumns } from './heatmap.js';
import { labelOf } from './pieces.js';
import { state, setView, subscribe, touch } from './state.js';
import { toggleKey } from './panel-tokens.js';
import { csvButton, exportButton, tensorsButton } from './export.js';

const MOST_COLUMNS = 1024;
const body = el('div', { class: 'heads' });
const readout = el('p', { class: 'readout', testid: 'heads-readout' });
const toggles = el('div', { class: 'toggles', role: 'group', i18nLabel: 'heads.toggles' });
const notes = el('p', { class: 'note', testid: 'heads-note' });
/** @type {Map<number, {root: HTMLElement, row: Heatmap, history: Heatmap, sum: HTMLElement, most: HTMLElement}>} */
const shown = new Map();
const HISTORY_EVERY_MS = 250;
let historyAt = 0;
let again = 0;
let builtOf = '';
let badge;

/** The weight of (head, query, key) as a byte of the history, for those who check. */
export function cellByte(head, query, key) {
  const row = focus?.history[query - focus.historyFrom];
  return row ? row[head * (query + 1) + key] : -1;
}

export function heads() {
  const scale = select([['sqrt', 'heads.sqrt'], ['linear', 'heads.linear'], ['log', 'heads.log']], state.view.scale, (value) => setView({ scale: value }, 'row', 'history'),
    { 'data-i18n-label': 'heads.scale', 'aria-label': t('heads.scale'), testid: 'scale' });
  const check = (key, name, testid) => el('label', { class: 'check' }, el('input', { type: 'checkbox', checked: state.view[name], testid,
    on: { change: (event) => { setView({ [name]: event.target.checked }, 'row', 'history'); syncHistory(); } } }), el('span', { i18n: key }));
  const made = panel('heads', 'heads.title', { shape: true, note: 'heads.axes', controls: [el('span', { class: 'controls' }, scale,
    check('heads.sink', 'hideSink', 'hide-sink'), check('heads.history', 'history', 'show-history'), exportButton('heads', () => body), csvButton(), tensorsButton())] },
  toggles, notes, body, readout);
  badge = made.badge;
  for (const type of ['mouseover', 'focusin']) document.addEventListener(type, markGroup);
  subscribe(['row', 'history', 'focus', 'view', 'lang'], render);
  return made.root;
}

function build() {
  const { num_attention_heads: n, num_key_value_heads: kvHeads } = focus.model;
  const share = n / kvHeads;
  const name = `${focus.session} ${n} ${kvHeads} ${[...state.view.hidden]} ${document.documentElement.lang}`;
  if (builtOf === name) return;
  builtOf = name;
  body.dataset.of = focus.session;
  shown.clear();
  fill(body);
  const focused = document.activeElement?.closest?.('.toggles') ? document.activeElement.dataset.head : null;
  fill(toggles, ...Array.from({ length: n }, (_, h) => el('label', { class: 'check' }, el('input', { type: 'checkbox', checked: !state.view.hidden.has(h), testid: `head-${h}`, data: { head: h },
    on: { change: () => toggleHead(h) } }), el('span', { text: `Q${h}` }))));
  if (focused) toggles.querySelector(`[data-head="${focused}"]`)?.focus();
  for (let kv = 0; kv < kvHeads; kv++) {
    const group = el('div', { class: 'head-group', role: 'group', 'aria-label': t('heads.group', { kv }), testid: `heads-kv-${kv}`, data: { kv } },
      el('div', { class: 'bracket' }, el('span', { text: `KV${kv}` })));
    const rows = el('div', { class: 'head-rows' });
    for (let h = kv * share; h < (kv + 1) * share; h++) if (!state.view.hidden.has(h)) rows.append(makeHead(h));
    if (rows.childElementCount) {
      group.append(rows);
      body.append(group);
    }
  }
}

/* What belongs to the KV head under the mouse, or in focus, is marked: its lanes of the cache, and its
 * query heads here. */
function markGroup(event) {
  const kv = (event.target.closest('[data-kv]') ?? document.activeElement.closest('[data-kv]'))?.dataset.kv;
  for (const node of document.querySelectorAll('[data-kv]')) node.classList.toggle('marked', node.dataset.kv === kv);
}

function makeHead(h) {
  const row = new Heatmap({ label: t('heads.row', { head: h }), testid: `row-${h}`, readout,
    onChoose: (_, column, event) => choose(h, null, column, event) });
  const history = new Heatmap({ label: t('heads.historyof', { head: h }), testid: `history-${h}`, readout,
    onChoose: (line, column, event) => choose(h, focus.historyFrom + line, column, event) });
  const sum = el('span', { class: 'sum', testid: `sum-${h}` });
  const most = el('span', { class: 'sum', testid: `most-${h}` });
  const root = el('div', { class: 'head', data: { head: h, kv: Math.floor(h / (focus.model.num_attention_heads / focus.model.num_key_value_heads)) }, testid: `headrow-${h}` },
    el('div', { class: 'head-label' }, el('strong', { text: `Q${h}` }), sum, most), row.root, history.root);
  shown.set(h, { root, row, history, sum, most });
  return root;
}

function choose(head, query, column, event) {
  if (event.shiftKey) return toggleKey(column);
  setView({ head, key: column });
  if (query !== null) setQuery(query);
}

export function toggleHead(h) {
  if (!focus?.model || h >= focus.model.num_attention_heads) return;
  const hidden = new Set(state.view.hidden);
  if (!hidden.delete(h)) hidden.add(h);
  setView({ hidden }, 'row', 'history');
}

/** One weight, without the sink if that is wanted. */
function scaled(p, sink, key) {
  if (!state.view.hideSink) return p;
  return key === 0 ? 0 : sink < 1 ? p / (1 - sink) : 0;
}

function render() {
  if (!focus?.model) {
    fill(body);
    fill(toggles);
    builtOf = '';
    setText(notes, '');
    return;
  }
  build();
  const query = shownQuery();
  const n = query + 1;
  setText(badge, `[${focus.model.num_attention_heads}, 1, ${n}]`);
  setText(notes, [state.view.hideSink ? t('heads.sinknote') : '', state.view.history && focus.historyFrom > 0 ? t('heads.window', { from: focus.historyFrom, to: focus.length }) : ''].filter(Boolean).join(' '));
  const row = focus.row?.query === query ? focus.row : null;
  /* Long ones are expensive to draw: a few times a second will do. */
  const isDue = focus.history.length < 64 || performance.now() - historyAt >= HISTORY_EVERY_MS;
  clearTimeout(again);
  for (const [h, made] of shown) {
    made.root.classList.toggle('chosen', h === state.view.head);
    made.history.root.hidden = !state.view.history;
    if (row) renderRow(h, made, row, n);
    if (state.view.history && isDue) renderHistory(h, made.history);
  }
  if (isDue) historyAt = performance.now();
  else if (state.view.history) again = window.setTimeout(() => touch('history'), HISTORY_EVERY_MS);
}

function renderRow(h, made, row, n) {
  const weights = row.data.subarray(h * n, (h + 1) * n);
  const first = state.view.hideSink && n > 1 ? 1 : 0;
  let [sum, top, bits] = [0, first, 0];
  for (let k = 0; k < n; k++) {
    const p = weights[k];
    sum += p;
    if (p > weights[top] && k >= first) top = k;
    if (p > 0) bits -= p * Math.log2(p);
  }
  setText(made.most, t('heads.most', { key: top, token: labelOf(top), weight: fixed(weights[top], 3), bits: fixed(Math.abs(bits), 2) }));
  setText(made.sum, `Σ ${fixed(sum, 6)}`);
  made.sum.dataset.sum = String(sum);
  const raw = new Int16Array(n);
  for (let k = 0; k < n; k++) raw[k] = weightByte(scaled(weights[k], weights[0], k), state.view.scale);
  const pooled = poolColumns(raw, 1, n, MOST_COLUMNS);
  const at = state.view.query === null ? n - 1 : n;
  made.row.set({ rows: 1, columns: pooled.columns, bytes: pooled.bytes, cellWidth: 20, height: 18,
    newest: Math.floor(at / pooled.size), end: Math.ceil(n / pooled.size),
    describe: (_, column) => t('heads.cell', { head: h, query: row.query, qtoken: labelOf(row.query), key: column * pooled.size, ktoken: labelOf(column * pooled.size), weight: number(weights[column * pooled.size]) }) });
  made.row.root.dataset.query = String(row.query);
}

function renderHistory(h, map) {
  const { history, historyFrom: from } = focus;
  const rows = history.length;
  const columns = from + rows;
  const raw = new Int16Array(rows * columns).fill(-1);
  const plain = state.view.scale === 'sqrt' && !state.view.hideSink;
  for (let r = 0; r < rows; r++) {
    const width = from + r + 1;
    const line = history[r].subarray(h * width, (h + 1) * width);
    if (plain) {
      raw.set(line, r * columns);
      continue;
    }
    const sink = (line[0] / 255) ** 2;
    for (let k = 0; k < width; k++) raw[r * columns + k] = weightByte(Math.min(1, scaled((line[k] / 255) ** 2, sink, k)), state.view.scale);
  }
  const pooled = poolColumns(raw, rows, columns, MOST_COLUMNS);
  map.set({ rows, columns: pooled.columns, bytes: pooled.bytes, cellWidth: 12, height: Math.min(300, Math.max(12, rows * 12)), firstRow: from,
    describe: (line, column) => describeHistory(h, from + line, column * pooled.size) });
}

function describeHistory(h, query, key) {
  const names = { head: h, query, qtoken: labelOf(query), key, ktoken: labelOf(key) };
  if (key > query) return t('heads.masked', names);
  const exact = focus.row?.query === query ? focus.row.data[h * (query + 1) + key] : null;
  if (exact !== null) return t('heads.cell', { ...names, weight: number(exact) });
  const byte = cellByte(h, query, key);
  return t('heads.about', { ...names, weight: number(Number(((byte / 255) ** 2).toPrecision(3))) });
}
