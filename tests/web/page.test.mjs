// The web page in a real browser, on a real server: what it shows is what the server has.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import test, { after, before } from 'node:test';
import { SHAPE_FLAGS, cacheIs, choose, eventually, openPage, readPicture, rows, startBrowser, startServer } from './harness.mjs';
import crowd from './crowd.mjs';
import heads from './heads.mjs';
import numbers from './numbers.mjs';
import robust from './robust.mjs';

const KEYS = Object.keys(createRequire(import.meta.url)('../../clients/web/en.json')).filter((key) => key.includes('.'));
const AXE = createRequire(import.meta.url).resolve('axe-core/axe.min.js');
let server;
let browser;
let one; // a page that most tests share

before(async () => {
  server = await startServer({ flags: SHAPE_FLAGS });
  browser = await startBrowser();
  one = await openPage(browser, server);
});

after(async () => {
  await browser?.close();
  await server?.stop();
});

const prefill = (session, inputs, more = {}) => server.call('POST', '/prefill', { session, model: 'seed-attention', inputs, ...more });
const data = (testid, name, page = one.page) => page.locator(`[data-testid="${testid}"]`).getAttribute(`data-${name}`);
const text = (testid, page = one.page) => page.locator(`[data-testid="${testid}"]`).textContent();
const allChecks = (page, list) => page.locator(`[data-testid="${list}"] [data-ok]`).evaluateAll((nodes) => nodes.map((node) => node.dataset.ok));

test('it loads from the server alone, small, with a policy, and shows the model', async () => {
  const first = await openPage(browser, server);
  const sizes = await first.page.evaluate(() => performance.getEntriesByType('resource').concat(performance.getEntriesByType('navigation'))
    .filter((entry) => !entry.name.includes('/watch')).reduce((sum, entry) => sum + entry.transferSize, 0));
  assert.ok(sizes > 20000 && sizes <= 150 * 1024, `${sizes} bytes`);
  const head = await fetch(server.url, { headers: { Accept: 'text/html' } });
  assert.match(head.headers.get('content-security-policy'), /default-src 'self'/);
  const { models, default: name } = await server.call('GET', '/models');
  const model = models.find((entry) => entry.name === name);
  const card = first.at('model-card');
  assert.equal(await card.getAttribute('data-layers'), String(model.num_hidden_layers));
  assert.equal(await card.getAttribute('data-heads'), String(model.num_attention_heads));
  assert.equal(await card.getAttribute('data-kv-heads'), String(model.num_key_value_heads));
  assert.equal(await card.getAttribute('data-head-dim'), String(model.head_dim));
  assert.deepEqual(first.complaints, []);
  await first.context.close();
});

test('three tabs of one browser see a new session, and none waits for a connection', async (t) => {
  const tabs = [await openPage(browser, server)];
  for (let i = 0; i < 2; i++) tabs.push(await openPage(browser, server, { tabOf: tabs[0].context }));
  const start = performance.now();
  await prefill('tabs', rows(3));
  await Promise.all(tabs.map((tab) => tab.page.locator('[data-session="tabs"]').waitFor()));
  t.diagnostic(`seen after ${(performance.now() - start).toFixed(0)} ms`);
  for (const tab of tabs) await choose(tab, 'tabs', 3);
  assert.deepEqual(tabs.flatMap((tab) => tab.complaints), []);
  await tabs[0].context.close();
});

test('a prefill adds its columns at once, each step one', async () => {
  await prefill('grow', rows(2));
  await choose(one, 'grow', 2);
  await one.page.evaluate(() => {
    const panel = document.querySelector('[data-testid=panel-cache]');
    window.lengths = [];
    window.observer = new MutationObserver(() => window.lengths.push(Number(panel.dataset.kvLen)));
    window.observer.observe(panel, { attributes: true, attributeFilter: ['data-kv-len'] });
  });
  await prefill('grow', rows(4, 16, 2));
  await cacheIs(one, 6);
  for (let i = 0; i < 3; i++) {
    await server.call('POST', '/decode', { session: 'grow', input: rows(1, 16, 6 + i)[0] });
    await cacheIs(one, 7 + i);
  }
  assert.deepEqual(await one.page.evaluate(() => { window.observer.disconnect(); return window.lengths; }), [6, 7, 8, 9]);
  assert.equal(await data('cache-bytes', 'bytes'), String(2 * 1 * 2 * 8 * 4 * 9));
  assert.match(await text('cache-bytes'), /^1\.13 KiB = 1152 B = .* 9 positions; pages: 2\.00 KiB/);
  assert.equal(await data('cache-bytes', 'pages'), String((await server.call('GET', '/sessions/grow')).kv.bytes));
  const picture = await readPicture(one.page, 'cache-k-0');
  assert.equal(picture.columns, 16); // a page, of which 9 are in use
  for (let i = 0; i < picture.bytes.length; i++) assert.equal(picture.bytes[i] >= 0, i % 16 < 9);
});

