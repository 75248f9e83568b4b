// Driving: everything that curl can do to a session, each with the line that does it.
import { call, curlLine, stream } from './api.js';
import { el, field, fill, panel, select, setText, button } from './dom.js';
import { onLanguage, t } from './i18n.js';
import { milliseconds } from './format.js';
import { chooseSession, endFocus, focus, timeRun } from './focus.js';
import { state, subscribe, touch } from './state.js';
import { announce } from './live.js';

const text = (props) => el('input', { type: 'text', autocomplete: 'off', spellcheck: 'false', ...props });
const numeric = (props) => el('input', { type: 'number', ...props });

const controls = {
  session: text({ testid: 'drive-session', maxlength: '64' }),
  model: el('select', { testid: 'drive-model' }),
  kind: select([['text', 'drive.kind.text'], ['tokens', 'drive.kind.tokens'], ['inputs', 'drive.kind.inputs']], 'text', () => example(), { testid: 'drive-kind' }),
  dtype: select([['f32', 'f32', true], ['f16', 'f16', true], ['bf16', 'bf16', true], ['q8', 'q8', true]], 'f32', () => update(), { testid: 'drive-dtype' }),
  content: el('textarea', { rows: '3', spellcheck: 'false', testid: 'drive-content' }),
  steps: numeric({ min: '1', max: '100000', value: '32', testid: 'drive-steps' }),
  temperature: numeric({ min: '0', step: '0.1', value: '0' }),
  topK: numeric({ min: '0', value: '' }),
  topP: numeric({ min: '0', max: '1', step: '0.05', value: '' }),
  minP: numeric({ min: '0', max: '1', step: '0.05', value: '' }),
  penalty: numeric({ min: '0', step: '0.05', value: '' }),
  seed: numeric({ min: '0', value: '', testid: 'drive-seed' }),
  stop: text({}),
  forkAs: text({ testid: 'fork-as', maxlength: '64' }),
  forkAt: numeric({ min: '0', value: '', testid: 'fork-at' }),
  truncate: numeric({ min: '0', value: '', testid: 'truncate-to' }),
};
const log = el('pre', { class: 'log', tabindex: '0', role: 'group', i18nLabel: 'drive.log', testid: 'drive-log' });
const status = el('p', { class: 'note', role: 'status', testid: 'drive-status' });
const lines = {};
/** @type {AbortController | null} */
let decoding = null;

/** A line to copy. */
export function curlBlock(name) {
  const code = el('code', { testid: `curl-${name}` });
  const block = el('div', { class: 'curl' }, el('pre', { tabindex: '0', role: 'group', i18nLabel: 'drive.curl' }, code),
    button('drive.copy', () => navigator.clipboard?.writeText(code.textContent), { class: 'small' }));
  return { block, code };
}

function group(name, titleKey, ...children) {
  const { block, code } = curlBlock(name);
  lines[name] = code;
  return el('fieldset', {}, el('legend', { i18n: titleKey }), ...children, block);
}

