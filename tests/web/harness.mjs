// What the tests of the web page share: a server, a browser, pages that must not err.
import assert from 'node:assert/strict';
import { fileURLToPath } from 'node:url';
import { spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { chromium } from 'playwright-core';
import { parse } from '../../clients/web/safetensors.js';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
export const BINARY = process.env.ATTND_BINARY ?? join(ROOT, 'build/release/attnd');
const FLAGS = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
  '--disable-component-update', '--disable-sync', '--disable-dev-shm-usage'];

/** How long a thing may take on a busy machine. */
export const PATIENCE_MS = 30000;

/** Layers with random weights: query heads, KV heads, head_dim. `wide` has MiniMind-3's. */
const SHAPES = { wide: [8, 4, 96], mha: [4, 4, 8], mqa: [4, 1, 8], single: [1, 1, 8] };
const folder = mkdtempSync(join(tmpdir(), 'attnd-web-'));
process.on('exit', () => rmSync(folder, { recursive: true, force: true }));
export const SHAPE_FLAGS = ['--random', '1', '--default-model', 'stories', ...Object.entries(SHAPES).flatMap(([name, [heads, kvHeads, dim]]) => {
  mkdirSync(join(folder, name));
  writeFileSync(join(folder, name, 'config.json'), JSON.stringify({ model_type: 'qwen3', hidden_size: heads * dim, num_hidden_layers: 1,
    num_attention_heads: heads, num_key_value_heads: kvHeads, head_dim: dim, intermediate_size: 64, vocab_size: 64, max_position_embeddings: 2048,
    rms_norm_eps: 1e-6, rope_theta: 1e6, tie_word_embeddings: true }));
  return ['--model', `${name}=${join(folder, name)}`];
})];

/** A server of the test's own, on a free port or a given one. */
export async function startServer({ port = 0, threads = 2, flags = [], prefix = [] } = {}) {
  const [program, ...parameters] = [...prefix, BINARY, '--port', String(port), '--threads', String(threads), '--kv-memory', '64MiB', '--log-level', 'error', ...flags];
  const child = spawn(program, parameters, { stdio: ['ignore', 'pipe', 'inherit'] });
  const url = await new Promise((done, fail) => {
    let text = '';
    child.stdout.on('data', (data) => {
      text += data;
      const match = /listening on (http:\S+)\n/.exec(text);
      if (match) done(match[1]);
    });
    child.on('exit', (code) => fail(new Error(`attnd ended with ${code}`)));
  });
  const ended = new Promise((done) => child.on('exit', done));
  return {
    url,
    port: Number(new URL(url).port),
    async stop() {
      child.kill('SIGTERM');
      await ended;
    },
    async call(method, path, body) {
      const response = await fetch(url + path, { method,
        headers: body === undefined ? {} : { 'Content-Type': 'application/json' }, body: body === undefined ? undefined : JSON.stringify(body) });
      const text = await response.text();
      assert.ok(response.ok, `${method} ${path}: ${response.status} ${text.slice(0, 300)}`);
      return text ? JSON.parse(text) : null;
    },
    async tensor(session, name, query = '') {
      return (await this.call('GET', `/sessions/${session}/tensors/${name}${query}`)).data;
    },
    /** The same for large ones: flat. */
    async flatTensor(session, name, query = '') {
      const response = await fetch(`${url}/sessions/${session}/tensors/${name}${query}`, { headers: { Accept: 'application/x-safetensors' } });
      assert.ok(response.ok, name);
      return parse(await response.arrayBuffer()).tensors[name].data;
    },
  };
}

export const startBrowser = () => chromium.launch({ executablePath: '/usr/bin/chromium', args: FLAGS });

