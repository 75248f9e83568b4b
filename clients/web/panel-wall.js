// The wall: every session of the server, one line each.
import { el, fill, panel, select, setText, button } from './dom.js';
import { t } from './i18n.js';
import { bytes, count } from './format.js';
import { chooseSession, focus } from './focus.js';
import { state, subscribe, touch } from './state.js';

/** Lines shown at most: what does not fit is counted. */
const MOST = 2000;

let sort = 'recent';
let filter = '';
const lines = new Map();
const list = el('div', { class: 'wall', role: 'listbox', tabindex: '0', i18nLabel: 'wall.list', testid: 'wall' });
const note = el('p', { class: 'note', testid: 'wall-note' });

export function wall({ onNew }) {
  const search = el('input', { type: 'search', i18nLabel: 'wall.filter', testid: 'wall-filter', on: { input: (event) => { filter = event.target.value; touch('sessions'); } } });
  const order = select([['recent', 'wall.recent'], ['bytes', 'wall.bytes'], ['name', 'wall.name']], sort,
    (value) => { sort = value; touch('sessions'); }, { 'data-i18n-label': 'wall.sort', 'aria-label': t('wall.sort'), testid: 'wall-sort' });
  const { root } = panel('wall', 'wall.title', { controls: [button('wall.new', onNew, { testid: 'wall-new' })] },
    el('div', { class: 'wall-tools' }, search, order), note, list);
  list.addEventListener('keydown', onKey);
  list.addEventListener('click', (event) => {
    const line = event.target.closest('[data-session]');
    if (line) chooseSession(line.dataset.session);
  });
  subscribe(['sessions', 'lang'], render);
  subscribe(['focus'], markChosen);
  return root;
}

const ORDERS = {
  recent: (a, b) => b.touched - a.touched,
  bytes: (a, b) => b.kv_bytes - a.kv_bytes || (a.session < b.session ? -1 : 1),
  name: (a, b) => (a.session < b.session ? -1 : 1),
};

function makeLine(id) {
  const line = el('div', { class: 'line', role: 'option', id: `line-${lines.size}-${Math.random().toString(36).slice(2, 8)}`, data: { session: id }, 'aria-selected': 'false' },
    el('span', { class: 'line-name', text: id }), el('span', { class: 'badge' }),
    el('span', { class: 'line-numbers' }), el('span', { class: 'line-bar', 'aria-hidden': 'true' }, el('span')));
  const [, badge, numbers, strip] = line.children;
  const made = { line, badge, numbers, strip: strip.firstElementChild, shown: '' };
  lines.set(id, made);
  return made;
}

function updateLine(made, one, largest) {
  const text = `${one.length} · ${bytes(one.kv_bytes)}${one.state === 'decode' && one.rate >= 1 ? ` · ${count(one.rate)}/s` : ''}`;
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

let orderAt = 0;
let language = '';

function render(topics) {
  const all = [...state.sessions.values()].filter((one) => !filter || one.session.includes(filter) || one.model.includes(filter));
  if (language !== document.documentElement.lang) {
    language = document.documentElement.lang;
    for (const made of lines.values()) made.shown = '';
  }
  const largest = Math.max(1, ...all.slice(0, 10000).map((one) => one.kv_bytes));
  /* Lines that move while one reads them help nobody: the order follows every two seconds. */
  const now = performance.now();
  const known = new Set();
  const reorder = topics.has('lang') || now - orderAt > 2000 || list.childElementCount !== Math.min(all.length, MOST) || sort !== list.dataset.sort || filter !== (list.dataset.filter ?? '');
  if (reorder) {
    orderAt = now;
    list.dataset.sort = sort;
    list.dataset.filter = filter;
    all.sort(ORDERS[sort]);
    const shown = all.slice(0, MOST);
    let at = list.firstElementChild;
    for (const one of shown) {
      const made = lines.get(one.session) ?? makeLine(one.session);
      known.add(one.session);
      if (made.line === at) at = at.nextElementSibling;
      else list.insertBefore(made.line, at);
    }
    for (const [id, made] of lines) {
      if (known.has(id)) continue;
      made.line.remove();
      lines.delete(id);
    }
  }
  for (const one of all) {
    const made = lines.get(one.session);
    if (made) updateLine(made, one, largest);
  }
  const hiddenCount = all.length - Math.min(all.length, MOST);
  if (!state.sessions.size) fill(note, t('wall.none'));
  else fill(note, hiddenCount ? t('wall.more', { n: count(hiddenCount) }) : filter ? t('wall.matches', { n: count(all.length) }) : '');
  markChosen();
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
