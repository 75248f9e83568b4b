// The causal mask: scores of a head, rows of queries against all keys; those of the future are -∞.
import { getTensor } from './api.js';
import { el, fill, panel, setText, button } from './dom.js';
import { t } from './i18n.js';
import { count, number } from './format.js';
import { focus } from './focus.js';
import { Heatmap } from './heatmap.js';
import { state, subscribe, touch } from './state.js';

/** Positions shown: the first ones. */
const MOST = 64;
const readout = el('p', { class: 'readout', testid: 'mask-readout' });
const text = el('p', { class: 'what', testid: 'mask-text' });
const map = new Heatmap({ label: '', testid: 'mask', readout });
let badge;
let loaded = null;
let busy = false;
let open = false;

export function mask() {
  const made = panel('mask', 'mask.title', { shape: true, note: 'mask.note', controls: [button('mask.show', () => { open = true; loaded = null; load(); }, { testid: 'mask-show' })] }, text, map.root, readout);
  map.root.hidden = true;
  badge = made.badge;
  subscribe(['focus', 'view', 'cache'], load);
  subscribe(['mask', 'lang'], render);
  return made.root;
}

async function load() {
  if (!open || busy || !focus?.model || focus.status !== 'ok' || !focus.length) return;
  const { head, layer } = state.view;
  const n = Math.min(MOST, focus.length);
  const name = `${focus.session} ${layer} ${head} ${n}`;
  if (loaded?.name === name) return;
  busy = true;
  try {
    const { data } = await getTensor(focus.session, `blocks.${layer}.attn.hook_attn_scores`, { q: `0:${n}`, heads: head });
    loaded = { name, n, head, data };
    touch('mask');
  } catch {
    loaded = null;
  } finally {
    busy = false;
  }
}

function render() {
  if (!loaded) return;
  const { n, head, data } = loaded;
  let hidden = 0;
  let [least, most] = [Infinity, -Infinity];
  for (const x of data) {
    if (x === -Infinity) hidden++;
    else [least, most] = [Math.min(least, x), Math.max(most, x)];
  }
  const out = new Int16Array(n * n);
  for (let i = 0; i < n * n; i++) out[i] = data[i] === -Infinity ? -1 : Math.round((255 * (data[i] - least)) / Math.max(1e-30, most - least));
  map.root.hidden = false;
  map.label = t('mask.label', { head });
  map.set({ rows: n, columns: n, bytes: out, cellWidth: 14, height: Math.min(320, 14 * n),
    describe: (q, k) => t('mask.cell', { query: q, key: k, score: number(data[q * n + k]) }) });
  setText(badge, `[${n}, ${n}]`);
  map.root.dataset.masked = String(hidden);
  setText(text, t('mask.text', { n, hidden: count(hidden), product: `${n}·${n - 1}/2` }));
}