test('pixels are the bytes of the server', async () => {
  const query = '?dtype=U8';
  const wanted = await server.tensor('grow', 'blocks.0.attn.hook_pattern', query);
  await eventually(() => one.page.evaluate(() => window.__viz.focus.history.length === 9), 'the history');
  for (let head = 0; head < 4; head++) {
    const history = await eventually(async () => {
      const picture = await readPicture(one.page, `history-${head}`);
      return picture.rows === 9 && picture;
    }, 'the picture of the history');
    assert.equal(history.columns, 9);
    for (let q = 0; q < 9; q++) {
      for (let k = 0; k < 9; k++) {
        assert.equal(history.bytes[9 * q + k], k > q ? -1 : wanted[head][q][k], `head ${head}, query ${q}, key ${k}`);
        if (k <= q) assert.equal(await one.page.evaluate(([h, row, key]) => window.__viz.cellByte(h, row, key), [head, q, k]), wanted[head][q][k]);
      }
    }
    assert.deepEqual((await readPicture(one.page, `row-${head}`)).bytes, wanted[head][8]);
  }
});

test('numbers are those of the server, by mouse and by keyboard', async () => {
  const exact = await server.tensor('grow', 'blocks.0.attn.hook_pattern', '?q=8:9');
  const digits = (x) => String(Number(x.toPrecision(6)));
  for (let head = 0; head < 4; head++) {
    assert.ok(Math.abs(Number(await data(`sum-${head}`, 'sum')) - 1) <= 1e-5);
    assert.match(await text(`sum-${head}`), /^Σ 1\.00000/);
    const weights = exact[head][0];
    const most = weights.indexOf(Math.max(...weights));
    const bits = weights.reduce((all, p) => all - p * Math.log2(p), 0);
    assert.match(await text(`most-${head}`), new RegExp(`^most: key ${most} .*${weights[most].toFixed(3)}; entropy ${bits.toFixed(2)} bit$`));
    const grid = one.page.locator(`[data-testid="headrow-${head}"] [role=grid]`).first();
    await grid.focus();
    await one.page.keyboard.press('Home');
    for (let key = 0; key < 9; key++) {
      assert.match(await text('heads-readout'), new RegExp(`key ${key} .*: weight ${digits(exact[head][0][key]).replace('.', '\\.')}$`));
      await one.page.keyboard.press('ArrowRight');
    }
    const box = await one.at(`row-${head}`).boundingBox();
    await one.page.mouse.move(box.x + (box.width * 4.5) / 9, box.y + box.height / 2);
    assert.match(await text('heads-readout'), new RegExp(`key 4 .*: weight ${digits(exact[head][0][4]).replace('.', '\\.')}$`));
  }
  const key = await server.tensor('grow', 'past_key_values.0.key');
  await one.page.locator('[data-testid="kv-group-1"] [role=grid]').first().focus();
  await one.page.keyboard.press('Home');
  await one.page.keyboard.press('ArrowDown');
  await one.page.keyboard.press('ArrowRight');
  assert.match(await text('cache-readout'), /^K of KV head 1, position 1 .*, dimension 1: /);
  assert.ok((await text('cache-readout')).endsWith(`: ${digits(key[1][1][1])}`));
});