export function drive() {
  const c = controls;
  const settings = el('details', {}, el('summary', { i18n: 'drive.sampling' }), el('div', { class: 'fields' },
    field('drive.temperature', c.temperature), field('drive.topk', c.topK), field('drive.topp', c.topP), field('drive.minp', c.minP),
    field('drive.penalty', c.penalty), field('drive.seed', c.seed), field('drive.stop', c.stop)));
  const { root } = panel('drive', 'drive.title', {},
    status,
    el('div', { class: 'drive' },
      group('prefill', 'drive.prefill',
        el('div', { class: 'fields' }, field('drive.session', c.session), field('drive.model', c.model), field('drive.kind', c.kind), field('drive.dtype', c.dtype)),
        field('drive.content', c.content, { class: 'field wide' }),
        el('div', { class: 'buttons' }, button('drive.run.prefill', prefill, { class: 'primary', testid: 'run-prefill' }), button('drive.example', example, { testid: 'drive-example' }))),
      group('decode', 'drive.decode',
        el('div', { class: 'fields' }, field('drive.steps', c.steps)), settings,
        el('div', { class: 'buttons' }, button('drive.run.decode', () => decode(), { class: 'primary', testid: 'run-decode' }),
          button('drive.run.cancel', cancel, { testid: 'run-cancel' }))),
      group('fork', 'drive.fork', el('div', { class: 'fields' }, field('drive.forkas', c.forkAs), field('drive.forkat', c.forkAt)),
        el('div', { class: 'buttons' }, button('drive.run.fork', fork, { testid: 'run-fork' }))),
      group('truncate', 'drive.truncate', el('div', { class: 'fields' }, field('drive.truncateto', c.truncate)),
        el('div', { class: 'buttons' }, button('drive.run.truncate', truncate, { testid: 'run-truncate' }))),
      group('delete', 'drive.delete', el('div', { class: 'buttons' }, button('drive.run.delete', remove, { class: 'danger', testid: 'run-delete' })))),
    log);
  root.addEventListener('input', update);
  c.model.addEventListener('change', () => { example(); update(); });
  onLanguage(update);
  subscribe(['models'], fillModels);
  subscribe(['focus'], onFocus);
  subscribe(['cache'], update);
  return root;
}

function fillModels() {
  fill(controls.model, ...Object.keys(state.models).map((name) => el('option', { value: name, text: name, selected: name === state.defaultModel })));
  newSession();
}

let lastFocus = null;
function onFocus() {
  if (focus?.session === lastFocus || focus?.status === 'loading') return;
  lastFocus = focus?.session ?? null;
  if (focus?.status === 'ok') {
    controls.session.value = focus.session;
    controls.model.value = focus.model.name;
    controls.dtype.value = focus.info.kv.dtype;
    const kind = controls.kind.value;
    fixKind();
    if (kind !== controls.kind.value) example();
  }
  update();
}

const isRows = () => state.models[controls.model.value]?.model_type === 'attention';

function fixKind() {
  const model = state.models[controls.model.value];
  if (!model) return;
  if (isRows()) controls.kind.value = 'inputs';
  else if (controls.kind.value === 'inputs' || !model.tokenizer) controls.kind.value = model.tokenizer ? 'text' : 'tokens';
}

/** A name nobody has, and something to begin with. */
export function newSession() {
  let n = 1;
  while (state.sessions.has(`page-${n}`)) n++;
  controls.session.value = `page-${n}`;
  example();
  update();
}

export const focusDrive = () => controls.session.focus({ preventScroll: true });

/** Rows that are neither random nor alike. */
export const exampleRows = (n, width) => Array.from({ length: n }, (_, i) => Array.from({ length: width }, (_unused, j) => ((i * 7 + j * j * 3 + i * j) % 17 - 8) / 8));

function example() {
  fixKind();
  const model = state.models[controls.model.value];
  if (!model) return;
  const kind = controls.kind.value;
  controls.content.value = kind === 'text' ? (model.example?.text ?? 'Once upon a time') : kind === 'tokens' ? '1, 2, 3' : JSON.stringify(exampleRows(4, model.hidden_size));
  update();
}

function bodyOfPrefill() {
  const c = controls;
  const body = { session: c.session.value.trim() };
  const known = state.sessions.get(body.session);
  if (!known || known.gone) {
    body.model = c.model.value;
    if (c.dtype.value !== 'f32') body.kv_dtype = c.dtype.value;
  }
  if (c.kind.value === 'text') body.text = c.content.value;
  else if (c.kind.value === 'tokens') body.tokens = c.content.value.split(/[\s,]+/).filter(Boolean).map(Number);
  else body.inputs = JSON.parse(c.content.value);
  return body;
}

const target = () => controls.session.value.trim();

function bodyOfDecode() {
  const c = controls;
  const body = { session: target(), steps: Number(c.steps.value) || 1, stream: true };
  if (isRows()) return body;
  const set = (name, input) => { if (input.value !== '') body[name] = Number(input.value); };
  if (Number(c.temperature.value) > 0) body.temperature = Number(c.temperature.value);
  set('top_k', c.topK);
  set('top_p', c.topP);
  set('min_p', c.minP);
  set('repetition_penalty', c.penalty);
  set('seed', c.seed);
  if (c.stop.value) body.stop = c.stop.value;
  body.logprobs = 10;
  return body;
}

