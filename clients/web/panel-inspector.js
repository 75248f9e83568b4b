// The inspector: one head, one query, one key. The browser computes q·k/√D, the softmax and z itself,
// from the vectors that the server gave, and says whether the server's numbers are the same.
import { getTensor } from './api.js';
import { el, fill, panel, select, setText } from './dom.js';
import { t } from './i18n.js';
import { number } from './format.js';
import { focus, loading, shownQuery } from './focus.js';
import { labelOf } from './pieces.js';
import { dot, largestDifference, length, softmax } from './maths.js';
import { state, setView, subscribe, touch } from './state.js';

const STAGES = ['raw', 'normed', 'rot'];
const body = el('div', { class: 'inspector', testid: 'inspector' });
const names = el('p', { class: 'what' });
const checks = el('ul', { class: 'checks', testid: 'checks' });
let badge;
/** What is shown, and of what: name. @type {any} */
let loaded = null;
let busy = false;
/** Beside a running decode the newest query is inspected this often, not at each step. */
const EVERY_MS = 400;
let nextAt = 0;
let timer = 0;

export function inspector() {
  const made = panel('inspector', 'inspector.title', { shape: true, note: 'inspector.note' }, checks, body);
  badge = made.badge;
  subscribe(['row', 'cache', 'view', 'focus'], load);
  subscribe(['inspector', 'lang'], render);
  subscribe(['tokens'], renderNames);
  return made.root;
}

export const inspected = () => loaded;

/** The rows of one KV head among those of all, of the first n positions. */
function headRows(data, n, kv, kvHeads, dim) {
  const rows = new Float32Array(n * dim);
  for (let i = 0; i < n; i++) rows.set(data.subarray((i * kvHeads + kv) * dim, (i * kvHeads + kv + 1) * dim), i * dim);
  return rows;
}

async function load() {
  const query = shownQuery();
  if (!focus?.model || loaded?.session !== focus.session || query < 0) {
    loaded = null;
    touch('inspector');
  }
  if (busy || focus?.status !== 'ok' || query < 0) return;
  const { layer, head } = state.view;
  const name = `${focus.session} ${focus.info.created} ${layer} ${head} ${query}`;
  if (loaded?.name === name) return touch('inspector');
  if (focus.row?.query !== query || focus.cached <= query) return; // they are on their way
  clearTimeout(timer);
  const wait = nextAt - performance.now();
  if (loaded && state.view.query === null && wait > 0) {
    timer = setTimeout(load, wait);
    return;
  }
  busy = true;
  const { session, model, key, value, row } = focus;
  const { num_key_value_heads: kvHeads, head_dim: dim } = model;
  const kv = Math.floor(head / (model.num_attention_heads / kvHeads));
  try {
    const get = (tensor) => getTensor(session, `blocks.${layer}.attn.${tensor}`, { q: `${query}:${query + 1}`, heads: head }, { signal: loading() }).then((one) => one.data);
    const [rot, raw, normed, scores, z] = await Promise.all([get('hook_rot_q'), get('hook_q'), model.qk_norm ? get('hook_q_normed') : null, get('hook_attn_scores'), get('hook_z')]);
    const made = { name, session, query, layer, head, kv, dim, q: { raw, normed: normed ?? raw, rot }, scores, z,
      keys: headRows(key, query + 1, kv, kvHeads, dim), values: headRows(value, query + 1, kv, kvHeads, dim),
      pattern: row.data.slice(head * (query + 1), (head + 1) * (query + 1)), k: null, kOf: -1 };
    compute(made);
    if (focus?.session === session) loaded = made;
  } catch {
    return; // the session was changed meanwhile: the next event asks again
  } finally {
    busy = false;
    nextAt = performance.now() + EVERY_MS;
  }
  touch('inspector');
  load();
}

/** The browser's own numbers. */
function compute(one) {
  const { dim, query } = one;
  const row = (data, i) => data.subarray(i * dim, (i + 1) * dim);
  one.ownScores = Array.from({ length: query + 1 }, (_, i) => dot(one.q.rot, row(one.keys, i)) / Math.sqrt(dim));
  one.ownPattern = softmax(one.ownScores);
  one.ownZ = new Float64Array(dim);
  for (let i = 0; i <= query; i++) for (let d = 0; d < dim; d++) one.ownZ[d] += one.pattern[i] * row(one.values, i)[d];
  one.checks = [
    ['scores', largestDifference(one.ownScores, one.scores, 1), 1e-5],
    ['softmax', largestDifference(softmax(one.scores), one.pattern), 1e-6],
    ['z', largestDifference(one.ownZ, one.z, 1), 1e-5],
  ];
}

/** The chosen key's vectors before RoPE are asked for when a key is chosen. */
async function loadKey(one, key) {
  if (one.kOf === key || focus.status !== 'ok') return;
  one.kOf = key;
  const at = `blocks.${one.layer}.attn.`;
  const range = { q: `${key}:${key + 1}`, heads: one.kv };
  try {
    const get = (tensor) => getTensor(focus.session, `${at}${tensor}`, range, { signal: loading() }).then((tensor1) => tensor1.data);
    const [raw, normed, v] = await Promise.all([get('hook_k'), focus.model.qk_norm ? get('hook_k_normed') : null, get('hook_v')]);
    one.k = { raw, normed: normed ?? raw, rot: one.keys.subarray(key * one.dim, (key + 1) * one.dim), v };
    touch('inspector');
  } catch {
    one.kOf = -1;
  }
}