test('query heads stand under the KV head that they read', async () => {
  const under = (kv) => one.page.locator(`[data-testid="heads-kv-${kv}"] [data-head]`).evaluateAll((nodes) => nodes.map((node) => Number(node.dataset.head)));
  assert.deepEqual([await under(0), await under(1)], [[0, 1], [2, 3]]);
  const marked = () => one.page.locator('.head.marked').evaluateAll((nodes) => nodes.map((node) => Number(node.dataset.head)));
  for (const [kv, wanted] of [[0, [0, 1]], [1, [2, 3]]]) {
    await one.page.locator(`[data-testid="kv-group-${kv}"] [role=grid]`).first().focus(); // in the cache: marked are heads
    assert.deepEqual(await marked(), wanted);
    await one.page.locator(`[data-testid="heads-kv-${1 - kv}"] [role=grid]`).first().focus(); // and from heads, the lanes
    assert.deepEqual(await one.page.locator('.lane-group.marked').evaluateAll((nodes) => nodes.map((node) => node.dataset.kv)), [String(1 - kv)]);
  }
  await one.at('head-3').uncheck();
  await eventually(async () => String(await under(1)) === '2', 'only row 3 goes');
  assert.deepEqual(await under(0), [0, 1]);
  await one.at('head-3').check();
  await eventually(async () => String(await under(1)) === '2,3', 'row 3 comes back');
});

test('the browser computes what the server computed, and notices a changed number', async () => {
  await eventually(async () => String(await allChecks(one.page, 'checks')) === 'true,true,true', 'three ticks');
  const scores = await server.tensor('grow', 'blocks.0.attn.hook_attn_scores', '?q=8:9&heads=0');
  assert.ok(Math.abs(Number(await data('server-score', 'value')) - scores[0][0][0]) <= 1e-6);
  assert.ok(Math.abs(Number(await text('own-score')) - scores[0][0][0]) <= 1e-5);
  const weights = await server.tensor('grow', 'blocks.0.attn.hook_pattern', '?q=8:9&heads=0');
  assert.ok(Math.abs(Number(await text('own-weight')) - weights[0][0][0]) <= 1e-6);
  for (const [name, floats, change, wanted] of [['hook_pattern', 4 * 9, 1e-4, 'true,false,false'], ['hook_attn_scores', 9, 1e-3, 'false,false,true'],
    ['hook_z', 8, 1e-3, 'true,true,false'], ['hook_rot_q', 8, 1e-2, 'false,true,true']]) {
    const second = await openPage(browser, server);
    await second.page.route(`**/tensors/blocks.0.attn.${name}?q=8%3A9*`, async (route) => {
      const response = await route.fetch();
      const body = await response.body();
      const at = body.length - 4 * floats; // the first number of head 0
      body.writeFloatLE(body.readFloatLE(at) + change, at);
      await route.fulfill({ response, body });
    });
    await choose(second, 'grow', 9);
    await eventually(async () => String(await allChecks(second.page, 'checks')) === wanted, `crosses for ${name}`);
    await second.context.close();
  }
});

test('RoPE turns pairs by the angle it shows', async () => {
  await eventually(async () => (await one.page.locator('[data-testid^="dial-"]').count()) === 4, 'four dials');
  for (let i = 0; i < 4; i++) {
    const angle = 8 * 10000 ** ((-2 * i) / 8);
    assert.ok(Math.abs(Number(await data(`dial-${i}`, 'angle')) - angle) < 1e-9);
    const hand = (name) => one.page.locator(`[data-testid="dial-${i}"] line.${name}`).evaluate((line) => Math.atan2(-line.getAttribute('y2'), line.getAttribute('x2')));
    assert.ok(Math.abs(Math.sin((await hand('after') - await hand('before') - angle) / 2)) < 1e-3, `the hands of pair ${i}`);
  }
  assert.deepEqual(await allChecks(one.page, 'rope'), ['true', 'true', 'true']);
  const [, a, b] = /= ([-\d.e]+), .*= ([-\d.e]+)$/.exec(await text('rope-dots'));
  assert.ok(Math.abs(Number(a) - Number(b)) <= 1e-4);
});

test('RoPE leaves position 0 as it is, and every length', async () => {
  for (let query = 7; query >= 0; query--) {
    await one.at('previous').click();
    await eventually(async () => (await data('dial-0', 'angle')) === String(query), `position ${query}`);
    assert.deepEqual(await allChecks(one.page, 'rope'), ['true', 'true', 'true'], `position ${query}`);
  }
  const hands = (name) => one.page.locator(`[data-testid^="dial-"] line.${name}`).evaluateAll((lines) => lines.map((line) => [line.getAttribute('x2'), line.getAttribute('y2')]));
  assert.deepEqual(await hands('after'), await hands('before'));
  await one.at('follow').click();
});

