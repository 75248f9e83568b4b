// What came of the last step, and when each came: likely tokens, the timeline, verify.
import { call } from './api.js';
import { el, fill, panel, setText, button } from './dom.js';
import { t } from './i18n.js';
import { milliseconds, number } from './format.js';
import { focus, shownQuery } from './focus.js';
import { visible } from './pieces.js';
import { unseen } from './sessions.js';
import { subscribe, touch } from './state.js';
import { announce } from './live.js';

const TOLERANCE = 1e-5;

// ---------------------------------------------------------------------------------- likely tokens

const likely = el('ol', { class: 'likely', testid: 'likely' });
const likelyNote = el('p', { class: 'note', testid: 'likely-note' });

const ask = el('input', { type: 'checkbox', testid: 'ask-likely', on: { change: askLater } });
let asking = false;
let timer = 0;

export function topTokens() {
  const box = el('label', { class: 'check' }, ask, el('span', { i18n: 'top.ask' }));
  const { root } = panel('top', 'top.title', { controls: [box] }, likelyNote, likely);
  subscribe(['top', 'focus', 'lang'], renderTop);
  subscribe(['row', 'focus'], () => {
    box.hidden = focus?.model?.model_type === 'attention';
    askLater();
  });
  return root;
}

function renderTop() {
  const top = focus?.top;
  if (!top) setText(likelyNote, t(focus?.model?.model_type === 'attention' ? 'top.rows' : 'top.none'));
  else setText(likelyNote, top.error ?? t('top.at', { position: top.position }));
  fill(likely, ...(top?.list ?? []).map((one) => {
    const p = Math.exp(one.logprob);
    const bar = el('span', { class: 'likely-bar', 'aria-hidden': 'true' });
    bar.style.width = `${100 * p}%`;
    const isChosen = one.token === top.chosen;
    return el('li', { class: isChosen ? 'chosen' : '' }, bar, el('span', { class: 'token-text', text: visible(one.text ?? `<${one.token}>`) }),
      el('span', { text: `${number(Number((100 * p).toPrecision(3)))} %${isChosen ? ` ${t('top.chosen')}` : ''}` }));
  }));
}

function askLater() {
  clearTimeout(timer);
  if (ask.checked) timer = setTimeout(askLikely, 250);
}

/* Whoever ran the session: a fork of it at the query goes one step on, tells, and is deleted. */
async function askLikely() {
  const query = shownQuery();
  if (asking || !focus?.model || focus.status !== 'ok' || focus.model.model_type === 'attention' || query < 0) return;
  if (focus.top?.position === query + 1 && !focus.top.error) return;
  asking = true;
  const mine = focus;
  const position = query + 1;
  const look = `look-${Math.random().toString(36).slice(2, 10)}`;
  unseen.add(look);
  let top;
  try {
    await call('POST', `/sessions/${mine.session}/fork`, { as: look, at: position });
    const step = await call('POST', '/decode', { session: look, steps: 1, logprobs: 10, ignore_eos: true });
    top = { position, chosen: mine.tokens[position] ?? null, list: step.events[0].logprobs };
  } catch (error) {
    top = { position, chosen: null, list: [], error: error.message };
  }
  await call('DELETE', `/sessions/${look}`).catch(() => null);
  asking = false;
  if (focus !== mine) return;
  mine.top = top;
  touch('top');
  if (shownQuery() !== query) askLater();
}

// --------------------------------------------------------------------------------------- timeline

const chart = el('canvas', { class: 'chart', width: '600', height: '140', role: 'img', testid: 'timeline' });
const chartText = el('p', { class: 'note', testid: 'timeline-text' });

export function timeline() {
  const { root } = panel('timeline', 'timeline.title', { note: 'timeline.note' }, chart, chartText);
  subscribe(['timeline', 'focus', 'lang', 'theme'], drawTimeline);
  return root;
}

function drawTimeline() {
  const context = chart.getContext('2d');
  const { width, height } = chart;
  context.clearRect(0, 0, width, height);
  const points = focus?.timeline.filter((one) => one.kind !== 'start') ?? [];
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const steps = points.filter((one) => one.kind === 'step' && one.ms > 0);
  const largestMs = Math.max(1e-6, ...steps.map((one) => one.ms), ...(focus?.recomputed ?? []).map((one) => one.ms));
  const longest = Math.max(1, focus?.length ?? 1);
  const n = Math.max(24, points.length);
  context.lineWidth = 2;
  points.forEach((one, i) => {
    const x = (i * width) / n;
    const wide = Math.max(1, width / n - 1);
    const tall = (one.length / longest) * (height - 20);
    context.fillStyle = color(one.kind === 'prefill' ? '--prefill' : one.kind === 'step' ? '--decode' : '--muted');
    context.globalAlpha = 0.35;
    context.fillRect(x, height - tall, wide, tall);
    context.globalAlpha = 1;
    if (one.kind === 'step' && one.ms > 0) context.fillRect(x, height - 4 - (one.ms / largestMs) * (height - 24), wide, 3);
  });
  context.setLineDash([4, 4]);
  context.strokeStyle = color('--text');
  for (const one of focus?.recomputed ?? []) {
    const y = height - 4 - (one.ms / largestMs) * (height - 24);
    context.beginPath();
    context.moveTo(0, y);
    context.lineTo(width, y);
    context.stroke();
  }
  context.setLineDash([]);
  const recent = steps.slice(-20);
  const mean = recent.reduce((sum, one) => sum + one.ms, 0) / Math.max(1, recent.length);
  const last = focus?.recomputed.at(-1);
  chart.hidden = !points.length && !last;
  const words = !points.length ? t('timeline.none') : t('timeline.text', { length: focus.length, ms: recent.length ? milliseconds(mean) : '–', recompute: last ? t('timeline.recompute', { length: last.length, ms: milliseconds(last.ms) }) : '' });
  setText(chartText, words);
  chart.setAttribute('aria-label', words);
}

// ----------------------------------------------------------------------------------------- verify

const verdict = el('p', { class: 'verdict', testid: 'verdict' });
/** @type {any} */
let result = null;

export function verify() {
  const { root } = panel('verify', 'verify.title', { note: 'verify.note', controls: [button('verify.run', runVerify, { testid: 'verify' })] }, verdict);
  subscribe(['verify', 'focus', 'lang'], render);
  return root;
}

export async function runVerify() {
  if (!focus) return;
  const mine = focus;
  const start = performance.now();
  result = { session: mine.session, busy: true };
  touch('verify');
  try {
    const reply = await call('POST', `/sessions/${mine.session}/verify`);
    result = { session: mine.session, ...reply, ms: performance.now() - start };
    mine.recomputed = [{ length: reply.length, ms: result.ms }];
    touch('timeline');
  } catch (error) {
    result = { session: mine.session, error: error.message };
  }
  touch('verify');
  render();
  announce(verdict.textContent);
}

function render() {
  verdict.dataset.verdict = '';
  if (!result || result.session !== focus?.session) return setText(verdict, t('verify.not'));
  if (result.busy) return setText(verdict, t('verify.busy'));
  if (result.error) return setText(verdict, result.error);
  const pass = result.max_abs_diff <= TOLERANCE;
  verdict.dataset.verdict = pass ? 'pass' : 'fail';
  setText(verdict, t('verify.result', { verdict: t(pass ? 'verify.pass' : 'verify.fail'), difference: number(result.max_abs_diff), tolerance: TOLERANCE.toExponential(0),
    length: result.length, bits: t(result.bit_identical ? 'verify.identical' : 'verify.different'), ms: milliseconds(result.ms) }));
}
