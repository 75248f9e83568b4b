// A crowd on the wall: many sessions, some of them decoding, while one is looked at. As a program it
// measures; the page's tests run a small one of it.
//
//   node crowd.mjs [sessions 2000] [decoding 200] [seconds 10] [together | apart]
//
// apart: the server and its load have core 0, the browser core 1, so that what is measured is what
// the page costs the server, not what the browser takes of the same cores.
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { dirname, join } from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { BINARY, eventually, openPage, rows, startBrowser, startServer } from './harness.mjs';

/** Makes sessions crowd-0 ... on the server. */
export async function gather(server, n) {
  for (let i = 0; i < n; i += 50) {
    await Promise.all(Array.from({ length: Math.min(50, n - i) }, (_, k) => server.call('POST', '/prefill',
      { session: `crowd-${i + k}`, model: 'seed-attention', inputs: rows(4 + ((i + k) % 60)), output: 'none' })));
  }
}

export const onWall = (page, n) => eventually(async () => (await page.locator('[data-testid=wall] [data-session]').count()) >= n, `${n} lines`);

/**
 * Clicks lines of the wall, one after the other; for each the milliseconds from the click to the
 * first frame painted behind it that shows its line as chosen.
 */
export async function clickLines(page, ids) {
  const times = [];
  for (const id of ids) {
    const at = await page.evaluate((session) => {
      window.answered = new Promise((done) => {
        document.addEventListener('click', (event) => {
          const line = event.target.closest('[data-session]'); // lines move: it may be another one
          const look = () => requestAnimationFrame(() => {
            if (line.getAttribute('aria-selected') !== 'true') return look();
            const { port1, port2 } = new MessageChannel();
            port1.onmessage = () => done(performance.now() - event.timeStamp); // when the browser got it
            port2.postMessage(null);
          });
          look();
        }, { once: true, capture: true });
      });
      const line = document.querySelector(`[data-session="${session}"]`);
      line.scrollIntoView({ block: 'nearest' });
      const { x, y, width, height } = line.getBoundingClientRect();
      return [x + width / 2, y + height / 2];
    }, id);
    await page.mouse.click(...at);
    times.push(await page.evaluate(() => window.answered));
  }
  return times;
}

export const idsOf = (n, of) => Array.from({ length: n }, (_, i) => `crowd-${Math.floor(((i + 0.5) * of) / n)}`);

export default function (given) {
  test('500 sessions, 50 of them decoding: a click is answered, and the wall ends up right', async (t) => {
    const { browser } = given();
    const server = await startServer({ flags: ['--kv-memory', '256MiB'] });
    await gather(server, 500);
    const one = await openPage(browser, server);
    await onWall(one.page, 500);
    const open = one.requests.filter((request) => request.timing().responseEnd === -1 && !['data:', 'blob:'].includes(new URL(request.url()).protocol));
    assert.deepEqual(open.map((request) => new URL(request.url()).pathname), ['/watch']);
    let isOver = false;
    const decoding = Array.from({ length: 50 }, async (_, i) => {
      while (!isOver) {
        await server.call('POST', '/decode', { session: `crowd-${10 * i}`, steps: 10 });
        await new Promise((done) => setTimeout(done, 200));
      }
    });
    const times = await clickLines(one.page, idsOf(5, 500));
    isOver = true;
    await Promise.all(decoding);
    t.diagnostic(`click to paint: ${times.map(Math.round).join(', ')} ms`);
    const { sessions } = await server.call('GET', '/sessions?limit=1000');
    const wanted = new Map(sessions.map((session) => [session.session, `${session.length} ${session.kv.bytes} idle`]));
    await eventually(async () => {
      const lines = await one.page.locator('[data-testid=wall] [data-session]').evaluateAll((nodes) => nodes.map((node) => [node.dataset.session, `${node.dataset.kvLen} ${node.dataset.kvBytes} ${node.dataset.state}`]));
      return lines.length === 500 && lines.every(([id, text]) => wanted.get(id) === text);
    }, 'each line says what GET /sessions says');
    assert.deepEqual(one.complaints, []);
    await one.context.close();
    await server.stop();
  });
}

async function measure(sessions, decoding, seconds, isApart) {
  if (isApart) execFileSync('taskset', ['-apc', '1', String(process.pid)], { stdio: 'ignore' }); // the browser inherits it
  const prefix = isApart ? ['taskset', '-c', '0'] : [];
  const server = await startServer({ prefix, threads: isApart ? 1 : 2, flags: ['--kv-memory', '1GiB', ...(process.env.WEB_ROOT ? ['--web-root', process.env.WEB_ROOT] : [])] });
  await gather(server, sessions - decoding);
  const steps = async () => Number(/^attnd_decode_steps_total (\d+)/m.exec(await (await fetch(`${server.url}/metrics`)).text())[1]);
  const pause = (s) => new Promise((done) => setTimeout(done, 1000 * s));
  const rate = async (what, during) => {
    const [from, start] = [await steps(), performance.now()];
    const found = await during();
    console.log(what, { 'steps a second': Math.round((1000 * (await steps() - from)) / (performance.now() - start)), ...found });
  };
  const load = async (during) => {
    const [program, ...parameters] = [...prefix, join(dirname(BINARY), 'attn-load'), '--url', server.url, '--model', 'seed-attention', '--sessions', String(decoding),
      '--concurrency', String(decoding), '--prompt', '16', '--steps', '100', '--ops', 'inf', '--mix', 'decode=1,truncate=1', // which keeps them short
       '--duration', '600', '--check', '0', '--quiet', '--id', 'load'];
    const child = spawn(program, parameters, { stdio: 'ignore' });
    const ended = new Promise((done) => child.on('exit', done));
    try {
      await pause(2);
      await during();
    } finally {
      child.kill();
      await ended;
    }
  };
  const alone = () => load(() => rate('without a page', () => pause(seconds)));
  await alone();
  const browser = await startBrowser();
  const one = await openPage(browser, server);
  await onWall(one.page, sessions - decoding);
  await load(async () => {
    await onWall(one.page, sessions);
    await rate('with the page', async () => {
      await pause(seconds);
      return { work: await one.at('work').textContent(), link: await one.at('link').textContent() };
    });
    await rate('while one clicks', async () => {
      const times = (await clickLines(one.page, idsOf(12, sessions - decoding))).sort((x, y) => x - y);
      return { 'click to paint, ms': { median: Math.round(times[6]), most: Math.round(times.at(-1)) } };
    });
  });
  if (one.complaints.length) console.log(one.complaints);
  await browser.close();
  await alone();
  await server.stop();
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const isApart = process.argv.at(-1) === 'apart';
  const [sessions = 2000, decoding = 200, seconds = 10] = process.argv.slice(2).map(Number).filter(Number.isFinite);
  await measure(sessions, decoding, seconds, isApart);
}
