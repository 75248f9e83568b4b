// The chosen session: its cache, weights and tokens, loaded from the server and kept up by events.
//
// The cache of the chosen layer grows here as it grows there: a step's own tensors are appended when
// they arrive in order; whatever is missing (a prefill, frames left out, a reconnect) is fetched.
import { ApiError, getSession, getTensor, getText, getTokens } from './api.js';
import { sqrtByte } from './colors.js';
import { parseBase64 } from './safetensors.js';
import { state, touch } from './state.js';
import { resetPieces, updatePieces } from './pieces.js';

/** Rows of the history that are kept: the newest. */
export const HISTORY_MAX = 512;
/** Positions of the cache fetched at once. */
const CHUNK_POSITIONS = 4096;

/**
 * @typedef {object} Focus
 * @property {string} session
 * @property {any} model its entry of /models
 * @property {number} length committed positions
 * @property {'loading' | 'ok' | 'gone' | 'failed'} status
 * @property {string} reason why it is gone or failed
 * @property {any} info the session as GET /sessions/{id} tells it
 * @property {number} cached positions of key and value
 * @property {Float32Array} key [cached, kv_heads, head_dim]
 * @property {Float32Array} value the same
 * @property {number} fresh what stands from here on came with the last event; nothing: Infinity
 * @property {number[]} tokens
 * @property {number} prompt tokens that came by prefill, as far as this page saw it
 * @property {{query: number, data: Float32Array} | null} row weights [heads, query + 1] of the query shown
 * @property {Uint8Array[]} history by query - historyFrom: [heads, query + 1] bytes
 * @property {number} historyFrom
 * @property {{at: number, length: number, kind: string, ms: number | null, n: number}[]} timeline
 *   events since this page looks; ms: what the server took for a step at that time, once it is known
 * @property {{length: number, ms: number}[]} recomputed what verify took
 * @property {{position: number, chosen: number | null, list: any[]} | null} top
 */

/** @type {Focus | null} */
export let focus = null;

/** Called when what should be watched changes. */
let rewatch = () => {};
export const onSelection = (fn) => { rewatch = fn; };

/** The query that the panels show: the one chosen, or the newest. */
export const shownQuery = () => (!focus || !focus.length ? -1 : Math.min(state.view.query ?? focus.length - 1, focus.length - 1));

/** What /watch is asked for. */
export function watchSelection() {
  if (!focus || focus.status === 'gone') return null;
  return {
    session: focus.session,
    layers: String(state.view.layer),
    tensors: 'hook_pattern,hook_rot_k,hook_v',
    fps: '30',
  };
}

function cacheWidth() {
  return focus.model.num_key_value_heads * focus.model.head_dim;
}

/** Ends loads that nobody waits for any more. */
let loads = new AbortController();
function abortLoads() {
  loads.abort();
  loads = new AbortController();
}
export const loading = () => loads.signal;

/**
 * Chooses a session, or none.
 * @param {string | null} id
 * @param {object} [view] where to look
 * @param {number} [fresh] what is new of it
 */
export async function chooseSession(id, view = {}, fresh = Infinity) {
  if (focus?.session === id && focus.status === 'ok' && !Object.keys(view).length) return;
  abortLoads();
  if (!id) {
    focus = null;
    touch('focus', 'cache', 'row', 'history', 'tokens', 'timeline');
    rewatch();
    return;
  }
  const mine = {
    session: id, model: null, length: 0, status: 'loading', reason: '', info: null, cached: 0,
    key: new Float32Array(0), value: new Float32Array(0), fresh, tokens: [], prompt: 0, row: null,
    history: [], historyFrom: 0, timeline: [], recomputed: [], top: null, missed: false,
  };
  focus = /** @type {any} */ (mine);
  Object.assign(state.view, { query: null, key: 0, keys: new Set(), hidden: new Set() }, view);
  touch('focus', 'view');
  try {
    const info = await getSession(id);
    if (focus !== mine) return;
    mine.info = info;
    mine.model = state.models[info.model];
    mine.length = info.length;
    mine.status = 'ok';
    const v = state.view;
    v.layer = Math.min(v.layer, mine.model.num_hidden_layers - 1);
    v.head = Math.min(v.head, mine.model.num_attention_heads - 1);
    if (mine.model.num_attention_heads > 16 && !v.hidden.size) {
      for (let h = 8; h < mine.model.num_attention_heads; h++) v.hidden.add(h);
    }
    mine.timeline.push({ at: performance.now(), length: info.length, kind: 'start', ms: null, n: 0 });
  } catch (error) {
    if (focus !== mine) return;
    failFocus(error);
    if (mine.missed) chooseSession(id, view, 0); // it was made while the answer was under way
    return;
  }
  resetPieces();
  rewatch();
  countSteps();
  touch('focus', 'timeline');
  if (mine.missed) refreshFocus();
  else syncAll();
}

