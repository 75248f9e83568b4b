// What the page knows, and who is told when it changes.
//
// A part of the page subscribes to topics; `touch` marks a topic as changed, and all subscribers of
// the changed topics run together in the next animation frame. When drawing gets expensive, frames
// come less often, and the page says so.

/**
 * @typedef {{session: string, model: string, length: number, kv_bytes: number, state: string,
 *   rate: number, progress: string, touched: number, gone: string | null}} SessionRow
 */

export const state = {
  /** @type {Record<string, any>} models by name */
  models: {},
  defaultModel: '',
  /** @type {Map<string, SessionRow>} */
  sessions: new Map(),
  /** Whether all that were there at first are known. */
  isGreeted: false,
  /** @type {any} totals of /sessions */
  totals: null,
  /** @type {any} the last stats event */
  stats: null,
  /** @type {import('./watch.js').WatchStatus} */
  link: 'connecting',
  linkError: null,
  /** Events that this watcher lost, and steps that came without their tensors. */
  dropped: 0,
  bare: 0,
  events: 0,
  /** What is shown of the chosen session. */
  view: {
    layer: 0,
    head: 0,
    /** @type {number | null} null: follow the newest position */
    query: null,
    key: 0,
    /** @type {Set<number>} keys added up */
    keys: new Set(),
    /** @type {Set<number>} heads not shown */
    hidden: new Set(),
    scale: 'sqrt',
    hideSink: false,
    history: true,
    cacheMode: 'values',
    stage: 'rot',
  },
};

const subscribers = [];
const changed = new Set();
let frame = 0;
let timer = 0;
let lastFrame = 0;
/** Milliseconds that a frame takes, to the end of its painting; smoothed. */
let cost = 4;
/** When a frame was last put off. */
let heldAt = -Infinity;

/** Frames a second that the page allows itself: a quarter of the time is for drawing, if that gives four. */
const allowedRate = () => Math.min(60, Math.max(4, Math.round(1000 / Math.max(16, 4 * cost))));

/** Frames a second if that is few and frames are put off, or null. */
export const loweredRate = () => (performance.now() - heldAt < 2000 && allowedRate() < 20 ? allowedRate() : null);

/* A message posted in a frame arrives when it is painted. */
const painted = new MessageChannel();
let began = 0;
painted.port1.onmessage = () => {
  const now = performance.now();
  const found = now - began;
  /* One long frame is not yet a slow page. */
  cost += (found > cost ? 0.2 : Math.max(0.1, 1 - Math.exp((lastCost - now) / 1000))) * (found - cost);
  lastCost = now;
};
let lastCost = 0;

/** Runs fn in the frame after any of these topics changed. */
export function subscribe(topics, fn) {
  subscribers.push({ topics, fn });
}

/** Something changed. */
export function touch(...topics) {
  for (const topic of topics) changed.add(topic);
  if (frame || timer) return;
  const wait = lastFrame + 1000 / allowedRate() - performance.now();
  if (wait < 17) {
    frame = requestAnimationFrame(draw);
    return;
  }
  heldAt = performance.now();
  timer = window.setTimeout(() => {
    timer = 0;
    frame = requestAnimationFrame(draw);
  }, wait);
}

/* Who clicks is answered in the next frame, which leaves out what can wait. */
let isAnswer = false;
for (const type of ['click', 'keydown', 'input']) {
  document.addEventListener(type, () => {
    isAnswer = true;
    clearTimeout(timer);
    timer = 0;
    if (!frame) frame = requestAnimationFrame(draw);
  }, { capture: true });
}
const PATIENT = ['sessions', 'totals'];

function draw() {
  frame = 0;
  lastFrame = performance.now();
  const topics = new Set(changed);
  if (isAnswer) for (const topic of PATIENT) topics.delete(topic);
  isAnswer = false;
  for (const topic of topics) changed.delete(topic);
  if (changed.size) setTimeout(touch);
  began = performance.now();
  for (const { topics: wanted, fn } of subscribers) {
    if (!wanted.some((topic) => topics.has(topic))) continue;
    try {
      fn(topics);
    } catch (error) {
      reportError(error); // one panel's mistake is not to stop the others
    }
  }
  painted.port2.postMessage(null);
}

/** Changes the view of the chosen session. */
export function setView(change, ...topics) {
  Object.assign(state.view, change);
  touch('view', ...topics);
}
