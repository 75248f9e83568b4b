// The wall: every session of the server, one line each.
import { el, panel, select, setText, button } from './dom.js';
import { t } from './i18n.js';
import { bytes, count } from './format.js';
import { chooseSession, focus } from './focus.js';
import { overview } from './panel-overview.js';
import { changed } from './sessions.js';
import { state, subscribe, touch } from './state.js';

/** Lines shown at most: what does not fit is counted. */
const MOST = 2000;

let sort = 'recent';
let filter = '';
/** How tall a line is, as style.css has it. */
const LINE_PX = 56;
/** What of the list is in sight. */
const seen = { top: 0, height: 2000 };
const lines = new Map();
const list = el('div', { class: 'wall', role: 'listbox', tabindex: '0', i18nLabel: 'wall.list', testid: 'wall' });
const note = el('p', { class: 'note', testid: 'wall-note' });

export function wall({ onNew }) {
  const search = el('input', { type: 'search', i18nLabel: 'wall.filter', 'data-i18n-placeholder': 'wall.placeholder', testid: 'wall-filter', on: { input: (event) => { filter = event.target.value; touch('sessions'); } } });
  const order = select([['recent', 'wall.recent'], ['bytes', 'wall.bytes'], ['name', 'wall.name']], sort,
    (value) => { sort = value; touch('sessions'); }, { 'data-i18n-label': 'wall.sort', 'aria-label': t('wall.sort'), testid: 'wall-sort' });
  const { root } = panel('wall', 'wall.title', { controls: [button('wall.new', onNew, { testid: 'wall-new' })] },
    overview(), el('div', { class: 'wall-tools' }, search, order), note, list);
  list.addEventListener('keydown', onKey);
  list.addEventListener('click', (event) => {
    const line = event.target.closest('[data-session]');
    if (line) chooseSession(line.dataset.session);
  });
  const look = () => {
    Object.assign(seen, { top: list.scrollTop, height: list.clientHeight });
    for (const [id] of lines) changed.add(id);
    touch('sessions');
  };
  list.addEventListener('scroll', look);
  new ResizeObserver(look).observe(list);
  subscribe(['sessions', 'lang'], render);
  subscribe(['focus'], markChosen);
  return root;
}

/* Those at work stand first, among themselves by name: none of them is the latest for long. */
const isActive = (one) => Number(one.state === 'decode' || one.state === 'prefill');
const ORDERS = {
  recent: (a, b) => isActive(b) - isActive(a) || (isActive(a) ? ORDERS.name(a, b) : b.touched - a.touched || ORDERS.name(a, b)),
  bytes: (a, b) => b.kv_bytes - a.kv_bytes || (a.session < b.session ? -1 : 1),
  name: (a, b) => (a.session < b.session ? -1 : 1),
};

function makeLine(id) {
  const line = el('div', { class: 'line', role: 'option', id: `line-${lines.size}-${Math.random().toString(36).slice(2, 8)}`, data: { session: id }, 'aria-selected': 'false' },
    el('span', { class: 'line-name', text: id }), el('span', { class: 'badge' }),
    el('span', { class: 'line-numbers' }), el('span', { class: 'line-bar', 'aria-hidden': 'true' }, el('span')));
  const [, badge, numbers, strip] = line.children;
  const made = { line, badge, numbers, strip: strip.firstElementChild, shown: '', index: 0 };
  lines.set(id, made);
  return made;
}

function updateLine(made, one, largest) {
  const doing = one.state === 'decode' && one.rate >= 1 ? `${count(one.rate)}/s` : one.state === 'prefill' ? one.progress : '';
  const text = `${one.length} · ${bytes(one.kv_bytes)}${doing && ` · ${doing}`}`;
  const shown = `${one.state} ${text} ${largest}`;
  if (made.shown === shown) return;
  made.shown = shown;
  made.line.dataset.state = one.state;
  made.line.dataset.kvLen = String(one.length);
  made.line.dataset.kvBytes = String(one.kv_bytes);
  setText(made.badge, t(`state.${one.state}`));
  setText(made.numbers, text);
  made.strip.style.width = `${(100 * one.kv_bytes) / largest}%`;
}