function failFocus(error) {
  const gone = error instanceof ApiError && error.code === 'session_not_found';
  focus.status = gone ? 'gone' : 'failed';
  focus.reason = gone ? 'deleted' : error.message;
  abortLoads();
  touch('focus');
  rewatch();
}

/** Before this page deletes the session: nothing more is asked of it. */
export function endFocus() {
  if (!focus) return;
  focus.status = 'gone';
  focus.reason = 'deleted';
  abortLoads();
  touch('focus');
}

/** Chooses a layer: all tensors are another layer's. */
export function chooseLayer(layer) {
  if (!focus?.model || layer < 0 || layer >= focus.model.num_hidden_layers || layer === state.view.layer) return;
  if (focus.info.only_layer !== undefined) return; // a recording has one
  state.view.layer = layer;
  forgetTensors();
  touch('view');
  rewatch();
  syncAll();
}

function forgetTensors() {
  focus.cached = 0;
  focus.row = null;
  focus.history = [];
  focus.historyFrom = 0;
  generation++;
  abortLoads();
}

/** Goes to a position; null: follows the newest. */
export function setQuery(query) {
  if (!focus) return;
  state.view.query = query === null ? null : Math.max(0, Math.min(query, focus.length - 1));
  const shown = shownQuery();
  if (state.view.key > shown) state.view.key = Math.max(0, shown);
  touch('view', 'row');
  syncRow();
}

// ---------------------------------------------------------------------------------------- loading

/** Counts what makes loads under way useless: another layer, a truncated session. */
let generation = 0;
/** Loaders at work; true: something happened since they last looked. @type {Map<string, boolean>} */
const running = new Map();

/** Runs a loader, one of a kind at a time; again while there is something to do. */
async function runLoader(kind, work) {
  if (running.has(kind)) return void running.set(kind, true);
  const mine = focus;
  try {
    let todo = true;
    while (focus === mine && focus?.status === 'ok' && (todo || running.get(kind))) {
      const at = generation;
      running.set(kind, false);
      try {
        todo = await work(() => focus === mine && at === generation);
      } catch (error) {
        if (error.name !== 'AbortError') throw error;
        todo = at !== generation;
      }
    }
  } catch (error) {
    /* A tensor request races with truncate and delete: events tell the rest. */
    if (!(error instanceof ApiError)) reportError(error);
    if (focus === mine && error instanceof ApiError && ['session_not_found', 'unreachable'].includes(error.code)) failFocus(error);
  } finally {
    running.delete(kind);
  }
  if (focus && focus !== mine && focus.status === 'ok') syncAll();
}

function syncAll() {
  syncCache();
  syncRow();
  syncHistory();
  syncTokens();
}

function grow(array, length) {
  if (array.length >= length) return array;
  const larger = new Float32Array(Math.max(length, 2 * array.length));
  larger.set(array);
  return larger;
}

function appendCache(from, n, key, value) {
  const width = cacheWidth();
  focus.key = grow(focus.key, (from + n) * width);
  focus.value = grow(focus.value, (from + n) * width);
  focus.key.set(key, from * width);
  focus.value.set(value, from * width);
  focus.cached = from + n;
  touch('cache');
}