/** A wire between browser and server that can be cut, or mended; the page is then at its url. */
export async function startWire(server) {
  const ends = new Set();
  let whole = true;
  const wire = net.createServer((near) => {
    if (!whole) return void near.destroy();
    const far = net.connect(server.port, '127.0.0.1');
    for (const [one, other] of [[near, far], [far, near]]) {
      ends.add(one);
      one.pipe(other);
      one.on('error', () => other.destroy());
      one.on('close', () => { ends.delete(one); other.destroy(); });
    }
  });
  await new Promise((done) => wire.listen(0, '127.0.0.1', done));
  const cut = () => { for (const one of ends) one.destroy(); };
  return {
    url: `http://127.0.0.1:${wire.address().port}`,
    cut,
    break() { whole = false; cut(); },
    mend() { whole = true; },
    async stop() { cut(); await new Promise((done) => wire.close(done)); },
  };
}

/**
 * Opens the page. `complaints` collects what must not be: exceptions, console errors, requests to
 * other origins. An error reply of the server is logged by the browser by itself: `expected` lets
 * some through.
 */
export async function openPage(browser, server, { hash = '', expected = null, tabOf = null, prepare = null, isLive = true, ...options } = {}) {
  const context = tabOf ?? await browser.newContext({ locale: 'en-US', viewport: { width: 1280, height: 900 }, reducedMotion: 'reduce', ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE_MS);
  const complaints = [];
  const requests = [];
  page.on('pageerror', (error) => complaints.push(`exception: ${error.stack}`));
  page.on('console', (message) => {
    if (message.type() !== 'error') return;
    const text = `console: ${message.text()} ${message.location().url}`;
    if (!expected?.test(text)) complaints.push(text);
  });
  page.on('request', (request) => {
    requests.push(request);
    const url = new URL(request.url());
    if (!['data:', 'blob:'].includes(url.protocol) && url.origin !== server.url) complaints.push(`foreign: ${request.url()}`);
  });
  await prepare?.(page);
  await page.goto(`${server.url}/${hash}`);
  if (isLive) await page.locator('[data-testid=link][data-status=live]').waitFor({ state: 'attached' });
  return { page, context, complaints, requests, at: (testid) => page.locator(`[data-testid="${testid}"]`) };
}

/** Chooses a session on the wall and waits until its cache is shown whole. */
export async function choose(one, session, length) {
  await one.page.locator(`[data-session="${session}"]`).click();
  await cacheIs(one, length);
}

export const cacheIs = (one, length) => one.page.locator(`[data-testid=panel-cache][data-kv-len="${length}"]`).waitFor();

/** Waits until fn, run in the page or here, gives something true. */
export async function eventually(fn, what) {
  const end = Date.now() + PATIENCE_MS;
  let last;
  while (Date.now() < end) {
    last = await fn();
    if (last) return last;
    await new Promise((done) => setTimeout(done, 50));
  }
  assert.fail(`${what}: never, last ${JSON.stringify(last)}`);
}

/** Rows that are neither random nor alike. */
export const rows = (n, width = 16, from = 0) => Array.from({ length: n }, (_, i) => Array.from({ length: width }, (_unused, j) => (((i + from) * 7 + j * j * 3 + (i + from) * j) % 17 - 8) / 8));

/** The bytes of a picture, by the inverse of the page's colours; -1 where it is transparent. */
export async function readPicture(page, testid) {
  const picture = await page.evaluate((id) => {
    const canvas = document.querySelector(`[data-testid="${id}"]`);
    if (!canvas.width || !canvas.height) return { rows: 0, columns: 0, text: '' };
    const { lut } = window.__viz;
    const byte = new Map();
    for (let i = 0; i < 256; i++) byte.set((lut[3 * i] << 16) | (lut[3 * i + 1] << 8) | lut[3 * i + 2], i);
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    let text = ''; // a character a cell: arrays of so many numbers travel slowly
    for (let i = 0; i < data.length; i += 4) text += String.fromCharCode(data[i + 3] ? byte.get((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]) ?? 999 : 256);
    return { rows: canvas.height, columns: canvas.width, text };
  }, testid);
  return { rows: picture.rows, columns: picture.columns, bytes: Array.from(picture.text, (one) => (one.charCodeAt(0) === 256 ? -1 : one.charCodeAt(0))) };
}
