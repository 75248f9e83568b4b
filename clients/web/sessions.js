// Events of /watch to rows of the session table.
import { state, touch } from './state.js';

/** Sessions that changed since the wall was drawn. @type {Set<string>} */
export const changed = new Set();

/** Those that the overview has still to draw. @type {Set<string>} */
export const moved = new Set();

function note(id) {
  changed.add(id);
  moved.add(id);
}

/** Forks that this page makes to look at: nothing to show. @type {Set<string>} */
export const unseen = new Set();

const IDLE_AFTER_MS = 900;
const GONE_FOR_MS = 4000;
const ENDS = { deleted: 'deleted', expired: 'expired' };

function row(id) {
  let found = state.sessions.get(id);
  if (!found) {
    found = { session: id, model: '', length: 0, kv_bytes: 0, state: 'idle', rate: 0, progress: '', touched: performance.now(), gone: null };
    state.sessions.set(id, found);
  }
  return found;
}

let greeted = new Set();
let greetedAt = 0;

/* The watch is opened anew for each session that is chosen: what is known is not news. */
function onHello(event) {
  if (event.seq === 0) {
    greeted = new Set();
    greetedAt = performance.now();
  }
  for (const one of event.sessions) {
    if (unseen.has(one.session)) continue;
    greeted.add(one.session);
    const known = state.sessions.get(one.session);
    if (known && !known.gone && Object.entries(one).every(([name, value]) => known[name] === value)) continue;
    note(one.session);
    Object.assign(row(one.session), { ...one, gone: null, progress: '', touched: Math.max(greetedAt, known?.touched ?? 0) });
  }
  if (event.totals) state.totals = event.totals;
  if (event.more) return;
  state.isGreeted = true;
  /* What was there before a cut and is not now has gone meanwhile. */
  for (const [id, one] of state.sessions) if (!greeted.has(id) && !one.gone) end(one, 'deleted');
}

function end(one, reason) {
  one.gone = reason;
  one.state = reason;
  one.touched = performance.now();
  note(one.session);
  touch('sessions');
}

/** Takes an event in. */
export function onSessionEvent(event) {
  state.events++;
  if (event.event === 'hello') {
    onHello(event);
    touch('sessions', 'totals');
    return;
  }
  if (event.event === 'stats') {
    state.stats = event;
    state.totals = event.totals;
    touch('totals');
    return;
  }
  if (event.event === 'gap') {
    state.dropped += event.dropped;
    touch('link');
    return;
  }
  if (!event.session) return;
  if (unseen.has(event.session)) {
    if (ENDS[event.event]) unseen.delete(event.session);
    return;
  }
  if (ENDS[event.event]) {
    const known = state.sessions.get(event.session);
    if (known) end(known, ENDS[event.event]);
    return;
  }
  const one = row(event.session);
  const now = performance.now();
  if (event.event === 'step') {
    const seconds = (now - one.touched) / 1000;
    const steps = event.merged ?? 1;
    if (one.state === 'decode' && seconds > 0) one.rate = 0.7 * one.rate + 0.3 * (steps / seconds);
    one.state = 'decode';
  } else if (event.event === 'prefill') {
    one.state = event.processed < event.total ? 'prefill' : 'idle';
    one.progress = `${event.processed}/${event.total}`;
  } else if (event.event === 'spilled') {
    one.state = 'spilled';
  } else {
    one.state = 'idle';
  }
  if (event.model) one.model = event.model;
  one.gone = null;
  one.length = event.length;
  one.kv_bytes = event.kv_bytes;
  one.touched = now;
  note(one.session);
  touch('sessions');
}

/* A session that has been quiet for a while is idle; one that has gone fades away. */
setInterval(() => {
  const now = performance.now();
  let any = false;
  for (const [id, one] of state.sessions) {
    if (one.gone && now - one.touched > GONE_FOR_MS) {
      state.sessions.delete(id);
      note(id);
      any = true;
    } else if (!one.gone && (one.state === 'decode' || one.state === 'prefill') && now - one.touched > IDLE_AFTER_MS) {
      one.state = 'idle';
      one.rate = 0;
      note(id);
      any = true;
    }
  }
  if (any || changed.size) touch('sessions');
}, 500);