test('the mask hides P(P-1)/2 cells, as -∞', async () => {
  await one.at('mask-show').click();
  const map = one.page.locator('[data-masked]');
  await eventually(async () => (await map.getAttribute('data-masked').catch(() => null)) === '36', '36 cells');
  const picture = await readPicture(one.page, 'mask');
  assert.equal(picture.bytes.filter((byte) => byte === -1).length, 36);
  await map.focus();
  await one.page.keyboard.press('Home');
  await one.page.keyboard.press('End');
  assert.match(await text('mask-readout'), /query 0, key 8: score -∞$/);
  assert.doesNotMatch(await text('panel-mask'), /null|NaN/);
});

test('verify passes, and fails when the server says so', async () => {
  await one.at('verify').click();
  await one.page.locator('[data-testid=verdict][data-verdict=pass]').waitFor();
  assert.match(await text('verdict'), /PASS.*difference 0 /);
  await one.page.route('**/sessions/grow/verify', (route) => route.fulfill({ json: { length: 9, max_abs_diff: 1e-3, bit_identical: false } }));
  await one.at('verify').click();
  await one.page.locator('[data-testid=verdict][data-verdict=fail]').waitFor();
  assert.match(await text('verdict'), /FAIL.*0\.001/);
  await eventually(async () => /FAIL/.test(await text('live')), 'it is announced');
  await one.page.unroute('**/sessions/grow/verify');
});