const matches = (one) => !filter || one.session.includes(filter) || one.model.includes(filter);

let orderAt = 0;
let largest = 1;
let language = '';
let isFull = false;

/** Whether a line is missing, or one too many. */
function isIncomplete() {
  for (const id of changed) {
    const one = state.sessions.get(id);
    if (lines.has(id) ? !one : one && !isFull && matches(one)) return true;
  }
  return false;
}

/* Sessions change hundreds of times a second: most frames look at those alone. */
function render(topics) {
  if (language !== document.documentElement.lang) {
    language = document.documentElement.lang;
    for (const made of lines.values()) made.shown = '';
    orderAt = -Infinity;
  }
  /* Lines that move while one reads them help nobody: the order follows every two seconds. */
  const isOld = performance.now() - orderAt > 2000;
  const isStill = list.matches(':hover');
  if ((isOld && !isStill) || sort !== list.dataset.sort || filter !== list.dataset.filter || isIncomplete()) order();
  if (isOld) orderAt = performance.now();
  /* Those out of sight can wait as long. */
  const first = Math.floor(seen.top / LINE_PX) - 1;
  const last = (seen.top + seen.height) / LINE_PX + 1;
  for (const id of changed) {
    const made = lines.get(id);
    if (made && !isOld && (made.index < first || made.index > last)) continue;
    if (made) updateLine(made, state.sessions.get(id), largest);
    changed.delete(id);
  }
  if (topics.has('lang') || !state.sessions.size) say();
  markChosen();
}

function order() {
  orderAt = performance.now();
  list.dataset.sort = sort;
  list.dataset.filter = filter;
  const all = [...state.sessions.values()].filter(matches).sort(ORDERS[sort]);
  largest = all.reduce((most, one) => Math.max(most, one.kv_bytes), 1);
  isFull = all.length >= MOST;
  const shown = all.slice(0, MOST);
  const known = new Set(shown.map((one) => one.session));
  for (const [id, made] of lines) {
    if (known.has(id)) continue;
    made.line.remove();
    lines.delete(id);
  }
  let at = list.firstElementChild;
  shown.forEach((one, i) => {
    const made = lines.get(one.session) ?? makeLine(one.session);
    made.index = i;
    updateLine(made, one, largest);
    if (made.line === at) at = at.nextElementSibling;
    else list.insertBefore(made.line, at);
  });
  changed.clear();
  say(all.length);
}

let found = 0;
function say(n = found) {
  found = n;
  if (!state.sessions.size) setText(note, t('wall.none'));
  else setText(note, n > MOST ? t('wall.more', { n: count(n - MOST) }) : filter ? t('wall.matches', { n: count(n) }) : '');
}

let marked = null;
function markChosen() {
  const line = focus ? lines.get(focus.session)?.line : null;
  if (marked === line) return;
  marked?.setAttribute('aria-selected', 'false');
  line?.setAttribute('aria-selected', 'true');
  if (line) list.setAttribute('aria-activedescendant', line.id);
  else list.removeAttribute('aria-activedescendant');
  marked = line ?? null;
}

function onKey(event) {
  const moves = { ArrowDown: 'nextElementSibling', ArrowUp: 'previousElementSibling' };
  let next;
  if (moves[event.key]) next = marked ? marked[moves[event.key]] : list.firstElementChild;
  else if (event.key === 'Home') next = list.firstElementChild;
  else if (event.key === 'End') next = list.lastElementChild;
  else return;
  event.preventDefault();
  if (!next) return;
  next.scrollIntoView({ block: 'nearest' });
  chooseSession(next.dataset.session);
}

export const focusWall = () => list.focus();
