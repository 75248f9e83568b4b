// The token strip: what the session has read, and by how much the chosen query looks at each.
import { el, fill, panel, button, select, setText } from './dom.js';
import { t } from './i18n.js';
import { fixed, number } from './format.js';
import { LUT, weightByte } from './colors.js';
import { chooseLayer, focus, setQuery, shownQuery } from './focus.js';
import { labelOf, pieces, visible } from './pieces.js';
import { state, setView, subscribe } from './state.js';

/** Pieces shown around the query. */
const WINDOW = 400;

const strip = el('div', { class: 'tokens', role: 'group', i18nLabel: 'tokens.strip', testid: 'tokens' });
const before = el('span', { class: 'note' });
const where = el('span', { class: 'where', testid: 'query' });
const sums = el('p', { class: 'note', testid: 'key-sum' });
const layers = el('span', {});
const live = button('tokens.live', () => setQuery(null), { testid: 'follow', 'aria-pressed': 'true' });
let layersOf = '';
let scrolledTo = -1;

export function tokens() {
  const { root } = panel('tokens', 'tokens.title', { controls: [
    el('span', { class: 'controls' },
      el('button', { type: 'button', text: '◀', i18nLabel: 'tokens.previous', testid: 'previous', on: { click: () => step(-1) } }), where,
      el('button', { type: 'button', text: '▶', i18nLabel: 'tokens.next', testid: 'next', on: { click: () => step(1) } }), live, layers)] },
  strip, sums);
  strip.addEventListener('click', (event) => {
    const token = event.target.closest('[data-position]');
    if (!token) return;
    const position = Number(token.dataset.position);
    if (event.shiftKey) toggleKey(position);
    else setQuery(position);
  });
  strip.addEventListener('mouseover', tip);
  strip.addEventListener('focusin', tip);
  subscribe(['tokens', 'row', 'view', 'focus', 'lang'], render);
  return root;
}

export function step(by) {
  if (focus?.length) setQuery(shownQuery() + by);
}

/** Adds a key to the sum, or takes it out. */
export function toggleKey(position) {
  const keys = new Set(state.view.keys);
  if (!keys.delete(position)) keys.add(position);
  setView({ keys });
}

/** The weights of the query over its keys: the mean of the heads shown. */
function meanWeights() {
  const { row } = focus;
  if (!row) return null;
  const n = row.query + 1;
  const heads = focus.model.num_attention_heads;
  const mean = new Float32Array(n);
  let shown = 0;
  for (let h = 0; h < heads; h++) {
    if (state.view.hidden.has(h)) continue;
    shown++;
    for (let k = 0; k < n; k++) mean[k] += row.data[h * n + k];
  }
  return mean.map((x) => x / Math.max(1, shown));
}

function renderLayers() {
  const name = focus?.model ? `${focus.session} ${focus.info?.only_layer} ${focus.model.num_hidden_layers} ${state.view.layer} ${document.documentElement.lang}` : '';
  if (layersOf === name) return;
  layersOf = name;
  if (!focus?.model) return void fill(layers);
  fill(layers, el('label', {}, el('span', { i18n: 'tokens.layer' }), select(
    Array.from({ length: focus.model.num_hidden_layers }, (_, i) => [String(i), String(i), true]), String(state.view.layer),
    (value) => chooseLayer(Number(value)), { testid: 'layer', disabled: focus.info?.only_layer !== undefined })));
}

function render() {
  renderLayers();
  const query = shownQuery();
  live.setAttribute('aria-pressed', String(state.view.query === null));
  if (!focus || focus.status === 'loading' || query < 0) {
    fill(strip, before);
    setText(before, '');
    setText(where, '');
    setText(sums, '');
    return;
  }
  if (before.parentNode !== strip) fill(strip, before);
  setText(where, t('tokens.query', { position: query }));
  const weights = focus.row?.query === query ? meanWeights() : null;
  const shown = focus.tokens.length ? pieces : Array.from({ length: focus.length }, (_, i) => ({ from: i, n: 1, text: null }));
  const first = Math.max(0, Math.min(shown.length - WINDOW, shown.findIndex((p) => p.from + p.n > query) - WINDOW / 2));
  const window = shown.slice(first, first + WINDOW);
  setText(before, first > 0 ? `… ${first}` : '');
  while (strip.childElementCount - 1 > window.length) strip.lastElementChild.remove();
  window.forEach((piece, i) => updateToken(strip.children[i + 1] ?? strip.appendChild(el('button', { type: 'button', class: 'token' })), piece, query, weights));
  if (query !== scrolledTo) {
    scrolledTo = query;
    const current = strip.querySelector('[aria-current]');
    if (current) strip.scrollTop += Math.max(0, current.offsetTop + current.offsetHeight - strip.scrollTop - strip.clientHeight) - Math.max(0, strip.scrollTop - current.offsetTop);
  }
  renderSums(query);
}

function weightOf(piece, weights) {
  let weight = 0;
  for (let i = piece.from; i < piece.from + piece.n; i++) weight += weights?.[i] ?? 0;
  return weight;
}

/* Hundreds of them, at each step: only what is another is touched. */
function updateToken(node, piece, query, weights) {
  const id = focus.tokens[piece.from];
  const text = piece.text ? visible(piece.text) : id === undefined ? `x${piece.from}` : `<${id}>`;
  const isQuery = query >= piece.from && query < piece.from + piece.n;
  const isFuture = piece.from > query;
  const byte = weights && !isFuture ? weightByte(Math.min(1, weightOf(piece, weights)), state.view.scale) : -1;
  const look = `${piece.from} ${text} ${isQuery} ${isFuture} ${state.view.keys.has(piece.from)} ${byte}`;
  if (node.look === look) return;
  node.look = look;
  setText(node, text);
  Object.assign(node.dataset, { position: piece.from, piece: piece.text ?? '' });
  if (isQuery) node.setAttribute('aria-current', 'true');
  else node.removeAttribute('aria-current');
  node.classList.toggle('future', isFuture);
  node.classList.toggle('summed', state.view.keys.has(piece.from));
  node.style.setProperty('--tint', byte < 0 ? '' : `rgb(${LUT[3 * byte]} ${LUT[3 * byte + 1]} ${LUT[3 * byte + 2]})`);
}

/* Nobody reads four hundred of them at once. */
function tip(event) {
  const node = event.target.closest('[data-position]');
  if (!node || !focus) return;
  const position = Number(node.dataset.position);
  const weights = focus.row?.query === shownQuery() ? meanWeights() : null;
  node.title = t('tokens.tip', { position, id: focus.tokens[position] ?? '-', weight: number(weights?.[position] ?? 0) });
}

function renderSums(query) {
  const keys = [...state.view.keys].filter((k) => k <= query).sort((a, b) => a - b);
  if (!keys.length || !focus.row || focus.row.query !== query) return setText(sums, '');
  const n = focus.row.query + 1;
  const heads = [];
  for (let h = 0; h < focus.model.num_attention_heads; h++) {
    if (!state.view.hidden.has(h)) heads.push(`Q${h} ${fixed(keys.reduce((sum, k) => sum + focus.row.data[h * n + k], 0), 4)}`);
  }
  setText(sums, t('tokens.sum', { keys: keys.map((k) => `${k} ${labelOf(k)}`).join(', '), heads: heads.join('  ') }));
}