function bars(title, values, testid) {
  const largest = Math.max(1e-30, ...Array.from(values, Math.abs));
  const row = el('div', { class: 'bars', role: 'img', 'aria-label': `${title}: ${Array.from(values, number).join(', ')}`, testid });
  for (const x of values) {
    const bar = el('span', { class: x < 0 ? 'bar negative' : 'bar', title: number(x) });
    bar.style.setProperty('--size', `${(100 * Math.abs(x)) / largest}%`);
    row.append(el('span', { class: 'bar-cell' }, bar, values.length <= 16 ? el('span', { class: 'bar-number', text: number(Number(x.toPrecision(3))) }) : null));
  }
  return el('div', { class: 'vector' }, el('span', { class: 'vector-name', text: title }), row);
}

function renderChecks() {
  fill(checks, ...loaded.checks.map(([name, difference, tolerance]) => {
    const ok = difference <= tolerance;
    return el('li', { class: ok ? 'ok' : 'bad', testid: `check-${name}`, data: { ok: String(ok) } },
      el('span', { class: 'tick', 'aria-hidden': 'true', text: ok ? '✓' : '✗' }),
      el('span', { text: t(`inspector.check.${name}`, { difference: difference.toExponential(1), tolerance: tolerance.toExponential(0), verdict: t(ok ? 'inspector.same' : 'inspector.differs') }) }));
  }));
}

function renderNames() {
  if (!loaded || !focus) return;
  const key = Math.min(state.view.key, loaded.query);
  setText(names, t('inspector.what', { head: loaded.head, kv: loaded.kv, query: loaded.query, qtoken: labelOf(loaded.query), key, ktoken: labelOf(key) }));
}

function render() {
  if (!loaded || !focus?.model) {
    fill(body, el('p', { class: 'note', i18n: 'inspector.none' }));
    fill(checks);
    setText(badge, '');
    return;
  }
  const key = Math.min(state.view.key, loaded.query);
  setText(badge, `[${loaded.dim}]`);
  renderChecks();
  loadKey(loaded, key);
  renderNames();
  const { dim } = loaded;
  const pick = (value, n, onChange, testid) => el('input', { type: 'number', min: '0', max: String(n - 1), value: String(value), testid, on: { change: (event) => onChange(Math.max(0, Math.min(n - 1, Number(event.target.value)))) } });
  const stages = focus.model.qk_norm ? STAGES : STAGES.filter((one) => one !== 'normed');
  const stage = stages.includes(state.view.stage) ? state.view.stage : 'rot';
  const focused = document.activeElement?.dataset?.testid;
  const head = el('div', { class: 'controls' },
    el('label', {}, el('span', { i18n: 'inspector.head' }), pick(loaded.head, focus.model.num_attention_heads, (h) => setView({ head: h }), 'inspect-head')),
    el('label', {}, el('span', { i18n: 'inspector.key' }), pick(key, loaded.query + 1, (k) => setView({ key: k }), 'inspect-key')),
    el('label', {}, el('span', { i18n: 'inspector.stage' }), select(stages.map((one) => [one, `inspector.stage.${one}`]), stage, (value) => setView({ stage: value }), { testid: 'stage' })));
  const parts = [head, names];
  if (loaded.k && loaded.kOf === key) {
    const q = loaded.q[stage];
    const k = loaded.k[stage];
    const product = Array.from(q, (x, i) => x * k[i]);
    parts.push(bars(`q  |q| = ${number(length(q))}`, q, 'vector-q'), bars(`k  |k| = ${number(length(k))}`, k, 'vector-k'), bars('q ⊙ k', product, 'vector-product'));
    const sum = product.reduce((a, b) => a + b, 0);
    parts.push(el('p', { class: 'formula', testid: 'formula' }, t('inspector.sum', { sum: number(sum), dim, score: number(sum / Math.sqrt(dim)) })));
    if (stage !== 'rot') parts.push(el('p', { class: 'note', i18n: 'inspector.notlast' }));
  }
  parts.push(el('table', { class: 'numbers', testid: 'numbers' },
    el('thead', {}, el('tr', {}, ...['', 'inspector.own', 'inspector.server'].map((one) => (one ? el('th', { scope: 'col', i18n: one }) : el('td', {}))))),
    el('tbody', {},
      tableRow('inspector.score', loaded.ownScores[key], loaded.scores[key], 'score'),
      tableRow('inspector.weight', loaded.ownPattern[key], loaded.pattern[key], 'weight'))));
  if (loaded.k && loaded.kOf === key) parts.push(bars(`v(${key})`, loaded.k.v, 'vector-v'));
  parts.push(bars('z = Σ p·v', loaded.z, 'vector-z'));
  fill(body, ...parts);
  if (focused) body.querySelector(`[data-testid="${focused}"]`)?.focus();
}

function tableRow(key, own, server, testid) {
  return el('tr', {}, el('th', { scope: 'row', i18n: key }), el('td', { text: number(own), testid: `own-${testid}` }), el('td', { text: number(server), testid: `server-${testid}`, data: { value: String(server) } }));
}
