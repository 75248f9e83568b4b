// The seven lessons: each makes a small session on the built-in attention layer, looks into it with
// the same requests that the panels use, and says which claims hold.
import { call, getTensor } from './api.js';
import { dot, largestDifference, length, softmax } from './maths.js';
import { number } from './format.js';

export const MODEL = 'seed-attention';
export const SESSION = 'lesson';

/** Rows of 16 numbers, the same that clients/curl/lessons.sh uses. */
export const rows = (n) => Array.from({ length: n }, (_, i) => Array.from({ length: 16 }, (_unused, j) => ((i * 7 + j * j * 3 + i * j) % 17 - 8) / 8));

/**
 * @typedef {{claim: string, ok: boolean, params?: Record<string, any>}} Claim the text is lesson.N.CLAIM
 * @typedef {{method: string, path: string, body?: any}} Call
 * @typedef {object} Lesson
 * @property {string} panel the panel to look at
 * @property {Call[]} calls what curl would do
 * @property {(context: {look: () => Promise<void>}) => Promise<Claim[]>} run `look` shows the session
 */

const tensorPath = (name, range = '') => `/sessions/${SESSION}/tensors/${name}${range}`;
const prefillCall = (inputs) => ({ method: 'POST', path: '/prefill', body: { session: SESSION, model: MODEL, inputs } });
const attn = (name) => `blocks.0.attn.${name}`;
const get = (name, range) => getTensor(SESSION, name, range);
const remove = { method: 'DELETE', path: `/sessions/${SESSION}` };
const verifyCall = { method: 'POST', path: `/sessions/${SESSION}/verify` };

/** Starts over with these rows. */
async function begin(inputs, look) {
  await call('DELETE', `/sessions/${SESSION}`).catch(() => null);
  const reply = await call('POST', '/prefill', { ...prefillCall(inputs).body, output: 'all' });
  await look();
  return reply;
}

const same = (shape, wanted) => shape.join() === wanted.join();
/** Row [position][head] of a [positions, heads, dim] tensor. */
const vector = (tensor, position, head) => {
  const [, heads, dim] = tensor.shape;
  return tensor.data.subarray((position * heads + head) * dim, (position * heads + head + 1) * dim);
};

