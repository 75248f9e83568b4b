// What the page does when the server, the wire, the session or the browser's own speed goes away.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';
import { cacheIs, choose, eventually, openPage, rows, startServer, startWire } from './harness.mjs';

const noExceptions = (one) => assert.deepEqual(one.complaints.filter((line) => line.startsWith('exception')), []);
const banner = (one, kind) => one.page.locator(`[data-testid=banner][data-kind=${kind}]`).waitFor();
const live = (one) => one.page.locator('[data-testid=link][data-status=live]').waitFor();

export default function (given) {
  test('a restarted server is told, and the page recovers by itself', async () => {
    const own = await startServer();
    const page = await openPage(given().browser, own, { expected: /./ });
    await own.call('POST', '/prefill', { session: 'a', inputs: rows(3), model: 'seed-attention' });
    await choose(page, 'a', 3);
    await own.stop();
    await banner(page, 'lost');
    const again = await startServer({ port: own.port });
    await live(page);
    await banner(page, 'gone'); // the new one has no such session
    await again.call('POST', '/prefill', { session: 'a', inputs: rows(5), model: 'seed-attention' });
    await cacheIs(page, 5);
    await page.at('banner').waitFor({ state: 'hidden' });
    noExceptions(page);
    await page.context.close();
    await again.stop();
  });

  test('a cut stream is told and opened again; what happened meanwhile is fetched', async (t) => {
    const { server, browser } = given();
    const wire = await startWire(server);
    const page = await openPage(browser, { ...server, url: wire.url }, { expected: /./ });
    await server.call('POST', '/prefill', { session: 'cut', inputs: rows(3), model: 'seed-attention' });
    await choose(page, 'cut', 3);
    wire.break();
    await banner(page, 'lost');
    await server.call('POST', '/decode', { session: 'cut', steps: 5 });
    wire.mend();
    const start = performance.now();
    await live(page);
    t.diagnostic(`live again after ${(performance.now() - start).toFixed(0)} ms`);
    await cacheIs(page, 8);
    await page.at('banner').waitFor({ state: 'hidden' });
    wire.cut(); // at once there again: nothing is lost either
    await server.call('POST', '/decode', { session: 'cut', steps: 5 });
    await cacheIs(page, 13);
    await live(page);
    const weights = await server.tensor('cut', 'blocks.0.attn.hook_pattern', '?dtype=U8');
    await eventually(() => page.page.evaluate(() => window.__viz.focus.history.length === 13), 'the history');
    for (let q = 0; q < 13; q++) {
      assert.deepEqual(await page.page.evaluate((at) => Array.from({ length: at + 1 }, (_, k) => window.__viz.cellByte(2, at, k)), q), weights[2][q].slice(0, q + 1));
    }
    noExceptions(page);
    await page.context.close();
    await wire.stop();
  });

  test('a deleted session says so on the wall and in its panels, and comes back when it is made again', async () => {
    const { server, one } = given();
    await server.call('POST', '/prefill', { session: 'mortal', inputs: rows(3), model: 'seed-attention' });
    await choose(one, 'mortal', 3);
    await server.call('DELETE', '/sessions/mortal');
    await banner(one, 'gone');
    assert.equal(await one.page.locator('[data-session="mortal"]').getAttribute('data-state'), 'deleted');
    assert.match(await one.page.locator('[data-session="mortal"] .badge').textContent(), /deleted/);
    assert.equal(await one.at('panel-cache').getAttribute('data-kv-len'), '3'); // what it held is still to be seen
    await one.page.locator('[data-session="mortal"]').waitFor({ state: 'detached' });
    await server.call('POST', '/prefill', { session: 'mortal', inputs: rows(4), model: 'seed-attention' });
    await cacheIs(one, 4);
    await one.at('banner').waitFor({ state: 'hidden' });
    noExceptions(one);
  });

  test('lost events and steps without tensors are counted for all to see; ids stay text', async () => {
    const { server, browser } = given();
    const lines = [
      { event: 'hello', seq: 0, sessions: [{ session: '<img src=x onerror=alert(1)>', model: '<b>m</b>', length: 2, kv_bytes: 1024, state: 'idle' }], more: false },
      { event: 'gap', seq: 1, dropped: 1904 },
      { event: 'prefill', seq: 2, session: 'partly', model: '<b>m</b>', length: 512, kv_bytes: 4096, processed: 512, total: 2048 },
      { event: 'step', seq: 6, session: '<img src=x onerror=alert(1)>', model: '<b>m</b>', length: 3, kv_bytes: 1024, step: 0, position: 2 },
    ];
    let mend;
    const again = new Promise((done) => { mend = done; });
    const page = await openPage(browser, server, { expected: /./, async prepare(p) {
      let n = 0;
      await p.route(/\/watch$/, (route) => (n++ ? again.then(() => route.continue()) : route.fulfill({ contentType: 'application/x-ndjson', body: lines.map((one) => `${JSON.stringify(one)}\n`).join('') })));
    }, isLive: false });
    await page.page.locator('[data-session^="<img"]').waitFor();
    assert.equal(await page.page.locator('[data-session^="<img"] .line-name').textContent(), '<img src=x onerror=alert(1)>');
    assert.equal(await page.page.locator('img, nav b').count(), 0);
    assert.equal(await page.page.evaluate(() => window.__viz.state.dropped), 1907);
    await eventually(async () => /512 · 4\.00 KiB · 512\/2048$/.test(await page.page.locator('[data-session=partly] .line-numbers').textContent()), 'how far a prefill is');
    mend();
    await live(page);
    assert.match(await page.at('link').textContent(), /1,907 events lost/);
    /* Steps of the chosen session whose tensors this page was too slow for. */
    await server.call('POST', '/prefill', { session: 'bare', inputs: rows(3), model: 'seed-attention' });
    const step = (n, more) => ({ event: 'step', seq: 1 + n, session: 'bare', model: 'seed-attention', length: 4 + n, kv_bytes: 2048, step: n, position: 3 + n, ...more });
    const steps = [{ event: 'hello', seq: 0, sessions: [{ session: 'bare', model: 'seed-attention', length: 3, kv_bytes: 2048, state: 'idle' }], more: false }, step(0, { dropped: 1 }), step(1, { dropped: 1 }), step(2)];
    let n = 0;
    await page.page.route(/\/watch\?session=bare/, async (route) => {
      if (n++) return route.continue();
      await server.call('POST', '/decode', { session: 'bare', steps: 3 });
      await route.fulfill({ contentType: 'application/x-ndjson', body: steps.map((one) => `${JSON.stringify(one)}\n`).join('') });
    });
    await choose(page, 'bare', 6);
    await live(page);
    await eventually(async () => /2 steps without their pictures, fetched afterwards/.test(await page.at('link').textContent()), 'it says so');
    const weights = await server.tensor('bare', 'blocks.0.attn.hook_pattern', '?dtype=U8');
    await eventually(() => page.page.evaluate(() => window.__viz.focus.history.length === 6), 'and they are fetched');
    for (let q = 0; q < 6; q++) assert.deepEqual(await page.page.evaluate((at) => Array.from({ length: at + 1 }, (_, k) => window.__viz.cellByte(1, at, k)), q), weights[1][q].slice(0, q + 1));
    noExceptions(page);
    await page.context.close();
  });

  test('a slow browser draws less often and says so; then it recovers', async () => {
    const { server, browser } = given();
    const page = await openPage(browser, server);
    const outputs = [];
    for (const session of ['slow', 'alone']) await server.call('POST', '/prefill', { session, inputs: rows(200), model: 'seed-attention' });
    await choose(page, 'slow', 200);
    const cdp = await page.context.newCDPSession(page.page);
    await cdp.send('Emulation.setCPUThrottlingRate', { rate: 20 });
    await eventually(async () => {
      await server.call('POST', '/decode', { session: 'slow', steps: 5 });
      return /drawing at \d+ frames a second/.test(await page.at('link').textContent());
    }, 'it says so');
    await cdp.send('Emulation.setCPUThrottlingRate', { rate: 1 });
    await page.page.locator('[data-testid=link][data-slow=false]').waitFor();
    const { length } = await server.call('GET', '/sessions/slow');
    await cacheIs(page, length); // nothing is missing in the end
    await server.call('POST', '/decode', { session: 'alone', steps: length - 200 });
    for (const session of ['slow', 'alone']) outputs.push(JSON.stringify(await server.tensor(session, 'blocks.0.hook_attn_out', '?q=200:205')));
    assert.equal(outputs[0], outputs[1]); // and it changed no bit
    assert.deepEqual(page.complaints, []);
    await page.context.close();
  });

  test('a recording replays with the server stopped', async () => {
    const own = await startServer();
    const page = await openPage(given().browser, own, { expected: /./ });
    await own.call('POST', '/prefill', { session: 'tape', inputs: rows(4), model: 'seed-attention' });
    await choose(page, 'tape', 4);
    await own.call('POST', '/decode', { session: 'tape', steps: 5 });
    await cacheIs(page, 9);
    const weights = await own.tensor('tape', 'blocks.0.attn.hook_pattern', '?dtype=U8');
    const [download] = await Promise.all([page.page.waitForEvent('download'), page.at('record').click()]);
    const path = await download.path();
    await own.stop();
    await banner(page, 'lost');
    await page.at('replay-file').setInputFiles({ name: 'tape.safetensors', mimeType: 'application/octet-stream', buffer: readFileSync(path) });
    await page.at('replay').waitFor();
    await page.at('banner').waitFor({ state: 'hidden' });
    await cacheIs(page, 9);
    const bytes = () => page.page.evaluate(() => Array.from({ length: 9 }, (_, q) => Array.from({ length: q + 1 }, (_unused, k) => window.__viz.cellByte(3, q, k))));
    await eventually(() => page.page.evaluate(() => window.__viz.focus.history.length === 9), 'the history');
    assert.deepEqual(await bytes(), weights[3].map((row, q) => row.slice(0, q + 1)));
    const ticks = () => page.page.locator('[data-testid="checks"] [data-ok]').evaluateAll((nodes) => nodes.map((node) => node.dataset.ok));
    await eventually(async () => String(await ticks()) === 'true,true,true', 'three ticks');
    await page.at('replay-slider').fill('0');
    await cacheIs(page, 4);
    await page.at('replay-play').click();
    await cacheIs(page, 9);
    await page.at('replay-leave').click();
    await banner(page, 'lost'); // it is the server's page again, which is still stopped
    await page.at('replay-file').setInputFiles({ name: 'x', mimeType: 'application/octet-stream', buffer: Buffer.from('no recording') });
    await eventually(async () => /no recording/.test(await page.at('recording-status').textContent()), 'it says so');
    noExceptions(page);
    await page.context.close();
  });
}