const syncCache = () => runLoader('cache', async (valid) => {
  const from = focus.cached;
  const to = Math.min(focus.length, from + CHUNK_POSITIONS);
  if (to <= from) return false;
  const range = { k: `${from}:${to}` };
  const name = `past_key_values.${state.view.layer}`;
  const [key, value] = await Promise.all([
    getTensor(focus.session, `${name}.key`, range, { signal: loads.signal }), getTensor(focus.session, `${name}.value`, range, { signal: loads.signal })]);
  if (valid() && focus.cached === from) appendCache(from, to - from, key.data, value.data);
  return true;
});

const syncRow = () => runLoader('row', async (valid) => {
  const query = shownQuery();
  if (query < 0 || focus.row?.query === query) return false;
  const tensor = await getTensor(focus.session, `blocks.${state.view.layer}.attn.hook_pattern`, { q: `${query}:${query + 1}` }, { signal: loads.signal });
  if (valid() && (!focus.row || shownQuery() === query)) {
    focus.row = { query, data: /** @type {Float32Array} */ (tensor.data) };
    touch('row');
  }
  return true;
});

/** Loads the history if it is to be seen. */
export const syncHistory = () => runLoader('history', async (valid) => {
  if (!state.view.history) return false;
  const least = Math.max(0, focus.length - HISTORY_MAX);
  if (focus.historyFrom + focus.history.length < least || !focus.history.length) {
    focus.history = [];
    focus.historyFrom = least;
  }
  const from = focus.historyFrom + focus.history.length;
  const heads = focus.model.num_attention_heads;
  const chunk = Math.max(1, Math.floor((8 << 20) / (4 * heads * Math.max(1, focus.length))));
  const to = Math.min(focus.length, from + chunk);
  if (to <= from) return false;
  const tensor = await getTensor(focus.session, `blocks.${state.view.layer}.attn.hook_pattern`, { q: `${from}:${to}`, dtype: 'U8' }, { signal: loads.signal });
  if (!valid() || focus.historyFrom + focus.history.length !== from) return true;
  const [, rows, keys] = tensor.shape;
  for (let r = 0; r < rows; r++) {
    const width = from + r + 1;
    const row = new Uint8Array(heads * width);
    for (let h = 0; h < heads; h++) row.set(tensor.data.subarray((h * rows + r) * keys, (h * rows + r) * keys + width), h * width);
    focus.history.push(row);
  }
  touch('history');
  return true;
});

const syncTokens = () => runLoader('tokens', async (valid) => {
  if (focus.model.model_type === 'attention' || focus.tokens.length === focus.length) return false;
  const { tokens } = await getTokens(focus.session, { signal: loads.signal });
  if (!valid()) return true;
  focus.tokens = tokens;
  touch('tokens');
  updatePieces();
  /* It may be ahead of the events: then those will catch up. */
  return tokens.length < focus.length;
});

// ----------------------------------------------------------------------------------------- events

/** Takes an event of the chosen session in. */
export function onFocusEvent(event) {
  if (!focus || event.session !== focus.session) return;
  if (focus.status === 'loading') {
    focus.missed = true;
    return;
  }
  switch (event.event) {
    case 'deleted':
    case 'expired':
      focus.status = 'gone';
      focus.reason = event.event;
      abortLoads();
      touch('focus');
      return;
    case 'created':
    case 'forked':
      chooseSession(focus.session, { layer: state.view.layer }, 0);
      return;
    case 'truncated':
      cutTo(event.length);
      break;
    case 'prefill':
    case 'step':
      if (event.dropped) {
        state.bare += event.dropped;
        touch('link');
      }
      if (event.length > focus.length || event.event === 'step') extend(event);
      break;
    default:
      focus.length = event.length ?? focus.length;
  }
  if (focus.info && event.kv_bytes !== undefined) focus.info.kv.bytes = event.kv_bytes;
  touch('timeline');
  syncAll();
}

function cutTo(length) {
  generation++;
  abortLoads();
  focus.length = length;
  focus.cached = Math.min(focus.cached, length);
  focus.tokens.length = Math.min(focus.tokens.length, length);
  focus.row = null;
  focus.fresh = Infinity;
  focus.history.length = Math.max(0, Math.min(focus.history.length, length - focus.historyFrom));
  focus.timeline.push({ at: performance.now(), length, kind: 'truncate', ms: null, n: 0 });
  if (state.view.query !== null && state.view.query >= length) state.view.query = null;
  touch('cache', 'row', 'history', 'tokens');
}

