// Two heads of the built-in story model, found in the page's pictures: one looks at the token before,
// one at what followed the same token earlier (an induction head). As a program it makes the pictures
// in screenshots/.
//
//   node heads.mjs
import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { choose, eventually, openPage, readPicture, startBrowser, startServer } from './harness.mjs';

/* Each word another: what followed it earlier is at one place alone. */
const WORDS = ' dog ball red tree house cat boat big mom sun play park bird fish box hat water happy';
const TIMES = 3;
const SESSION = 'heads';

/** The words again and again, behind <s>; how many positions one round has, and all. */
async function prepare(server) {
  const once = (await server.call('POST', '/tokenize', { model: 'stories', text: WORDS, add_special: false })).tokens;
  assert.equal(new Set(once).size, once.length);
  await server.call('POST', '/prefill', { session: SESSION, model: 'stories', tokens: [1, ...Array(TIMES).fill(once).flat()] });
  return { n: once.length, length: 1 + TIMES * once.length };
}

/** Shows one head of one layer alone. */
async function show(one, layer, length) {
  await choose(one, SESSION, length);
  await one.at('layer').selectOption(String(layer));
  for (const head of [1, 2, 3]) await one.at(`head-${head}`).uncheck();
  await eventually(() => one.page.evaluate(([at, n]) => window.__viz.state.view.layer === at && window.__viz.focus.history.length === n, [layer, length]), 'the layer');
  return eventually(async () => {
    const picture = await readPicture(one.page, 'history-0');
    return picture.rows === length && picture;
  }, 'the picture');
}

/** The column of the brightest pixel of each row. */
const brightest = ({ rows, columns, bytes }) => Array.from({ length: rows }, (_, q) => {
  const row = bytes.slice(q * columns, q * columns + q + 1);
  return row.indexOf(Math.max(...row));
});

const HEADS = [
  { name: 'previous-token', layer: 1, from: () => 1, target: (q) => q - 1 },
  { name: 'induction', layer: 3, from: (n) => n + 2, target: (q, n) => q - n + 1 },
];

export default function (given) {
  test('the previous-token head and the induction head of the story model are to be seen', async () => {
    const { server, one } = given();
    const { n, length } = await prepare(server);
    for (const head of HEADS) {
      const columns = brightest(await show(one, head.layer, length));
      const rows = columns.map((column, q) => [q, column]).slice(head.from(n));
      const right = rows.filter(([q, column]) => column === head.target(q, n));
      assert.ok(right.length >= 0.9 * rows.length, `${head.name}: ${right.length} of ${rows.length} rows, ${rows.join(' ')}`);
    }
  });
}

async function takePictures() {
  const folder = fileURLToPath(new URL('screenshots', import.meta.url));
  mkdirSync(folder, { recursive: true });
  const server = await startServer();
  const browser = await startBrowser();
  const { n, length } = await prepare(server);
  const one = await openPage(browser, server, { viewport: { width: 1100, height: 900 } });
  for (const head of HEADS) {
    await show(one, head.layer, length);
    const query = 1 + n + 5;
    await one.page.locator(`[data-testid=tokens] [data-position="${query}"]`).click();
    await eventually(() => one.page.evaluate((q) => window.__viz.focus.row?.query === q, query), 'the row');
    await one.page.evaluate(() => {
      document.getElementById('panel-cache').style.display = 'none';
      window.scrollTo(0, 0);
    });
    await new Promise((done) => setTimeout(done, 500)); // the last frames
    const box = await one.at('row-0').boundingBox();
    await one.page.mouse.move(Math.ceil(box.x + (head.target(query, n) * box.width) / (query + 1)) + 1, box.y + box.height / 2);
    const boxes = await Promise.all(['panel-tokens', 'panel-heads'].map((id) => one.at(id).boundingBox()));
    await one.page.screenshot({ path: join(folder, `${head.name}-head.png`),
      clip: { x: boxes[0].x - 4, y: boxes[0].y - 4, width: boxes[0].width + 8, height: boxes[1].y + boxes[1].height - boxes[0].y + 8 } });
  }
  await browser.close();
  await server.stop();
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await takePictures();
