// The overview: every session a cell, however many there are. Its area is memory, its colour what it
// does. Those there at first are in the order of their names; a cell keeps its place while its session
// lives, so that the eye finds it again.
import { bytes, count } from './format.js';
import { el, setText } from './dom.js';
import { chooseSession, focus } from './focus.js';
import { Heatmap } from './heatmap.js';
import { t } from './i18n.js';
import { moved } from './sessions.js';
import { state, subscribe, touch } from './state.js';

/** Pixels a cell, its gap among them: the largest with which all fit into the height. */
const SIZES = [18, 14, 11, 9, 7, 6, 5, 4];
const HEIGHT = 150;
const COLORS = { decode: '--decode', prefill: '--prefill', idle: '--strong' };

/** Cells by number: ids, and null where a session has gone. @type {(string | null)[]} */
let ids = [];
/** @type {Map<string, number>} */
let places = new Map();
/** @type {number[]} */
let free = [];
/** What each cell counts as; '' for none. @type {string[]} */
let doing = [];
const counts = { decode: 0, prefill: 0, idle: 0, other: 0 };
let largest = 1;
let width = 0;
let look = '';
let colors = {};
let chosen = -1;
/** Redraws all: language, theme, another layout. */
let isStale = true;

const readout = el('p', { class: 'readout', testid: 'overview-readout' });
const keys = Object.fromEntries(Object.keys(counts).map((name) => [name, el('span', { class: 'key', data: { state: name } })]));
const legend = el('p', { class: 'note legend' }, el('span', { i18n: 'overview.area' }), ...Object.values(keys));
const map = new Heatmap({ label: '', testid: 'overview', readout, onChoose: (row, column) => choose(row * map.picture.columns + column) });
const root = el('div', { class: 'overview', hidden: true, testid: 'overview-box' }, el('div', { class: 'overview-map' }, map.root), readout, legend);

export function overview() {
  new ResizeObserver(([entry]) => {
    width = Math.floor(entry.contentRect.width);
    isStale = true;
    touch('sessions');
  }).observe(root);
  for (const query of ['(prefers-color-scheme: dark)', '(forced-colors: active)']) matchMedia(query).addEventListener('change', () => touch('theme'));
  subscribe(['sessions', 'focus', 'theme', 'lang'], render);
  return root;
}

const choose = (at) => ids[at] && chooseSession(ids[at]);

function describe(row, column) {
  const one = state.sessions.get(ids[row * map.picture.columns + column] ?? '');
  return one ? t('overview.cell', { session: one.session, state: t(`state.${one.state}`), length: count(one.length), bytes: bytes(one.kv_bytes) }) : t('overview.none');
}

function place(id) {
  const at = free.pop() ?? ids.length;
  ids[at] = id;
  doing[at] = '';
  places.set(id, at);
}

const kind = (one) => (one ? (one.state in COLORS ? one.state : 'other') : '');

function note(at, name) {
  if (doing[at]) counts[doing[at]]--;
  if (name) counts[name]++;
  doing[at] = name;
}

/* A power of two, so that one session's growth seldom changes all. */
function fitLargest() {
  let most = 1;
  for (const one of state.sessions.values()) most = Math.max(most, one.kv_bytes);
  const next = 2 ** Math.ceil(Math.log2(most));
  if (next === largest) return;
  largest = next;
  isStale = true;
}

const byName = new Intl.Collator('en', { numeric: true }).compare;

/* Most have gone: those that are left move together. */
function compact() {
  ids = ids.filter((id) => id !== null);
  places = new Map(ids.map((id, at) => [id, at]));
  doing = ids.map((id) => kind(state.sessions.get(id)));
  free = [];
  isStale = true;
}

