// The cache: K and V of every position, a lane for each KV head. A prefill arrives as a block, a
// decode step as one column.
import { el, fill, panel, select, setText } from './dom.js';
import { t } from './i18n.js';
import { bytes, number } from './format.js';
import { focus } from './focus.js';
import { Heatmap, poolColumns } from './heatmap.js';
import { labelOf } from './pieces.js';
import { state, setView, subscribe } from './state.js';
import { exportButton } from './export.js';

const MOST_COLUMNS = 1024;
const lanes = el('div', { class: 'lanes' });
const readout = el('p', { class: 'readout', testid: 'cache-readout' });
const summary = el('p', { class: 'note', testid: 'cache-bytes' });
const spark = el('canvas', { class: 'spark', 'aria-hidden': 'true', height: '40', width: '256', hidden: true });
/** @type {{key: Heatmap, value: Heatmap, label: HTMLElement}[]} */
let groups = [];
let groupsOf = '';
let badge;

export function cache() {
  const mode = select([['values', 'cache.values'], ['norm', 'cache.norm']], state.view.cacheMode, (value) => setView({ cacheMode: value }, 'cache'),
    { 'data-i18n-label': 'cache.mode', 'aria-label': t('cache.mode'), testid: 'cache-mode' });
  const made = panel('cache', 'cache.title', { shape: true, note: 'cache.note', controls: [el('span', { class: 'controls' }, mode, exportButton('cache', () => lanes))] },
    summary, lanes, el('div', { class: 'read-line' }, readout, spark));
  badge = made.badge;
  subscribe(['cache', 'focus', 'lang', 'view'], render);
  return made.root;
}

function build(kvHeads, share) {
  const name = `${focus.session} ${kvHeads} ${share} ${document.documentElement.lang}`;
  if (name === groupsOf) return;
  groupsOf = name;
  groups = [];
  fill(lanes);
  for (let h = 0; h < kvHeads; h++) {
    const queries = Array.from({ length: share }, (_, i) => `Q${h * share + i}`).join(', ');
    const make = (what) => new Heatmap({ label: t('cache.lane', { what, head: h }), testid: `cache-${what.toLowerCase()}-${h}`, readout,
      onPoint: (row, column) => drawSpark(what, h, column), onChoose: (_, column) => setView({ key: Math.min(focus.length - 1, column) }) });
    const group = { key: make('K'), value: make('V') };
    groups.push(group);
    lanes.append(el('div', { class: 'lane-group', role: 'group', 'aria-label': t('cache.group', { head: h, queries }), testid: `kv-group-${h}`, data: { kv: h } },
      el('div', { class: 'lane-label' }, el('strong', { text: `KV${h}` }), el('span', { text: t('cache.readby', { queries }) })),
      el('div', { class: 'lane' }, el('span', { text: 'K' }), group.key.root),
      el('div', { class: 'lane' }, el('span', { text: 'V' }), group.value.root)));
  }
}

/** Bytes of a lane: norms (one row) or each dimension (a row each), larger is brighter. */
function laneBytes(data, head, kvHeads, dim, n, columns) {
  const rows = state.view.cacheMode === 'norm' ? 1 : dim;
  const out = new Int16Array(rows * columns).fill(-1);
  const at = (position, d) => data[(position * kvHeads + head) * dim + d];
  let largest = 1e-30;
  const values = new Float32Array(rows * n);
  for (let p = 0; p < n; p++) {
    let sum = 0;
    for (let d = 0; d < dim; d++) {
      const x = at(p, d);
      sum += x * x;
      if (rows > 1) {
        values[d * n + p] = x;
        largest = Math.max(largest, Math.abs(x));
      }
    }
    if (rows === 1) {
      values[p] = Math.sqrt(sum);
      largest = Math.max(largest, values[p]);
    }
  }
  for (let r = 0; r < rows; r++) {
    for (let p = 0; p < n; p++) {
      const x = values[r * n + p] / largest;
      out[r * columns + p] = rows === 1 ? Math.round(255 * x) : Math.round(127.5 + 127.5 * x);
    }
  }
  return { rows, bytes: out };
}

