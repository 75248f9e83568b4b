// What is seen, to take away: pictures, numbers, tensors, a link.
import { getTensor } from './api.js';
import { button } from './dom.js';
import { focus, shownQuery } from './focus.js';
import { write } from './safetensors.js';
import { state } from './state.js';

/** Gives the browser a file to save. */
export function save(name, content, type) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

const stem = (what) => `${focus?.session ?? 'attnd'}-layer${state.view.layer}-${what}`.replaceAll(':', '_');

/** All pictures under a node, one above the other, each cell some pixels large. */
export async function picture(node) {
  const canvases = [...node.querySelectorAll('canvas')].filter((one) => one.width && one.height && one.getClientRects().length);
  const cell = Math.max(1, Math.floor(1200 / Math.max(1, ...canvases.map((one) => one.width))));
  const all = document.createElement('canvas');
  all.width = Math.max(1, ...canvases.map((one) => one.width * cell));
  all.height = Math.max(1, canvases.reduce((sum, one) => sum + one.height * cell + 8, 0));
  const context = all.getContext('2d');
  context.imageSmoothingEnabled = false;
  let y = 0;
  for (const one of canvases) {
    context.drawImage(one, 0, y, one.width * cell, one.height * cell);
    y += one.height * cell + 8;
  }
  return new Promise((done) => all.toBlob(done, 'image/png'));
}

export const exportButton = (what, node) => button('export.png', async () => save(`${stem(what)}.png`, await picture(node()), 'image/png'), { class: 'small', testid: `png-${what}` });

/** The weights of the query shown: a line for each key, a column for each head. */
export function rowAsCsv() {
  const { row } = focus;
  const n = row.query + 1;
  const heads = focus.model.num_attention_heads;
  const lines = [['key', ...Array.from({ length: heads }, (_, h) => `q${h}`)].join(',')];
  for (let k = 0; k < n; k++) lines.push([k, ...Array.from({ length: heads }, (_, h) => row.data[h * n + k])].join(','));
  return `${lines.join('\n')}\n`;
}

export const csvButton = () => button('export.csv', () => focus?.row && save(`${stem(`query${focus.row.query}`)}.csv`, rowAsCsv(), 'text/csv'), { class: 'small', testid: 'csv' });

/** Everything of the query shown: vectors, scores, weights, and the layer's cache up to it. */
export async function queryAsTensors() {
  const query = shownQuery();
  const { layer } = state.view;
  const q = `${query}:${query + 1}`;
  const names = ['hook_q', 'hook_k', 'hook_v', 'hook_rot_q', 'hook_rot_k', 'hook_attn_scores', 'hook_pattern', 'hook_z'].map((one) => `blocks.${layer}.attn.${one}`);
  const tensors = {};
  for (const name of names) tensors[name] = await getTensor(focus.session, name, { q });
  for (const what of ['key', 'value']) tensors[`past_key_values.${layer}.${what}`] = await getTensor(focus.session, `past_key_values.${layer}.${what}`, { k: `0:${query + 1}` });
  return write(tensors, { session: focus.session, model: focus.model.name, position: String(query) });
}

export const tensorsButton = () => button('export.tensors', async () => {
  if (focus?.length) save(`${stem(`query${shownQuery()}`)}.safetensors`, await queryAsTensors(), 'application/octet-stream');
}, { class: 'small', testid: 'safetensors' });
