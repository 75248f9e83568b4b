// Recordings: one layer of a session in a file, and its replay without a server.
//
// A recording is a safetensors file: the cache and every position's tensors of one layer as the server
// gave them; in its metadata the session, the model, tokens, texts, and when the cache grew. Opened, it
// takes the server's place: it answers the page's requests from the file, and its watch tells the events
// again, so that every panel works as ever.
import { ApiError, getTensor, setTransport } from './api.js';
import { sqrtByte } from './colors.js';
import { focus } from './focus.js';
import { textsOf } from './pieces.js';
import { parse, write } from './safetensors.js';
import { state } from './state.js';

/** Numbers that a recording may hold. */
const MOST = 32 << 20;
const isSquare = (name) => /hook_(attn_scores|pattern)$/.test(name);

/** All of a tensor, for as long as the server gives it in pieces. */
async function whole(session, name, length, heads) {
  if (!isSquare(name)) return getTensor(session, name);
  const data = new Float32Array(heads * length * length).fill(name.endsWith('scores') ? -Infinity : 0);
  const chunk = Math.max(1, Math.floor((2 << 20) / (heads * length)));
  for (let from = 0; from < length; from += chunk) {
    const to = Math.min(length, from + chunk);
    const part = await getTensor(session, name, { q: `${from}:${to}` });
    for (let h = 0; h < heads; h++) {
      for (let q = from; q < to; q++) data.set(part.data.subarray((h * (to - from) + q - from) * to, (h * (to - from) + q - from + 1) * to), (h * length + q) * length);
    }
  }
  return { dtype: 'F32', shape: [heads, length, length], data };
}

/** The session that is shown, as a file. */
export async function record() {
  const { session, model, info, length, timeline } = focus;
  const { layer } = state.view;
  const heads = model.num_attention_heads;
  if (2 * heads * length * length > MOST) throw new ApiError(413, { code: 'tensor_too_large', message: `${2 * heads * length * length} > ${MOST}` });
  const names = ['hook_q', 'hook_k', 'hook_v', 'hook_rot_q', 'hook_attn_scores', 'hook_pattern', 'hook_z', ...(model.qk_norm ? ['hook_q_normed', 'hook_k_normed'] : [])]
    .map((name) => `blocks.${layer}.attn.${name}`).concat(['key', 'value'].map((name) => `past_key_values.${layer}.${name}`));
  const tensors = {};
  for (const name of names) tensors[name] = await whole(session, name, length, heads);
  const last = timeline.findLastIndex((one) => one.kind === 'truncate' || one.kind === 'start');
  const events = timeline.slice(Math.max(0, last)).map(({ at, kind, length: n }) => ({ at: Math.round(at), kind, length: n }));
  const about = { info: { ...info, length }, model, layer, tokens: focus.tokens, texts: textsOf(focus), events };
  return write(tensors, { attnd_recording: '1', about: JSON.stringify(about) });
}

/** @typedef {{info: any, model: any, layer: number, tokens: number[], texts: any, length: number, events: any[], tensors: Record<string, import('./safetensors.js').Tensor>}} Tape */

/** Reads a recording. @returns {Tape} */
export function readRecording(buffer) {
  const { tensors, metadata } = parse(buffer);
  if (metadata.attnd_recording !== '1') throw new Error('no recording');
  const about = JSON.parse(metadata.about);
  const { length } = about.info;
  let { events } = about;
  if (events.length < 2 || events.at(-1).length !== length) {
    /* Nobody saw it grow: position by position, in 20 s at most. */
    const pace = Math.min(150, 20000 / length);
    events = Array.from({ length }, (_, i) => ({ at: i * pace, kind: 'step', length: i + 1 }));
  }
  return { ...about, events, length, tensors, model: { ...about.model, tokenizer: false } };
}

const span = (text, otherwise) => (text ? text.split(':').map(Number) : otherwise);