function render(topics) {
  if (topics.has('theme') || topics.has('lang')) isStale = true;
  if (!state.isGreeted) return;
  const cells = new Set();
  let isFitting = false;
  for (const id of [...moved].filter((one) => state.sessions.has(one) && !places.has(one)).sort(byName)) place(id);
  for (const id of moved) {
    const one = state.sessions.get(id);
    const at = places.get(id);
    if (at === undefined) continue;
    cells.add(at);
    note(at, kind(one));
    isFitting ||= !one || one.kv_bytes > largest;
    if (one) continue;
    places.delete(id);
    ids[at] = null;
    free.push(at);
  }
  moved.clear();
  if (isFitting) fitLargest();
  if (free.length > 32 && 2 * free.length > ids.length) compact();
  root.hidden = !places.size;
  if (!places.size || width < SIZES.at(-1)) return;
  const now = focus ? places.get(focus.session) ?? -1 : -1;
  if (now !== chosen) cells.add(now).add(chosen);
  chosen = now;
  show(cells);
  for (const [name, node] of Object.entries(keys)) setText(node, `${t(name === 'other' ? 'overview.other' : `state.${name}`)} ${count(counts[name])}`);
  keys.other.hidden = !counts.other;
}

/* Lays out anew if the number of cells or the width ask for that, and draws what changed. */
function show(cells) {
  const size = SIZES.find((one) => Math.ceil(ids.length / Math.floor(width / one)) * one <= HEIGHT) ?? SIZES.at(-1);
  const columns = Math.min(ids.length, Math.floor(width / size));
  const rows = Math.ceil(ids.length / columns);
  const ratio = window.devicePixelRatio || 1;
  const wanted = [document.documentElement.lang, size, columns, rows, ratio].join();
  const isNew = wanted !== look;
  look = wanted;
  const { canvas } = map;
  const draw = () => {
    if (isNew) {
      canvas.width = Math.round(columns * size * ratio);
      canvas.height = Math.round(rows * size * ratio);
      isStale = true;
    }
    const context = canvas.getContext('2d');
    context.setTransform(canvas.width / (columns * size), 0, 0, canvas.height / (rows * size), 0, 0);
    if (isStale) {
      const style = getComputedStyle(document.documentElement);
      colors = Object.fromEntries([...new Set(Object.values(COLORS)), '--muted', '--text', '--hatch-a'].map((name) => [name, style.getPropertyValue(name).trim()]));
      context.clearRect(0, 0, columns * size, rows * size);
    }
    for (const at of isStale ? ids.keys() : cells) if (at >= 0 && at < ids.length) drawCell(context, at, size, columns);
    isStale = false;
  };
  if (!isNew) {
    draw();
    map.refresh();
    return;
  }
  map.label = t('overview.label');
  map.set({ rows, columns, draw, describe, cellWidth: size, height: rows * size });
}

function drawCell(context, at, size, columns) {
  const x = (at % columns) * size;
  const y = Math.floor(at / columns) * size;
  const one = state.sessions.get(ids[at] ?? '');
  const inner = size - 1;
  context.clearRect(x, y, size, size);
  if (!one) return;
  const color = colors[COLORS[one.state] ?? '--muted'];
  /* Who is at work has a frame: not by colour alone. */
  const isBusy = one.state === 'decode' || one.state === 'prefill';
  context.fillStyle = colors['--hatch-a'];
  context.fillRect(x, y, inner, inner);
  context.fillStyle = color;
  const side = Math.max(1.5, (inner - (size > 5 ? 2 : 0)) * Math.sqrt(one.kv_bytes / largest));
  const from = (inner - side) / 2;
  if (one.gone) context.fillRect(x, y + inner / 2 - 0.5, inner, 1);
  else context.fillRect(x + from, y + from, side, side);
  if (at !== chosen && !isBusy) return;
  context.strokeStyle = at === chosen ? colors['--text'] : color;
  context.lineWidth = at === chosen ? 2 : 1;
  const half = context.lineWidth / 2;
  context.strokeRect(x + half, y + half, inner - 2 * half, inner - 2 * half);
}