test('driving by the page: new, decode, fork, truncate, delete, each with its line', async () => {
  const p = one.page;
  await one.at('wall-new').click();
  await p.locator('[data-testid=drive-model]').selectOption('seed-attention');
  await one.at('drive-session').fill('driven');
  assert.match(await text('curl-prefill'), /^curl -s 'http:\S+\/prefill' -d '\{"session":"driven","model":"seed-attention","inputs":\[\[/);
  await one.at('run-prefill').click();
  await cacheIs(one, 4);
  await one.at('drive-steps').fill('3');
  await one.at('run-decode').click();
  await cacheIs(one, 7);
  await one.at('fork-as').fill('driven-2');
  await one.at('run-fork').click();
  await eventually(async () => (await one.at('drive-session').inputValue()) === 'driven-2', 'the fork is shown');
  await cacheIs(one, 7);
  await one.at('truncate-to').fill('2');
  assert.match(await text('curl-truncate'), /\/sessions\/driven-2\/truncate' -d '\{"length":2\}'$/);
  await one.at('run-truncate').click();
  await cacheIs(one, 2);
  assert.equal((await server.call('GET', '/sessions/driven')).length, 7);
  await one.at('run-delete').click();
  await p.locator('[data-testid=banner][data-kind=gone]').waitFor();
  assert.match(await text('banner'), /driven-2 was deleted/);
});

test('only what comes while one looks is outlined, and the server says how long its steps took', async () => {
  await prefill('fresh', rows(5));
  await choose(one, 'fresh', 5);
  const outline = one.page.locator('[data-testid="kv-group-0"] .fresh').first();
  assert.ok(await outline.isHidden());
  await server.call('POST', '/decode', { session: 'fresh', steps: 20 });
  await cacheIs(one, 25);
  await eventually(async () => (await outline.evaluate((node) => [node.style.left, node.style.width].join())) === '75%,3.125%', 'the last of 25 positions in 32');
  await eventually(async () => /Length 25; [\d.]+ ms a decode step/.test(await text('timeline-text')), 'the time of a step');
});

test('likely tokens of a session that another program runs, at any query', async () => {
  const { next, length } = await server.call('POST', '/prefill', { session: 'likely', model: 'stories', text: 'Once upon a time there was a' });
  await choose(one, 'likely', length);
  await one.at('ask-likely').check();
  const items = () => one.at('likely').locator('li').evaluateAll((nodes) => nodes.map((node) => [node.children[1].textContent, node.children[2].textContent]));
  await eventually(async () => (await items()).length === 10, 'ten tokens');
  const shown = (await items()).slice(0, 5);
  assert.deepEqual(shown.map(([token]) => token), next.map((entry) => entry.text.replaceAll(' ', '\u2423')));
  for (const [i, [, percent]] of shown.entries()) assert.ok(Math.abs(parseFloat(percent) - 100 * Math.exp(next[i].logprob)) < 0.06, percent);
  await one.page.locator('[data-testid=tokens] [data-position="2"]').click();
  await eventually(async () => /position 3/.test(await text('likely-note')), 'the query before');
  await eventually(async () => (await one.page.locator('.likely .chosen').count()) <= 1 && (await items()).length === 10, 'its tokens');
  await one.at('ask-likely').uncheck();
  await eventually(async () => (await server.call('GET', '/sessions?limit=1000')).sessions.every((session) => !session.session.startsWith('look-')), 'nothing is left of it');
});

test('lessons hold', async () => {
  for (let n = 1; n <= 7; n++) {
    await one.at(`lesson-${n}-run`).click();
    const claims = await eventually(async () => {
      const found = await allChecks(one.page, `lesson-${n}-claims`);
      return found.length > 0 && found;
    }, `lesson ${n}`);
    assert.ok(claims.every((ok) => ok === 'true'), `lesson ${n}: ${claims}`);
    assert.match(await text(`lesson-${n}-curl`), /curl -s -X DELETE .*\ncurl -s .*\/prefill/);
  }
});

test('text from sessions stays text, and characters in pieces are joined', async () => {
  await server.call('POST', '/prefill', { session: 'html', model: 'stories', text: '<img src=x onerror=alert(1)> 猫' });
  const { length } = await server.call('GET', '/sessions/html');
  await choose(one, 'html', length);
  await eventually(async () => (await text('tokens')).includes('猫'), 'the character of three tokens');
  assert.doesNotMatch(await text('tokens'), /\ufffd/);
  assert.match((await text('tokens')).replaceAll('\u2423', ' '), /<img src=x onerror=alert\(1\)>/);
  assert.equal(await one.page.locator('main img').count(), 0);
});

test('no complaint so far', () => {
  const known = /404 .*\/sessions\/(lesson|driven-2)\b/; // lessons delete what may not be there; a delete may overtake a look
  assert.deepEqual(one.complaints.filter((line) => !known.test(line)), []);
});

test('the overview: a cell a session, as large as its memory, of the colour of what it does', async () => {
  const own = await startServer();
  for (let i = 0; i < 9; i++) await own.call('POST', '/prefill', { session: `cell-${i}`, model: 'seed-attention', inputs: rows(i === 4 ? 200 : 4), output: 'none' });
  const page = await openPage(browser, own);
  const grid = page.page.locator('[data-testid=overview-box] [role=grid]');
  await grid.waitFor();
  /** Of each cell, how many of its pixels have the colour. */
  const painted = (name) => page.page.evaluate((variable) => {
    const canvas = document.querySelector('[data-testid=overview]');
    const context = canvas.getContext('2d');
    const probe = document.createElement('canvas').getContext('2d');
    probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
    probe.fillRect(0, 0, 1, 1);
    const wanted = String(probe.getImageData(0, 0, 1, 1).data);
    return Array.from({ length: 9 }, (_, i) => {
      const { data } = context.getImageData(Math.round((i * canvas.width) / 9), 0, Math.round(canvas.width / 9), canvas.height);
      let n = 0;
      for (let at = 0; at < data.length; at += 4) n += Number(String(data.subarray(at, at + 4)) === wanted);
      return n;
    });
  }, name);
  await eventually(async () => { const found = await painted('--strong'); return found[4] > 50 && found.every((n, i) => i === 4 || (n > 0 && n < found[4] / 4)); }, 'areas by memory');
  assert.equal(await page.page.locator('[data-testid=overview-box] .key[data-state=idle]').textContent(), 'idle 9');
  const run = own.call('POST', '/decode', { session: 'cell-7', steps: 2000 });
  await eventually(async () => { const found = await painted('--decode'); return found[7] > 0 && found.every((n, i) => i === 7 || n === 0); }, 'who decodes');
  await run;
  await grid.focus();
  await page.page.keyboard.press('Home');
  await page.page.keyboard.press('ArrowRight');
  assert.equal(await text('overview-readout', page.page), 'cell-1: 4 positions, 2.00 KiB, idle');
  await own.call('POST', '/decode', { session: 'cell-1', steps: 1 });
  await eventually(async () => /^cell-1: 5 positions/.test(await text('overview-readout', page.page)), 'what is pointed at is kept up to date');
  await own.call('POST', '/sessions/cell-1/truncate', { length: 4 });
  await page.page.keyboard.press('Enter');
  await cacheIs(page, 4);
  await eventually(async () => { const found = await painted('--text'); return found[1] > 0 && found.every((n, i) => i === 1 || n === 0); }, 'the chosen one is framed');
  await page.page.locator('[data-testid=link][data-status=live]').waitFor(); // a new watch, which is no news of the others
  assert.equal(await page.page.evaluate(() => [...window.__viz.state.sessions.values()].sort((a, b) => b.touched - a.touched)[0].session), 'cell-7');
  const box = await page.at('overview').boundingBox();
  await page.page.mouse.click(box.x + (4.5 * box.width) / 9, box.y + box.height / 2);
  await cacheIs(page, 200);
  await own.call('DELETE', '/sessions/cell-2');
  await eventually(async () => (await painted('--strong'))[2] === 0, 'its cell is empty');
  const before = (await painted('--strong'))[0];
  await own.call('DELETE', '/sessions/cell-7');
  await eventually(async () => (await painted('--strong'))[0] > 4 * before, 'areas are of the largest that is left');
  assert.deepEqual(page.complaints, []);
  await page.context.close();
  await own.stop();
});

test('looking changes nothing', async () => {
  const outputs = [];
  for (const session of ['seen', 'unseen']) {
    await prefill(session, rows(4));
    if (session === 'seen') await choose(one, 'seen', 4);
    const run = await server.call('POST', '/decode', { session, steps: 30 });
    outputs.push(JSON.stringify(run.events.map((event) => event.output)));
  }
  assert.equal(outputs[0], outputs[1]);
  await cacheIs(one, 34);
});

test('accessible in both languages, light and dark', async () => {
  const page = await openPage(browser, server, { locale: 'zh-CN', hash: '#s=grow' });
  const p = page.page;
  assert.equal(await p.evaluate(() => document.documentElement.lang), 'zh-CN');
  await cacheIs(page, 9);
  await page.at('mask-show').click();
  await page.at('verify').click();
  await p.locator('[data-testid=verdict][data-verdict=pass]').waitFor();
  await eventually(async () => (await allChecks(p, 'checks')).length === 3, 'the inspector');
  await p.locator('[data-masked]').waitFor();
  for (const language of ['zh-CN', 'en']) {
    if (language === 'en') await page.at('language').click();
    await eventually(async () => (await p.evaluate(() => document.documentElement.lang)) === language, language);
    const visible = await p.evaluate(() => document.body.innerText);
    assert.deepEqual(KEYS.filter((key) => visible.includes(key)), []);
    for (const colorScheme of ['light', 'dark']) {
      await p.emulateMedia({ colorScheme });
      assert.equal(await p.evaluate(() => document.getAnimations().length), 0);
      assert.deepEqual(await axe(p), [], `${language}, ${colorScheme}`);
    }
  }
  await page.context.close();
});

/** axe's serious and critical findings. The page's policy admits no script of ours: CDP does. */
async function axe(page) {
  const { readFileSync } = await import('node:fs');
  const session = await page.context().newCDPSession(page);
  await session.send('Runtime.evaluate', { expression: readFileSync(AXE, 'utf8') });
  const { result } = await session.send('Runtime.evaluate', { awaitPromise: true, returnByValue: true,
    expression: `axe.run(document, { resultTypes: ['violations'] }).then((r) => r.violations.filter((v) => ['serious', 'critical'].includes(v.impact)).map((v) => v.id + ': ' + v.nodes.map((n) => n.target + ' ' + n.failureSummary).slice(0, 3).join(' | ')))` });
  return result.value;
}

test('by keyboard alone', async () => {
  const page = await openPage(browser, server);
  const p = page.page;
  await p.locator('body').press('w');
  assert.equal(await p.evaluate(() => document.activeElement.dataset.testid), 'wall');
  await p.keyboard.press('Shift+Tab');
  assert.equal(await p.evaluate(() => document.activeElement.dataset.testid), 'wall-sort');
  await p.keyboard.press('Shift+Tab');
  await p.keyboard.type('grow');
  await eventually(async () => (await p.locator('[data-testid=wall] [data-session]').count()) === 1, 'the filter');
  await p.keyboard.press('Tab');
  await p.keyboard.press('Tab');
  await p.keyboard.press('ArrowDown');
  await cacheIs(page, 9);
  await p.keyboard.press('g');
  assert.equal(await p.evaluate(() => document.activeElement.getAttribute('role')), 'grid');
  await p.keyboard.press('Home');
  await p.keyboard.press('ArrowRight');
  assert.match(await text('cache-readout', p), /^K of KV head 0, position 1 /);
  await p.keyboard.press('j');
  await eventually(async () => /7/.test(await text('query', p)), 'the query before');
  await p.keyboard.press(' ');
  await p.keyboard.press('3');
  await eventually(async () => !(await page.at('head-2').isChecked()), 'head 2 is hidden');
  await p.keyboard.press('l');
  await eventually(async () => (await p.evaluate(() => document.documentElement.lang)) === 'zh-CN', 'the language');
  await p.keyboard.press('?');
  await page.at('help-dialog').waitFor();
  await p.keyboard.press('Escape');
  await eventually(async () => /s=grow.*lang=zh-CN/.test(await p.evaluate(() => location.hash)), 'the link');
  await page.context.close();
});

test('a link to a session that is not there says so, and the wall lives', async () => {
  const page = await openPage(browser, server, { hash: '#s=nowhere&lang=en', expected: /404 .*nowhere/ });
  await page.page.locator('[data-testid=banner][data-kind=gone]').waitFor();
  await page.page.locator('[data-testid=wall] [data-session="grow"]').waitFor();
  assert.deepEqual(page.complaints, []);
  await page.context.close();
});

test('a link restores the view', async () => {
  const page = await openPage(browser, server, { hash: '#s=grow&l=0&h=2&q=5&k=3&lang=zh-CN' });
  await cacheIs(page, 9);
  await eventually(async () => /5/.test(await text('query', page.page)), 'query 5');
  await eventually(async () => (await page.at('inspect-head').inputValue().catch(() => '')) === '2', 'head 2');
  assert.equal(await page.at('inspect-key').inputValue(), '3');
  assert.equal(await page.page.evaluate(() => document.documentElement.lang), 'zh-CN');
  await page.context.close();
});

test('what is saved is what the server has', async () => {
  await choose(one, 'grow', 9);
  const saved = async (testid) => {
    const [download] = await Promise.all([one.page.waitForEvent('download'), one.at(testid).click()]);
    const { readFileSync } = await import('node:fs');
    return readFileSync(await download.path());
  };
  await eventually(() => one.page.evaluate(() => window.__viz.focus.row?.query === 8), 'the row');
  const { parse } = await import('../../clients/web/safetensors.js');
  const bytes = await saved('safetensors');
  const { tensors, metadata } = parse(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
  assert.equal(metadata.position, '8');
  const pattern = await server.tensor('grow', 'blocks.0.attn.hook_pattern', '?q=8:9');
  assert.deepEqual([...tensors['blocks.0.attn.hook_pattern'].data], pattern.flat(2).map(Math.fround));
  const lines = String(await saved('csv')).trim().split('\n').slice(1).map((line) => line.split(',').map(Number));
  assert.equal(lines.length, 9);
  for (let k = 0; k < 9; k++) for (let h = 0; h < 4; h++) assert.equal(Math.fround(lines[k][1 + h]), Math.fround(pattern[h][0][k]));
  assert.ok((await saved('png-heads')).length > 500);
});

test('360 pixels wide: nothing sticks out', async () => {
  for (const hash of ['', '#s=grow']) {
    const page = await openPage(browser, server, { viewport: { width: 360, height: 740 }, hash });
    if (hash) await cacheIs(page, 9);
    const [wide, inner] = await page.page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
    assert.ok(wide <= inner, `${wide} > ${inner}`);
    await page.context.close();
  }
});

numbers(() => ({ server, browser, one }));
robust(() => ({ server, browser, one }));
crowd(() => ({ browser }));
heads(() => ({ server, one }));
