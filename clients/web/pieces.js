// Token ids to what they look like on the page. A character may be spread over several tokens: they
// are joined until it is whole.
import { detokenize } from './api.js';
import { focus } from './focus.js';
import { subscribe, touch } from './state.js';

/** Texts of single tokens by model and id, as they stand behind another token. */
const known = new Map();
/** Joined texts by the ids joined: "model 234,143,174". */
const joined = new Map();
let busy = false;

/**
 * @typedef {{from: number, n: number, text: string | null}} Piece n tokens from
 *   position `from` on that make up one text; null: not known, its id is shown
 */
/** @type {Piece[]} */
export let pieces = [];

export function resetPieces() {
  pieces = [];
}

/* A leading space is dropped at the start of a text: each token is asked for behind another. */
async function textOf(model, ids, anchor) {
  const [before, whole] = await Promise.all([anchorText(model, anchor), detokenize(model, [anchor, ...ids])]);
  return whole.startsWith(before) ? whole.slice(before.length) : whole;
}

const anchors = new Map();
function anchorText(model, anchor) {
  const name = `${model} ${anchor}`;
  if (!anchors.has(name)) anchors.set(name, detokenize(model, [anchor]));
  return anchors.get(name);
}

/** A token with a text of its own, to put before others. */
async function findAnchor(model, tokens) {
  for (const id of new Set(tokens.slice(0, 16))) if (/^[\x21-\x7e]+$/.test(await anchorText(model, id))) return id;
  return tokens[0];
}

async function load(model, tokens) {
  const anchor = await findAnchor(model, tokens);
  const missing = [...new Set(tokens)].filter((id) => !known.has(`${model} ${id}`)).slice(0, 64);
  for (let i = 0; i < missing.length; i += 3) {
    await Promise.all(missing.slice(i, i + 3).map(async (id) => known.set(`${model} ${id}`, await textOf(model, [id], anchor))));
  }
  return missing.length > 0;
}

/** The texts that a session's tokens have here, to keep. */
export function textsOf({ model, tokens }) {
  const of = (map, isOne) => Object.fromEntries([...map].filter(([name]) => name.startsWith(`${model.name} `)).map(([name, text]) => [name.slice(model.name.length + 1), text]).filter(([ids]) => isOne(ids)));
  const present = new Set(tokens.map(String));
  return { known: of(known, (id) => present.has(id)), joined: of(joined, (ids) => ids.split(',').every((id) => present.has(id))) };
}

/** Texts that were kept. */
export function setTexts(model, texts) {
  for (const [id, text] of Object.entries(texts.known)) known.set(`${model} ${id}`, text);
  for (const [ids, text] of Object.entries(texts.joined)) joined.set(`${model} ${ids}`, text);
}

const isBroken = (text) => text.includes('\ufffd');

/* Many tokens may come between two frames. */
export const updatePieces = () => touch('pieces');
subscribe(['pieces'], update);

/** Brings `pieces` up to focus.tokens; asks the server for texts not known yet. */
async function update() {
  build();
  if (busy || !focus?.model?.tokenizer) return;
  busy = true;
  const mine = focus;
  try {
    while (focus === mine) {
      const more = await load(mine.model.name, mine.tokens);
      const more2 = await joinBroken(mine.model.name, mine.tokens);
      build();
      if (!more && !more2) break;
    }
  } catch {
    /* The ids stay. */
  } finally {
    busy = false;
  }
}

/** Ids of runs of broken texts, by where they start. */
function* brokenRuns(model, tokens) {
  for (let i = 0; i < tokens.length; i++) {
    let n = 0;
    while (i + n < tokens.length && isBroken(known.get(`${model} ${tokens[i + n]}`) ?? '')) n++;
    if (n > 0) yield { from: i, ids: tokens.slice(i, i + n) };
    i += n;
  }
}

async function joinBroken(model, tokens) {
  let any = false;
  for (const { ids } of [...brokenRuns(model, tokens)].slice(-8)) {
    for (let at = 0; at < ids.length;) {
      let taken = 1;
      for (let n = 2; n <= 4 && at + n <= ids.length; n++) {
        const name = `${model} ${ids.slice(at, at + n)}`;
        if (!joined.has(name)) {
          joined.set(name, await textOf(model, ids.slice(at, at + n), await findAnchor(model, tokens)));
          any = true;
        }
        if (!isBroken(joined.get(name))) {
          taken = n;
          break;
        }
      }
      at += taken;
    }
  }
  return any;
}

function build() {
  if (!focus) return;
  const model = focus.model.name;
  const { tokens } = focus;
  pieces = [];
  for (let i = 0; i < tokens.length;) {
    const text = known.get(`${model} ${tokens[i]}`);
    let n = 1;
    let shown = text ?? null;
    if (text !== undefined && isBroken(text)) {
      shown = null;
      for (let k = 2; k <= 4 && i + k <= tokens.length; k++) {
        const whole = joined.get(`${model} ${tokens.slice(i, i + k)}`);
        if (whole === undefined || isBroken(whole)) continue;
        shown = whole;
        n = k;
        break;
      }
    }
    pieces.push({ from: i, n, text: shown });
    i += n;
  }
  touch('tokens');
}

/** What stands for a position: its token's text, spaces and newlines visible, or its id or number. */
export function labelOf(position) {
  if (!focus) return '';
  const piece = pieces.find((one) => position >= one.from && position < one.from + one.n);
  if (piece?.text) return visible(piece.text);
  const id = focus.tokens[position];
  return id === undefined ? `x${position}` : `<${id}>`;
}

/** Text with its white space to be seen. */
export const visible = (text) => text.replaceAll(' ', '\u2423').replaceAll('\n', '\u23ce').replaceAll('\t', '\u21e5');
