// The page's modules that need no browser.
import assert from 'node:assert/strict';
import { fileURLToPath } from 'node:url';
import { readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { gzipSync } from 'node:zlib';
import { LUT, byteOf, sqrtByte, weightByte } from '../../clients/web/colors.js';
import { largestDifference, length, rotate, softmax } from '../../clients/web/maths.js';
import { parse, parseBase64, write } from '../../clients/web/safetensors.js';

const WEB = fileURLToPath(new URL('../../clients/web', import.meta.url));
const files = readdirSync(WEB);
const text = (name) => readFileSync(join(WEB, name), 'utf8');

test('256 colours, all different, ever brighter', () => {
  let last = -1;
  for (let i = 0; i < 256; i++) {
    const [r, g, b] = LUT.subarray(3 * i, 3 * i + 3);
    assert.equal(byteOf(r, g, b), i);
    const brightness = 0.2126 * r + 0.7152 * g + 0.0722 * b;
    assert.ok(brightness > last, `colour ${i}`);
    last = brightness;
  }
});

test('weights to bytes', () => {
  assert.deepEqual([0, 1, 0.25].map(sqrtByte), [0, 255, 128]);
  for (let i = 0; i <= 1000; i++) assert.ok(Math.abs((sqrtByte(i / 1000) / 255) ** 2 - i / 1000) <= 0.004);
  assert.deepEqual([weightByte(0.5, 'linear'), weightByte(1, 'log'), weightByte(0, 'log'), weightByte(2 ** -16, 'log')], [128, 255, 0, 0]);
});

test('safetensors there and back', () => {
  const tensors = { a: { dtype: 'F32', shape: [2, 2], data: Float32Array.of(1, -0, Infinity, 0.1) }, b: { dtype: 'U8', shape: [3], data: Uint8Array.of(1, 2, 255) } };
  const bytes = write(tensors, { session: '<b>' });
  const back = parse(bytes.buffer);
  assert.deepEqual(back.tensors, tensors);
  assert.deepEqual(back.metadata, { session: '<b>' });
  assert.deepEqual(parseBase64(Buffer.from(bytes).toString('base64')).tensors, tensors);
});

test('attention by hand', () => {
  assert.ok(largestDifference(softmax([1, 1, -Infinity]), [0.5, 0.5, 0]) < 1e-15);
  const v = Float64Array.of(1, 2, 3, 4);
  assert.deepEqual(rotate(v, 0, 10000), v);
  assert.ok(Math.abs(length(rotate(v, 7, 10000)) - length(v)) < 1e-12);
  const turned = rotate(Float64Array.of(1, 0, 0, 0), 2, 10000); // pair (0, 2) by 2 rad
  assert.ok(Math.abs(turned[0] - Math.cos(2)) < 1e-15 && Math.abs(turned[2] - Math.sin(2)) < 1e-15);
  assert.equal(largestDifference([-Infinity, 1], [-Infinity, 1]), 0);
  assert.ok(Number.isNaN(largestDifference([NaN], [1])) || largestDifference([NaN], [1]) > 0);
});

test('both languages have the same texts with the same places', () => {
  const [en, zh] = ['en.json', 'zh-cn.json'].map((name) => JSON.parse(text(name)));
  assert.deepEqual(Object.keys(en), Object.keys(zh));
  const places = (one) => [...one.matchAll(/\{\w+\}/g)].map(String).sort();
  for (const key of Object.keys(en)) assert.deepEqual([...new Set(places(en[key]))], [...new Set(places(zh[key]))], key);
});

test('every text that the code names exists', () => {
  const en = JSON.parse(text('en.json'));
  const code = files.filter((name) => name.endsWith('.js')).map(text).join('\n');
  for (const [, key] of code.matchAll(/(?:i18n(?:Label|Title)?: |\bt\(|\bbutton\(|\bfield\()'([a-z][\w.]*)'/g)) assert.ok(key in en, key);
});

test('nothing from elsewhere, and small', () => {
  let bytes = 0;
  for (const name of files) {
    bytes += gzipSync(readFileSync(join(WEB, name)), { level: 9 }).length;
    for (const [url] of text(name).matchAll(/https?:\/\/[^\s'"`)]+/g)) assert.equal(url, 'http://www.w3.org/2000/svg', name);
    assert.doesNotMatch(text(name), /innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(/, name);
  }
  assert.ok(bytes <= 150 * 1024, `${bytes} bytes`);
});