function render() {
  if (!focus?.model) {
    fill(lanes);
    groupsOf = '';
    setText(summary, '');
    setText(readout, '');
    spark.hidden = true;
    return;
  }
  const { num_key_value_heads: kvHeads, head_dim: dim, num_attention_heads: heads, num_hidden_layers: layers } = focus.model;
  const n = focus.cached;
  build(kvHeads, heads / kvHeads);
  setText(badge, `[${n}, ${kvHeads}, ${dim}]`);
  /* The last page has room left. */
  const page = focus.model.limits.page_positions;
  const columns = n <= MOST_COLUMNS ? Math.ceil(Math.max(1, n) / page) * page : n;
  for (let h = 0; h < kvHeads; h++) {
    for (const [what, map, data] of [['K', groups[h].key, focus.key], ['V', groups[h].value, focus.value]]) {
      const lane = laneBytes(data, h, kvHeads, dim, n, columns);
      const pooled = poolColumns(lane.bytes, lane.rows, columns, MOST_COLUMNS);
      map.set({ rows: lane.rows, columns: pooled.columns, bytes: pooled.bytes, cellWidth: 20,
        height: lane.rows === 1 ? 16 : Math.min(96, Math.max(40, 4 * lane.rows)),
        newest: Math.floor(Math.min(focus.fresh, n) / pooled.size), end: focus.fresh < n ? Math.ceil(n / pooled.size) : 0,
        describe: (row, column) => describe(what, h, row, column, pooled.size, lane.rows) });
    }
  }
  const root = lanes.parentElement;
  if (root && root.dataset.kvLen !== String(n)) root.dataset.kvLen = String(n);
  renderSummary(n, layers, kvHeads, heads, dim);
}

function renderSummary(n, layers, kvHeads, heads, dim) {
  const dtype = focus.info.kv.dtype;
  const each = { f32: 4 * dim, f16: 2 * dim, bf16: 2 * dim, q8: dim + 4 }[dtype];
  const used = 2 * layers * kvHeads * each * n;
  setText(summary, t('cache.bytes', { used: bytes(used), exact: used, layers, kvHeads, each, n, dtype,
    mha: bytes((used * heads) / kvHeads), times: number(heads / kvHeads), pages: bytes(focus.info.kv.bytes) }));
  Object.assign(summary.dataset, { bytes: used, pages: focus.info.kv.bytes });
}

function describe(what, head, row, column, size, rows) {
  const position = column * size;
  if (position >= focus.cached) return t('cache.free', { position });
  const { num_key_value_heads: kvHeads, head_dim: dim } = focus.model;
  const data = what === 'K' ? focus.key : focus.value;
  const at = (position * kvHeads + head) * dim;
  const value = rows > 1 ? data[at + row] : Math.sqrt(data.slice(at, at + dim).reduce((sum, x) => sum + x * x, 0));
  return t(rows > 1 ? 'cache.cell' : 'cache.normcell', { what, head, position, token: labelOf(position), dim: row, value: number(value) });
}

/** The numbers of one position as a line. */
function drawSpark(what, head, column) {
  if (!focus) return;
  const { num_key_value_heads: kvHeads, head_dim: dim } = focus.model;
  const at = (column * kvHeads + head) * dim;
  const row = (what === 'K' ? focus.key : focus.value).slice(at, at + dim);
  const context = spark.getContext('2d');
  const { width, height } = spark;
  context.clearRect(0, 0, width, height);
  spark.hidden = column >= focus.cached;
  if (spark.hidden) return;
  const largest = Math.max(1e-30, ...row.map(Math.abs));
  context.fillStyle = getComputedStyle(spark).color;
  row.forEach((x, i) => {
    const tall = (Math.abs(x) / largest) * (height / 2 - 1);
    context.fillRect((i * width) / dim, x > 0 ? height / 2 - tall : height / 2, Math.max(1, width / dim - 1), Math.max(1, tall));
  });
}
