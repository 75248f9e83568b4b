// The top bar: the model, the memory gauge, what the server does, language and theme.
import { el, fill, setText, button } from './dom.js';
import { language, setLanguage, t } from './i18n.js';
import { bytes, count } from './format.js';
import { focus } from './focus.js';
import { loweredRate, state, subscribe, touch } from './state.js';

const model = el('p', { class: 'model-card', testid: 'model-card' });
const gauge = el('div', { class: 'gauge', role: 'meter', i18nLabel: 'bar.gauge', 'aria-valuemin': '0', 'aria-valuemax': '100', 'aria-valuenow': '0', testid: 'gauge' },
  el('span', { class: 'gauge-used' }), el('span', { class: 'gauge-reserved' }));
const gaugeText = el('span', { class: 'gauge-text', testid: 'gauge-text' });
const work = el('p', { class: 'work', testid: 'work' });
const link = el('p', { class: 'link', role: 'status', testid: 'link' });

function themeName() {
  return document.documentElement.dataset.theme || (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
}

export function toggleTheme() {
  const next = themeName() === 'dark' ? 'light' : 'dark';
  document.documentElement.dataset.theme = next;
  localStorage.setItem('theme', next);
  touch('theme');
}

export async function toggleLanguage() {
  const next = language() === 'en' ? 'zh-CN' : 'en';
  localStorage.setItem('language', next);
  await setLanguage(next);
}

export function bar({ onHelp }) {
  const root = el('header', { class: 'bar' },
    el('div', { class: 'bar-title' }, el('h1', { i18n: 'title' }),
      el('div', { class: 'bar-buttons' },
        el('button', { type: 'button', i18n: 'bar.language', lang: 'mul', testid: 'language', on: { click: toggleLanguage } }),
        button('bar.theme', toggleTheme, { testid: 'theme' }),
        button('bar.help', onHelp, { testid: 'help' }))),
    el('div', { class: 'bar-facts' }, model, el('div', { class: 'bar-memory' }, gauge, gaugeText), work, link));
  subscribe(['totals', 'focus', 'lang', 'models'], render);
  subscribe(['link', 'lang', 'totals'], renderLink);
  return root;
}

function render() {
  const one = focus?.model ?? state.models[state.defaultModel];
  if (one) {
    setText(model, t('bar.model', { name: one.name, layers: one.num_hidden_layers, heads: one.num_attention_heads,
      kv: one.num_key_value_heads, dim: one.head_dim }));
    Object.assign(model.dataset, { layers: one.num_hidden_layers, heads: one.num_attention_heads, kvHeads: one.num_key_value_heads, headDim: one.head_dim });
  }
  const { totals, stats } = state;
  if (totals) {
    const budget = totals.budget_bytes;
    const used = budget - totals.available_bytes - (totals.kv.reserved_bytes ?? 0);
    const percent = (part) => (100 * part) / budget;
    gauge.children[0].style.width = `${percent(used)}%`;
    gauge.children[1].style.width = `${percent(totals.kv.reserved_bytes ?? 0)}%`;
    gauge.setAttribute('aria-valuenow', percent(used).toFixed(1));
    gauge.setAttribute('aria-valuetext', `${bytes(used)} / ${bytes(budget)}`);
    setText(gaugeText, t('bar.memory', { used: bytes(used), budget: bytes(budget), kv: bytes(totals.kv.bytes), inputs: bytes(totals.inputs_bytes) }));
  }
  setText(work, t('bar.work', {
    sessions: count(totals?.sessions ?? 0), positions: count(totals?.positions ?? 0),
    decoding: count(stats?.in_flight?.decode ?? 0), rate: count(stats?.steps_per_s ?? 0) }));
}

function renderLink() {
  const status = state.link;
  link.dataset.status = status;
  const parts = [];
  if (status === 'live') {
    parts.push(t('link.live'));
    if (state.dropped) parts.push(t('link.dropped', { n: count(state.dropped) }));
    if (state.bare) parts.push(t('link.bare', { n: count(state.bare) }));
    const lowered = loweredRate();
    link.dataset.slow = String(lowered !== null);
    if (lowered !== null) parts.push(t('link.slow', { fps: lowered }));
  } else {
    parts.push(t(`link.${status}`));
    if (state.linkError && state.linkError.code !== 'unreachable') parts.push(state.linkError.message);
  }
  if (link.textContent !== parts.join(' · ')) fill(link, parts.join(' · '));
}
