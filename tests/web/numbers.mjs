// Pixels and read-outs against the server's numbers, on a long session of MiniMind-3's shape; and
// other shapes of heads.
import assert from 'node:assert/strict';
import test from 'node:test';
import { cacheIs, choose, eventually, readPicture } from './harness.mjs';

const LENGTH = 300;
const digits = (x) => String(Number(Math.fround(x).toPrecision(6)));

/** Numbers from 0 to below 1, the same each time. */
function* random(seed) {
  for (let x = seed; ;) {
    x = (Math.imul(x, 1664525) + 1013904223) >>> 0;
    yield x / 2 ** 32;
  }
}

export default function (given) {
  const text = (testid) => given().one.at(testid).textContent();

  test('300 positions, 8 heads: pixels are bytes, read-outs are numbers', async () => {
    const { server, one } = given();
    const tokens = Array.from({ length: LENGTH - 4 }, (_, i) => (i * i + 7) % 64);
    await server.call('POST', '/prefill', { session: 'wide', model: 'wide', tokens });
    await choose(one, 'wide', LENGTH - 4);
    await server.call('POST', '/decode', { session: 'wide', tokens: [1, 2, 3, 4] }); // these come by the watch
    await cacheIs(one, LENGTH);
    const name = 'blocks.0.attn.hook_pattern';
    const flat = await server.flatTensor('wide', name, '?dtype=U8');
    const bytes = (head, q) => flat.subarray((head * LENGTH + q) * LENGTH, (head * LENGTH + q + 1) * LENGTH);
    const exact = (await server.tensor('wide', name, `?q=${LENGTH - 1}:${LENGTH}`)).map((head) => head[0]);
    await eventually(() => one.page.evaluate((n) => window.__viz.focus.history.length === n && window.__viz.focus.row?.query === n - 1, LENGTH), 'all is loaded');
    for (let head = 0; head < 8; head++) {
      const history = await eventually(async () => {
        const picture = await readPicture(one.page, `history-${head}`);
        return picture.rows === LENGTH && picture;
      }, 'the picture');
      const wanted = Array.from({ length: LENGTH }, (_, q) => Array.from(bytes(head, q), (byte, k) => (k > q ? -1 : byte)));
      assert.equal(String(history.bytes), String(wanted), `head ${head}`);
      assert.equal(String((await readPicture(one.page, `row-${head}`)).bytes), String(bytes(head, LENGTH - 1)));
      assert.ok(Math.abs(Number(await one.at(`sum-${head}`).getAttribute('data-sum')) - 1) <= 1e-5);
      for (let k = 0; k < LENGTH; k++) assert.ok(Math.abs((bytes(head, LENGTH - 1)[k] / 255) ** 2 - exact[head][k]) <= 0.004);
    }
    const draw = random(1);
    const below = (n) => Math.floor(draw.next().value * n);
    const says = async (head, key) => assert.match(await text('heads-readout'), new RegExp(`^head ${head}, query ${LENGTH - 1} .*, key ${key} .*: weight ${digits(exact[head][key]).replace('.', '\\.')}$`));
    for (let i = 0; i < 15; i++) {
      const [head, key] = [below(8), below(LENGTH)];
      await pointAt(one, `row-${head}`, key);
      await says(head, key);
    }
    await one.page.locator('[data-testid="headrow-6"] [role=grid]').first().focus();
    await one.page.keyboard.press('Home');
    const keys = Array.from({ length: 10 }, () => below(LENGTH)).sort((a, b) => a - b);
    let at = 0;
    for (const key of keys) {
      for (; at + 16 <= key; at += 16) await one.page.keyboard.press('PageDown');
      for (; at < key; at++) await one.page.keyboard.press('ArrowRight');
      await says(6, key);
    }
  });

  for (const [model, groups] of [['mha', [[0], [1], [2], [3]]], ['mqa', [[0, 1, 2, 3]]], ['single', [[0]]]]) {
    test(`query heads stand under their KV head: ${model}`, async () => {
      const { server, one } = given();
      await server.call('POST', '/prefill', { session: model, model, tokens: [1] }); // one position is a state of its own
      await choose(one, model, 1);
      const heads = (selector) => one.page.locator(selector).evaluateAll((nodes) => nodes.map((node) => Number(node.dataset.head)));
      await one.page.mouse.move(0, 0);
      await one.page.locator(`.heads[data-of="${model}"]`).waitFor();
      for (const [kv, wanted] of groups.entries()) {
        assert.deepEqual(await heads(`[data-testid="heads-kv-${kv}"] [data-head]`), wanted);
        await one.page.locator(`[data-testid="kv-group-${kv}"] [role=grid]`).first().focus();
        assert.deepEqual(await heads('.head.marked'), wanted);
      }
      assert.equal(await one.page.locator('[data-testid^="kv-group-"]').count(), groups.length);
      const last = groups.flat().at(-1);
      if (last > 0) {
        await one.at(`head-${last}`).uncheck();
        await eventually(async () => String(await heads('.heads [data-head]')) === String(groups.flat().slice(0, -1)), 'only the last row goes');
      }
      await eventually(async () => String(await one.page.locator('[data-testid="checks"] [data-ok]').evaluateAll((nodes) => nodes.map((node) => node.dataset.ok))) === 'true,true,true', 'three ticks');
      const sum = await one.at('sum-0').getAttribute('data-sum');
      assert.equal(sum, '1'); // of one weight
    });
  }
}

/** Moves the mouse to a column: to the first whole pixel of it, events have no others. */
async function pointAt(one, testid, column) {
  await one.at(testid).scrollIntoViewIfNeeded();
  const { x, y, width, height } = await one.at(testid).boundingBox();
  await one.page.mouse.move(Math.ceil(x + (column * width) / LENGTH), Math.floor(y + height / 2));
}
