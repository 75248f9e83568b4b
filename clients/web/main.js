// The page: puts the panels together, opens the watch, listens to keys.
import { getModels } from './api.js';
import { LUT } from './colors.js';
import { button, el, fill } from './dom.js';
import { chooseLayer, chooseSession, focus, onFocusEvent, onSelection, refreshFocus, setQuery, watchSelection } from './focus.js';
import { onLanguage, pickLanguage, setLanguage, t, translate } from './i18n.js';
import { announce, region } from './live.js';
import { bar, toggleLanguage } from './panel-bar.js';
import { cache } from './panel-cache.js';
import { decode, drive, focusDrive, newSession } from './panel-drive.js';
import { cellByte, heads, toggleHead } from './panel-heads.js';
import { inspector } from './panel-inspector.js';
import { lessons } from './panel-lessons.js';
import { mask } from './panel-mask.js';
import { rope } from './panel-rope.js';
import { timeline, topTokens, verify } from './panel-steps.js';
import { recordingTools, replayBar } from './panel-replay.js';
import { step, tokens } from './panel-tokens.js';
import { focusWall, wall } from './panel-wall.js';
import { readLink, writeLink } from './permalink.js';
import { onSessionEvent } from './sessions.js';
import { state, subscribe, touch } from './state.js';
import { Watch } from './watch.js';

const banner = el('div', { class: 'banner', role: 'status', hidden: true, testid: 'banner' });
const help = el('dialog', { testid: 'help-dialog', 'aria-labelledby': 'help-title' });

const watch = new Watch((event) => {
  onSessionEvent(event);
  onFocusEvent(event);
}, onLink);

function onLink(status, error) {
  const before = state.link;
  state.link = status;
  state.linkError = error;
  touch('link');
  if (status === 'live') {
    if (!Object.keys(state.models).length) loadModels();
    refreshFocus();
  }
  if (status !== before && status !== 'connecting') announce(t(`link.${status}`));
  /* The session of the selection may be gone; all others are there to be seen. */
  if (status === 'refused' && watch.query) watch.choose(null);
}

async function loadModels() {
  const reply = await getModels();
  state.models = Object.fromEntries(reply.models.map((one) => [one.name, one]));
  state.defaultModel = reply.default;
  touch('models', 'totals');
}

function renderBanner() {
  const lost = state.link === 'lost' || (state.link === 'connecting' && watch.failures > 0);
  const gone = focus?.status === 'gone' || focus?.status === 'failed';
  const text = lost ? t('banner.lost') : gone ? t(focus.status === 'gone' ? `banner.${focus.reason}` : 'banner.failed', { session: focus.session, reason: focus.reason }) : '';
  if (banner.hidden !== !text) banner.hidden = !text;
  banner.dataset.kind = lost ? 'lost' : gone ? 'gone' : '';
  if (banner.dataset.text === text) return;
  banner.dataset.text = text;
  fill(banner, text, lost ? button('banner.retry', () => watch.open(), { testid: 'retry' }) : null);
  if (text) announce(text);
}

const KEYS = [['w', 'help.wall'], ['g', 'help.grid'], ['s', 'help.step'], ['Space', 'help.follow'], ['j / k', 'help.query'], ['[ / ]', 'help.layer'],
  ['1 – 9', 'help.head'], ['← ↑ → ↓', 'help.cells'], ['Enter', 'help.enter'], ['Shift', 'help.shift'], ['l', 'help.language'], ['?', 'help.help']];

function showHelp() {
  fill(help, el('h2', { id: 'help-title', text: t('help.title') }),
    el('dl', {}, ...KEYS.flatMap(([key, name]) => [el('dt', {}, el('kbd', { text: key })), el('dd', { text: t(name) })])),
    el('p', { text: t('help.truth') }),
    el('button', { type: 'button', text: t('help.close'), on: { click: () => help.close() } }));
  help.showModal();
}

const ACTIONS = {
  w: focusWall,
  g: () => document.querySelector('[data-testid="panel-cache"] [role=grid]')?.focus(),
  s: () => focus && decode(1),
  ' ': () => setQuery(state.view.query === null ? (focus?.length ?? 1) - 1 : null),
  j: () => step(-1),
  k: () => step(1),
  '[': () => chooseLayer(state.view.layer - 1),
  ']': () => chooseLayer(state.view.layer + 1),
  l: toggleLanguage,
  '?': showHelp,
};

function onKey(event) {
  if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest('input, textarea, select, button, summary, dialog')) return;
  if (/^[1-9]$/.test(event.key)) toggleHead(Number(event.key) - 1);
  else if (ACTIONS[event.key]) ACTIONS[event.key]();
  else return;
  event.preventDefault();
}

function followTitle() {
  const main = document.querySelector('main');
  main.dataset.focus = focus ? focus.status : 'none';
  for (const node of main.querySelectorAll('.needs-session')) node.hidden = !focus;
}

async function start() {
  const link = readLink();
  const theme = localStorage.getItem('theme');
  if (theme) document.documentElement.dataset.theme = theme;
  await setLanguage(pickLanguage([link.language, localStorage.getItem('language'), ...navigator.languages].filter(Boolean)));
  const needing = (...nodes) => nodes.map((node) => { node.classList.add('needs-session'); return node; });
  document.body.prepend(
    el('a', { class: 'skip', href: '#panel-tokens', i18n: 'skip' }),
    bar({ onHelp: showHelp }), banner, replayBar(),
    el('div', { class: 'columns' },
      el('nav', { 'data-i18n-label': 'wall.title', 'aria-label': t('wall.title') }, wall({ onNew: newFromWall }), recordingTools(changeSource)),
      el('main', {},
        el('p', { class: 'welcome', i18n: 'welcome', testid: 'welcome' }),
        ...needing(tokens(), cache(), heads()),
        el('div', { class: 'pair' }, ...needing(inspector(), rope(), el('div', { class: 'rest' }, el('div', { class: 'stack' }, mask(), verify()), el('div', { class: 'stack' }, topTokens(), timeline())))),
        drive(), lessons())),
    region, help);
  translate(document); // what the modules made before the language was there
  onLanguage(() => touch('lang'));
  onSelection(() => watch.choose(watchSelection()));
  subscribe(['link', 'focus', 'lang'], renderBanner);
  subscribe(['focus'], followTitle);
  subscribe(['focus', 'view', 'lang'], writeLink);
  document.addEventListener('keydown', onKey);
  followTitle();
  try {
    await loadModels();
  } catch { /* the watch says that the server is not there, and models come with it */ }
  if (link.session && Object.keys(state.models).length) {
    await chooseSession(link.session, Object.fromEntries(['layer', 'head', 'query', 'key'].filter((name) => link[name] !== null).map((name) => [name, link[name]])));
  } else watch.choose(null);
  window.addEventListener('hashchange', () => {
    const next = readLink();
    if (next.session && next.session !== focus?.session) chooseSession(next.session);
  });
  Object.defineProperty(window, '__viz', { value: Object.freeze({ cellByte, lut: LUT, state, get focus() { return focus; } }) });
}

/* A recording has taken the server's place, or given it back. */
async function changeSource() {
  await loadModels().catch(() => null);
  watch.open();
}

function newFromWall() {
  newSession();
  focusDrive();
  document.querySelector('#panel-drive').scrollIntoView({ behavior: matchMedia('(prefers-reduced-motion: reduce)').matches ? 'auto' : 'smooth' });
}

start();