/** @type {Lesson[]} */
export const LESSONS = [
  {
    panel: 'cache',
    calls: [remove, prefillCall(rows(5)), ...['hook_q', 'hook_k', 'hook_v'].map((name) => ({ method: 'GET', path: tensorPath(attn(name)) }))],
    async run({ look }) {
      await begin(rows(5), look);
      const [q, k, v] = await Promise.all(['hook_q', 'hook_k', 'hook_v'].map((name) => get(attn(name))));
      return [
        { claim: 'q', ok: same(q.shape, [5, 4, 8]), params: { shape: q.shape.join(', ') } },
        { claim: 'kv', ok: same(k.shape, [5, 2, 8]) && same(v.shape, [5, 2, 8]), params: { shape: k.shape.join(', ') } },
      ];
    },
  },
  {
    panel: 'heads',
    calls: [remove, prefillCall(rows(5)), { method: 'GET', path: tensorPath(attn('hook_rot_q'), '?q=4:5') }, { method: 'GET', path: tensorPath('past_key_values.0.key') },
      { method: 'GET', path: tensorPath(attn('hook_attn_scores'), '?q=4:5') }],
    async run({ look }) {
      await begin(rows(5), look);
      const range = { q: '4:5' };
      const [q, key, scores] = await Promise.all([get(attn('hook_rot_q'), range), get('past_key_values.0.key'), get(attn('hook_attn_scores'), range)]);
      return [0, 1, 2, 3].map((head) => {
        const kv = Math.floor(head / 2);
        const own = Array.from({ length: 5 }, (_, i) => dot(vector(q, 0, head), vector(key, i, kv)) / Math.sqrt(8));
        return { claim: 'head', ok: largestDifference(own, scores.data.subarray(5 * head, 5 * head + 5), 1) <= 1e-5, params: { head, kv, score: number(own[4]) } };
      });
    },
  },
  {
    panel: 'rope',
    calls: [remove, prefillCall([rows(2)[1], rows(2)[1], rows(2)[1]]), { method: 'GET', path: tensorPath(attn('hook_k_normed')) }, { method: 'GET', path: tensorPath(attn('hook_rot_k')) }],
    async run({ look }) {
      const row = rows(2)[1];
      await begin([row, row, row], look);
      const [before, after] = await Promise.all([get(attn('hook_k_normed')), get(attn('hook_rot_k'))]);
      const at = (tensor, m) => vector(tensor, m, 0);
      const [a, b] = [dot(at(after, 0), at(after, 1)), dot(at(after, 1), at(after, 2))];
      return [
        { claim: 'equal', ok: largestDifference(at(before, 0), at(before, 1)) === 0 && largestDifference(at(before, 1), at(before, 2)) === 0 },
        { claim: 'zero', ok: largestDifference(at(before, 0), at(after, 0)) === 0 },
        { claim: 'norm', ok: [0, 1, 2].every((m) => Math.abs(length(at(before, m)) - length(at(after, m))) <= 1e-5), params: { norm: number(length(at(after, 2))) } },
        { claim: 'distance', ok: Math.abs(a - b) <= 1e-4, params: { a: number(a), b: number(b) } },
      ];
    },
  },
  {
    panel: 'mask',
    calls: [remove, prefillCall(Array.from({ length: 5 }, () => new Array(16).fill(0))), { method: 'GET', path: tensorPath(attn('hook_attn_scores'), '?heads=0') }, { method: 'GET', path: tensorPath(attn('hook_pattern'), '?heads=0') }],
    async run({ look }) {
      await begin(Array.from({ length: 5 }, () => new Array(16).fill(0)), look);
      const [scores, pattern] = await Promise.all([get(attn('hook_attn_scores'), { heads: '0' }), get(attn('hook_pattern'), { heads: '0' })]);
      const cells = Array.from({ length: 25 }, (_, i) => ({ i: Math.floor(i / 5), j: i % 5, s: scores.data[i], p: pattern.data[i] }));
      const future = cells.filter((one) => one.j > one.i);
      return [
        { claim: 'future', ok: future.every((one) => one.s === -Infinity && one.p === 0), params: { n: future.length } },
        { claim: 'even', ok: cells.every((one) => one.j > one.i || Math.abs(one.p - 1 / (one.i + 1)) <= 1e-6) },
        { claim: 'sum', ok: [0, 1, 2, 3, 4].every((i) => Math.abs(cells.filter((one) => one.i === i).reduce((sum, one) => sum + one.p, 0) - 1) <= 1e-5) },
      ];
    },
  },
  {
    panel: 'inspector',
    calls: [remove, prefillCall(rows(6)), { method: 'GET', path: tensorPath(attn('hook_pattern'), '?q=5:6') }, { method: 'GET', path: tensorPath('past_key_values.0.value') }, { method: 'GET', path: tensorPath(attn('hook_z'), '?q=5:6') }],
    async run({ look }) {
      const reply = await begin(rows(6), look);
      const range = { q: '5:6' };
      const [pattern, scores, value, z] = await Promise.all([get(attn('hook_pattern'), range), get(attn('hook_attn_scores'), range), get('past_key_values.0.value'), get(attn('hook_z'), range)]);
      const weights = pattern.data.subarray(18, 24);
      const own = Array.from({ length: 8 }, (_, d) => weights.reduce((sum, p, i) => sum + p * vector(value, i, 1)[d], 0));
      return [
        { claim: 'shape', ok: reply.output.length === 6 && reply.output[0].length === 16 },
        { claim: 'softmax', ok: largestDifference(softmax(scores.data.subarray(18, 24)), weights) <= 1e-6 },
        { claim: 'z', ok: largestDifference(own, vector(z, 0, 3), 1) <= 1e-5 },
      ];
    },
  },
  {
    panel: 'cache',
    calls: [remove, prefillCall(rows(4)), ...rows(7).slice(4).map((input) => ({ method: 'POST', path: '/decode', body: { session: SESSION, input } }))],
    async run({ look }) {
      const lengths = [(await begin(rows(4), look)).length];
      for (const input of rows(7).slice(4)) {
        await new Promise((done) => setTimeout(done, 700));
        lengths.push((await call('POST', '/decode', { session: SESSION, input })).length);
      }
      return [{ claim: 'lengths', ok: lengths.join() === '4,5,6,7', params: { lengths: lengths.join(' → ') } }, { claim: 'cost', ok: true }];
    },
  },
  {
    panel: 'verify',
    calls: [remove, prefillCall(rows(4)), ...rows(7).slice(4).map((input) => ({ method: 'POST', path: '/decode', body: { session: SESSION, input } })), verifyCall],
    async run({ look }) {
      await begin(rows(4), look);
      for (const input of rows(7).slice(4)) await call('POST', '/decode', { session: SESSION, input });
      const cached = await get('blocks.0.hook_attn_out', { q: '3:7' });
      const verified = await call('POST', verifyCall.path);
      const second = `${SESSION}-whole`;
      await call('DELETE', `/sessions/${second}`).catch(() => null);
      const whole = await call('POST', '/prefill', { session: second, model: MODEL, inputs: rows(7), output: 'all' });
      await call('DELETE', `/sessions/${second}`);
      const difference = largestDifference(Float32Array.from(whole.output.slice(3).flat()), cached.data);
      return [
        { claim: 'difference', ok: difference === 0, params: { difference } },
        { claim: 'verify', ok: verified.bit_identical, params: { difference: verified.max_abs_diff } },
      ];
    },
  },
];
