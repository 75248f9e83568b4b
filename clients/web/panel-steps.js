// What came of the last step, and when each came: likely tokens, the timeline, verify.
import { call } from './api.js';
import { el, fill, panel, setText, button } from './dom.js';
import { t } from './i18n.js';
import { milliseconds, number } from './format.js';
import { focus } from './focus.js';
import { visible } from './pieces.js';
import { subscribe, touch } from './state.js';
import { announce } from './live.js';

const TOLERANCE = 1e-5;

// ---------------------------------------------------------------------------------- likely tokens

const likely = el('ol', { class: 'likely', testid: 'likely' });
const likelyNote = el('p', { class: 'note', testid: 'likely-note' });

export function topTokens() {
  const { root } = panel('top', 'top.title', {}, likelyNote, likely);
  subscribe(['top', 'focus', 'lang'], () => {
    const top = focus?.top;
    setText(likelyNote, !top ? t(focus?.model?.model_type === 'attention' ? 'top.rows' : 'top.none') : t('top.at', { position: top.position }));
    fill(likely, ...(top?.list ?? []).map((one) => {
      const p = Math.exp(one.logprob);
      const bar = el('span', { class: 'likely-bar', 'aria-hidden': 'true' });
      bar.style.width = `${100 * p}%`;
      const isChosen = one.token === top.chosen;
      return el('li', { class: isChosen ? 'chosen' : '' }, bar, el('span', { class: 'token-text', text: visible(one.text ?? `<${one.token}>`) }),
        el('span', { text: `${number(Number((100 * p).toPrecision(3)))} %${isChosen ? ` ${t('top.chosen')}` : ''}` }));
    }));
  });
  return root;
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
  const steps = points.filter((one) => one.kind === 'step' && one.ms > 0 && one.ms < 5000);
  const largestMs = Math.max(1e-6, ...steps.map((one) => one.ms / one.n), ...(focus?.recomputed ?? []).map((one) => one.ms));
  const longest = Math.max(1, focus?.length ?? 1);
  const n = Math.max(1, points.length);
  context.lineWidth = 2;
  points.forEach((one, i) => {
    const x = (i * width) / n;
    const wide = Math.max(1, width / n - 1);
    const tall = (one.length / longest) * (height - 20);
    context.fillStyle = color(one.kind === 'prefill' ? '--prefill' : one.kind === 'step' ? '--decode' : '--muted');
    context.globalAlpha = 0.35;
    context.fillRect(x, height - tall, wide, tall);
    context.globalAlpha = 1;
    if (one.kind === 'step' && one.ms > 0) context.fillRect(x, height - 4 - (one.ms / one.n / largestMs) * (height - 24), wide, 3);
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
  const mean = recent.reduce((sum, one) => sum + one.ms / one.n, 0) / Math.max(1, recent.length);
  const last = focus?.recomputed.at(-1);
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
  setText(verdict, t('verify.result', { verdict: t(pass ? 'verify.pass' : 'verify.fail'), difference: number(result.max_abs_diff), tolerance: TOLERANCE,
    length: result.length, bits: t(result.bit_identical ? 'verify.identical' : 'verify.different'), ms: milliseconds(result.ms) }));
}