function extend(event) {
  if (event.length < focus.length) return;
  focus.timeline.push({ at: performance.now(), length: event.length, kind: event.event, ms: null, n: Math.max(1, event.length - focus.length) });
  if (focus.timeline.length > 2000) focus.timeline.splice(0, 1000);
  if (event.event === 'step') timeSteps();
  focus.fresh = focus.length;
  focus.length = event.length;
  if (event.token !== undefined && focus.tokens.length === event.position) {
    focus.tokens.push(event.token);
    touch('tokens');
    updatePieces();
  }
  if (event.tensors) takeTensors(event);
}

const untimed = (one) => one?.timeline.filter((event) => event.kind === 'step' && event.ms === null) ?? [];

/** What the server counted when it was last asked. @type {{seconds: number, steps: number} | null} */
let counted = null;
async function countSteps() {
  const text = await getText('/metrics').catch(() => ''); // the watch says what is the matter
  const number = (name) => Number(new RegExp(`^${name} (\\S+)$`, 'm').exec(text)?.[1]);
  counted = { seconds: number('attnd_step_seconds_sum'), steps: number('attnd_step_seconds_count') };
}

let timing = false;
/**
 * Asks the server, once a second while the session decodes, how long a decode step takes: the mean of
 * all requests since it was last asked. When events arrive here says little about that.
 */
async function timeSteps() {
  if (timing) return;
  timing = true;
  for (let wait = 300; untimed(focus).length; wait = 1000) {
    await new Promise((done) => setTimeout(done, wait));
    const steps = untimed(focus);
    const before = counted;
    await countSteps();
    const n = before ? counted.steps - before.steps : 0;
    /* A request of one step has none to count from: the time stays unknown. */
    for (const one of steps) one.ms = n > 0 ? (1000 * (counted.seconds - before.seconds)) / n : NaN;
    touch('timeline');
  }
  timing = false;
}

/** A run that this page drove has ended: the server says what its steps took. */
export function timeRun(session, steps, ms) {
  if (focus?.session !== session || !steps) return;
  for (const one of focus.timeline.filter((event) => event.kind === 'step').slice(-steps)) one.ms = ms / steps;
  touch('timeline');
}

/** A step's own tensors, if they continue what is here. */
function takeTensors(event) {
  const { tensors } = parseBase64(event.tensors);
  const prefix = `blocks.${state.view.layer}.attn.`;
  const key = tensors[`${prefix}hook_rot_k`];
  const value = tensors[`${prefix}hook_v`];
  const pattern = tensors[`${prefix}hook_pattern`];
  const exact = focus.info.kv.dtype === 'f32'; // other caches keep less of K and V than the step computed
  if (exact && key && value && event.position === focus.cached) appendCache(event.position, 1, key.data, value.data);
  if (!pattern || pattern.shape[2] !== event.position + 1) return;
  const data = /** @type {Float32Array} */ (pattern.data);
  if (state.view.query === null) {
    focus.row = { query: event.position, data };
    touch('row');
  }
  if (state.view.history && focus.historyFrom + focus.history.length === event.position) {
    focus.history.push(Uint8Array.from(data, sqrtByte));
    if (focus.history.length > 2 * HISTORY_MAX) {
      focus.history.splice(0, HISTORY_MAX);
      focus.historyFrom += HISTORY_MAX;
    }
    touch('history');
  }
}

/** After the stream was opened again: what happened meanwhile. */
export async function refreshFocus() {
  if (!focus || focus.status === 'loading') return;
  const mine = focus;
  try {
    const info = await getSession(focus.session);
    if (focus !== mine) return;
    const another = !focus.info || info.created !== focus.info.created || info.model !== focus.info.model;
    if (another || focus.status !== 'ok') {
      focus.status = 'ok';
      await chooseSession(info.session, { layer: state.view.layer });
      return;
    }
    focus.info = info;
    if (info.length < focus.length) cutTo(info.length);
    focus.length = info.length;
    touch('focus');
    syncAll();
  } catch (error) {
    if (focus === mine) failFocus(error);
  }
}