/** What a server would answer to GET .../tensors/{name}. */
export function slice(tape, length, name, query) {
  const tensor = tape.tensors[name];
  if (!tensor) return null;
  const head = query.get('heads');
  const isCache = name.startsWith('past_key_values');
  const [from, to] = span(query.get(isCache ? 'k' : 'q'), [0, length]);
  if (!isSquare(name)) {
    const [, n, dim] = tensor.shape;
    const [first, heads] = head === null ? [0, n] : [Number(head), 1];
    const data = new Float32Array((to - from) * heads * dim);
    for (let i = from; i < to; i++) data.set(tensor.data.subarray((i * n + first) * dim, (i * n + first + heads) * dim), (i - from) * heads * dim);
    return { dtype: 'F32', shape: [to - from, heads, dim], data };
  }
  const [n, all] = tensor.shape;
  const [first, heads] = head === null ? [0, n] : [Number(head), 1];
  const data = new Float32Array(heads * (to - from) * to);
  for (let h = 0; h < heads; h++) {
    for (let q = from; q < to; q++) data.set(tensor.data.subarray(((first + h) * all + q) * all, ((first + h) * all + q) * all + to), (h * (to - from) + q - from) * to);
  }
  const shape = [heads, to - from, to];
  return query.get('dtype') === 'U8' ? { dtype: 'U8', shape, data: Uint8Array.from(data, sqrtByte) } : { dtype: 'F32', shape, data };
}

/** Plays a tape in the server's place. */
export class Replay {
  /** @param {Tape} tape @param {() => void} onChange */
  constructor(tape, onChange) {
    this.tape = tape;
    this.onChange = onChange;
    this.at = 0;
    this.timer = 0;
    this.seq = 0;
    /** @type {ReadableStreamDefaultController | null} */
    this.watch = null;
    setTransport((method, path) => this.#answer(method, new URL(path, location.origin)));
  }

  get length() { return this.tape.events[this.at].length; }

  get isPlaying() { return this.timer !== 0; }

  #bytes(length) {
    const { page_positions: page } = this.tape.model.limits;
    return Math.ceil(length / page) * page * this.tape.model.kv_bytes_per_position[this.tape.info.kv.dtype];
  }

  #session() {
    return { session: this.tape.info.session, model: this.tape.model.name, length: this.length, kv_bytes: this.#bytes(this.length), state: 'idle' };
  }

  #answer(method, url) {
    const { tape } = this;
    const json = (object) => Response.json(object);
    const path = url.pathname;
    const own = `/sessions/${tape.info.session}`;
    if (path === '/models') return json({ models: [tape.model], default: tape.model.name });
    if (path === '/watch') return new Response(new ReadableStream({ start: (controller) => { this.watch = controller; this.#greet(); } }));
    if (method === 'GET' && path === own) return json({ ...tape.info, length: this.length, kv: { ...tape.info.kv, bytes: this.#bytes(this.length) }, only_layer: tape.layer });
    if (path === `${own}/tokens`) return json({ length: this.length, tokens: tape.tokens.slice(0, this.length) });
    if (path.startsWith(`${own}/tensors/`)) {
      const name = path.slice(`${own}/tensors/`.length);
      const tensor = slice(tape, this.length, name, url.searchParams);
      if (tensor) return new Response(write({ [name]: tensor }));
    }
    return Response.json({ error: { code: 'not_supported', message: `${method} ${path}` } }, { status: 501 });
  }

  #say(event) {
    try {
      this.watch?.enqueue(new TextEncoder().encode(`${JSON.stringify({ ...event, seq: this.seq++ })}\n`));
    } catch {
      this.watch = null; // the page watches anew
    }
  }

  #greet() {
    this.seq = 0;
    this.#say({ event: 'hello', sessions: [this.#session()], more: false });
  }

  /** Goes to an event. */
  seek(at) {
    const before = this.length;
    this.at = Math.max(0, Math.min(this.tape.events.length - 1, at));
    const { kind, length } = this.tape.events[this.at];
    const isStep = kind === 'step' && length === before + 1;
    this.#say({ ...this.#session(), event: length < before ? 'truncated' : isStep ? 'step' : 'prefill', processed: length, total: length,
      ...(isStep ? { step: 0, position: before, token: this.tape.tokens[before] } : {}) });
    this.onChange();
  }

  play() {
    if (this.at === this.tape.events.length - 1) this.seek(0);
    const next = () => {
      this.seek(this.at + 1);
      this.timer = this.at < this.tape.events.length - 1 ? window.setTimeout(next, this.#pause()) : 0;
      this.onChange();
    };
    this.timer = window.setTimeout(next, this.#pause());
    this.onChange();
  }

  /* Nobody wants to wait as long as somebody thought. */
  #pause() {
    const { events } = this.tape;
    return Math.max(0, Math.min(1000, events[this.at + 1].at - events[this.at].at));
  }

  stop() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.onChange();
  }

  end() {
    this.stop();
    setTransport(null);
  }
}
