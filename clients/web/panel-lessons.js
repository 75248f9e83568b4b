// The lessons as a panel: text, a button, the claims with their ticks, the lines for a terminal.
import { curlLine } from './api.js';
import { el, fill, panel, button } from './dom.js';
import { t } from './i18n.js';
import { chooseSession, endFocus, focus } from './focus.js';
import { LESSONS, SESSION } from './lessons.js';
import { announce } from './live.js';
import { state, subscribe, touch } from './state.js';

/** @type {Record<number, {claims?: import('./lessons.js').Claim[], error?: string, busy?: boolean}>} */
const results = {};
const list = el('ol', { class: 'lessons', testid: 'lessons' });

export function lessons() {
  const { root } = panel('lessons', 'lessons.title', { note: 'lessons.note' }, list);
  LESSONS.forEach((lesson, i) => list.append(item(lesson, i + 1)));
  subscribe(['lessons', 'lang'], () => LESSONS.forEach((_, i) => renderClaims(i + 1)));
  return root;
}

function item(lesson, n) {
  const lines = el('pre', { tabindex: '0', role: 'group', i18nLabel: 'drive.curl', testid: `lesson-${n}-curl` },
    el('code', { text: lesson.calls.map((one) => curlLine(one.method, one.path, one.body)).join('\n') }));
  return el('li', { testid: `lesson-${n}` },
    el('h3', { i18n: `lesson.${n}.title` }), el('p', { i18n: `lesson.${n}.text` }),
    el('div', { class: 'buttons' }, button('lessons.run', () => run(lesson, n), { class: 'primary', testid: `lesson-${n}-run` }),
      button('lessons.look', () => lookAt(lesson), { class: 'small' })),
    el('ul', { class: 'checks', testid: `lesson-${n}-claims` }),
    el('details', {}, el('summary', { i18n: 'lessons.curl' }), lines));
}

function lookAt(lesson) {
  document.querySelector(`#panel-${lesson.panel}`)?.scrollIntoView({ block: 'center' });
}

async function run(lesson, n) {
  results[n] = { busy: true };
  touch('lessons');
  try {
    if (focus?.session === SESSION) endFocus(); // it begins with a delete
    const look = () => chooseSession(SESSION, { layer: 0, head: n === 5 ? 3 : 0 }, 0);
    results[n] = { claims: await lesson.run({ look }) };
    if (lesson.panel === 'mask') document.querySelector('[data-testid="mask-show"]')?.click();
    if (lesson.panel === 'verify') document.querySelector('[data-testid="verify"]')?.click();
    state.view.query = null;
  } catch (error) {
    results[n] = { error: `${error.code ?? ''} ${error.message}`.trim() };
  }
  touch('lessons');
  const { claims } = results[n];
  announce(claims ? t('lessons.result', { n, ok: claims.filter((one) => one.ok).length, of: claims.length }) : results[n].error);
}

function renderClaims(n) {
  const node = list.children[n - 1].querySelector('.checks');
  const result = results[n];
  if (!result) return;
  if (result.busy) return void fill(node, el('li', { text: t('lessons.busy') }));
  if (result.error) return void fill(node, el('li', { class: 'bad', text: result.error }));
  fill(node, ...result.claims.map((one) => el('li', { class: one.ok ? 'ok' : 'bad', data: { ok: String(one.ok) } },
    el('span', { class: 'tick', 'aria-hidden': 'true', text: one.ok ? '✓' : '✗' }), el('span', { text: t(`lesson.${n}.${one.claim}`, one.params) }))));
}