function bodyOfFork() {
  const body = { as: controls.forkAs.value.trim() || `${target()}-fork`.slice(0, 64) };
  if (controls.forkAt.value !== '') body.at = Number(controls.forkAt.value);
  return body;
}

/* Without a length: one position less. */
const bodyOfTruncate = () => ({ length: controls.truncate.value === '' ? Math.max(0, (focus?.length ?? 1) - 1) : Number(controls.truncate.value) });

function update() {
  const id = encodeURIComponent(target());
  let prefillBody;
  try {
    prefillBody = bodyOfPrefill();
  } catch {
    prefillBody = { session: target(), inputs: '…' };
  }
  setText(lines.prefill, curlLine('POST', '/prefill', prefillBody));
  setText(lines.decode, curlLine('POST', '/decode', bodyOfDecode(), { streamed: true }));
  setText(lines.fork, curlLine('POST', `/sessions/${id}/fork`, bodyOfFork()));
  setText(lines.truncate, curlLine('POST', `/sessions/${id}/truncate`, bodyOfTruncate()));
  setText(lines.delete, curlLine('DELETE', `/sessions/${id}`));
}

function say(message, isError = false) {
  setText(status, message);
  status.classList.toggle('error', isError);
  announce(message);
}

async function attempt(work) {
  try {
    await work();
  } catch (error) {
    if (error.name !== 'AbortError') say(error instanceof SyntaxError ? t('drive.badrows') : `${error.code ?? ''} ${error.message}`.trim(), true);
  }
  update();
}

const prefill = () => attempt(async () => {
  const body = bodyOfPrefill();
  const reply = await call('POST', '/prefill', body);
  say(t('drive.prefilled', { n: reply.appended, length: reply.length, ms: milliseconds(reply.timing.compute_ms) }));
  log.textContent = body.text ?? '';
  await chooseSession(reply.session, {}, reply.length - reply.appended);
  if (reply.next && focus) {
    focus.top = { position: reply.length, chosen: null, list: reply.next };
    touch('top');
  }
});

/** Decodes live; each step shows its likely tokens. */
export const decode = (steps) => attempt(async () => {
  const body = bodyOfDecode();
  if (steps) body.steps = steps;
  if (focus?.session !== body.session && state.sessions.has(body.session)) await chooseSession(body.session);
  decoding?.abort();
  decoding = new AbortController();
  let n = 0;
  const start = performance.now();
  await stream('POST', '/decode', body, (event) => {
    if (event.done) {
      timeRun(body.session, event.steps, event.timing.compute_ms);
      say(event.error ? `${event.error.code} ${event.error.message}` : t('drive.done', { steps: event.steps, length: event.length, reason: t(`reason.${event.reason}`), seed: event.seed ?? '-', rate: (1000 * n / (performance.now() - start)).toFixed(0) }), Boolean(event.error));
      return;
    }
    n++;
    if (event.text !== undefined) log.textContent = (log.textContent + event.text).slice(-20000);
    if (event.logprobs && focus?.session === body.session) {
      focus.top = { position: event.position, chosen: event.token, list: event.logprobs };
      touch('top');
    }
  }, { signal: decoding.signal });
});

const cancel = () => attempt(async () => {
  await call('POST', `/sessions/${target()}/cancel`);
  say(t('drive.cancelled'));
});

const fork = () => attempt(async () => {
  const made = await call('POST', `/sessions/${target()}/fork`, bodyOfFork());
  say(t('drive.forked', { session: made.session, length: made.length }));
  await chooseSession(made.session);
});

const truncate = () => attempt(async () => {
  const made = await call('POST', `/sessions/${target()}/truncate`, bodyOfTruncate());
  say(t('drive.truncated', { length: made.length }));
});

const remove = () => attempt(async () => {
  if (focus?.session === target()) endFocus();
  await call('DELETE', `/sessions/${target()}`);
  say(t('drive.deleted'));
});
