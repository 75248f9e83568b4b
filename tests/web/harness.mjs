// What the tests of the web page share: a server, a browser, pages that must not err.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { chromium } from 'playwright-core';

const ROOT = resolve(import.meta.dirname, '../..');
const BINARY = process.env.ATTND_BINARY ?? join(ROOT, 'build/release/attnd');
const MODELS = process.env.ATTND_TEST_MODELS;
const FLAGS = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
  '--disable-component-update', '--disable-sync', '--disable-dev-shm-usage'];

/** How long a thing may take on a busy machine. */
export const PATIENCE_MS = 30000;

/** A model folder for tests with text, if there is one. */
export const STORY = MODELS && existsSync(join(MODELS, 'stories260K')) ? join(MODELS, 'stories260K') : null;

/** A server of the test's own, on a free port or a given one. */
export async function startServer({ port = 0, flags = [] } = {}) {
  const child = spawn(BINARY, ['--port', String(port), '--threads', '2', '--kv-memory', '64MiB', '--log-level', 'error', ...flags], { stdio: ['ignore', 'pipe', 'inherit'] });
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
  };
}

export const startBrowser = () => chromium.launch({ executablePath: '/usr/bin/chromium', args: FLAGS });

/**
 * Opens the page. `complaints` collects what must not be: exceptions, console errors, requests to
 * other origins. An error reply of the server is logged by the browser by itself: `expected` lets
 * some through.
 */
export async function openPage(browser, server, { hash = '', expected = null, ...options } = {}) {
  const context = await browser.newContext({ locale: 'en-US', viewport: { width: 1280, height: 900 }, reducedMotion: 'reduce', ...options });
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
  await page.goto(`${server.url}/${hash}`);
  await page.locator('[data-testid=link][data-status=live]').waitFor({ state: 'attached' });
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
export const readPicture = (page, testid) => page.evaluate((id) => {
  const canvas = document.querySelector(`[data-testid="${id}"]`);
  const { lut } = window.__viz;
  const byte = new Map();
  for (let i = 0; i < 256; i++) byte.set(`${lut[3 * i]},${lut[3 * i + 1]},${lut[3 * i + 2]}`, i);
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const bytes = [];
  for (let i = 0; i < data.length; i += 4) bytes.push(data[i + 3] ? byte.get(`${data[i]},${data[i + 1]},${data[i + 2]}`) ?? NaN : -1);
  return { rows: canvas.height, columns: canvas.width, bytes };
}, testid);
