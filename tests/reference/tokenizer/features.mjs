// Small tokenizers, each of which uses something that the real ones do not, and texts for them.
import { random } from './random.mjs';

const CORPUS = [
  'the cat sat on the mat, then the other cat sat on that mat too',
  'I am here; you are there. We are the people who can run and jump and sing 123 times in 2024',
  "don't you'll they've I'm it's he'd we're",
  'hello hello world, Hello World! HELLO the low lower lowest new newer newest wide wider widest',
  'über café naïve Übung, élan; 东西南北 东西 南北, привет мир привет',
];

const byteChars = (() => {
  const map = [];
  let next = 256;
  for (let b = 0; b < 256; b++) {
    const visible = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174);
    map.push(String.fromCodePoint(visible ? b : next++));
  }
  return map;
})();
const toByteChars = (text) => [...Buffer.from(text, 'utf8')].map((b) => byteChars[b]).join('');

// Merges of the most frequent pairs, as a BPE trainer finds them.
function train(words, merges) {
  let split = words.map((word) => [...word]);
  const found = [];
  while (found.length < merges) {
    const counts = new Map();
    for (const word of split)
      for (let i = 1; i < word.length; i++) {
        const key = `${word[i - 1]} ${word[i]}`;
        counts.set(key, (counts.get(key) ?? 0) + 1);
      }
    const best = [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1))[0];
    if (!best || best[1] < 2) break;
    const [a, b] = best[0].split(' ');
    found.push([a, b]);
    split = split.map((word) => {
      const out = [];
      for (let i = 0; i < word.length; i++)
        if (word[i] === a && word[i + 1] === b) { out.push(a + b); i++; } else out.push(word[i]);
      return out;
    });
  }
  return found;
}

function vocab(first, merges) {
  const ids = {};
  for (const token of [...first, ...merges.map(([a, b]) => a + b)]) ids[token] ??= Object.keys(ids).length;
  return ids;
}

const spaced = CORPUS.flatMap((line) => line.split(' ').map((word, i) => (i ? ' ' : '') + word));
const byteMerges = train(spaced.map(toByteChars), 150);
const markMerges = train(spaced.map((word) => word.replace(' ', '▁')), 150);
const letters = [...new Set(['▁', ...CORPUS.join('').replaceAll(' ', '')])];
const byteTokens = [...Array(256).keys()].map((b) => `<0x${b.toString(16).toUpperCase().padStart(2, '0')}>`);

const byteModel = (more = {}) => ({
  type: 'BPE', dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null,
  fuse_unk: false, byte_fallback: false, ignore_merges: false, vocab: vocab(byteChars, byteMerges),
  merges: byteMerges.map(([a, b]) => `${a} ${b}`), ...more,
});
const markModel = (more = {}, first = ['<unk>', '<s>', '</s>', ...byteTokens]) => ({
  type: 'BPE', dropout: null, unk_token: '<unk>', continuing_subword_prefix: null, end_of_word_suffix: null,
  fuse_unk: true, byte_fallback: true, ignore_merges: false, vocab: vocab([...first, ...letters], markMerges),
  merges: markMerges, ...more,
});

const added = (model, list) => {
  let next = Object.keys(model.vocab).length;
  return list.map(([content, flags = {}]) => ({
    id: model.vocab[content] ?? next++, content, single_word: false, lstrip: false, rstrip: false,
    normalized: false, special: true, ...flags,
  }));
};
const tokenizer = (model, parts) => ({
  version: '1.0', truncation: null, padding: null, added_tokens: [], normalizer: null, pre_tokenizer: null,
  post_processor: null, decoder: null, model, ...parts,
});

const regex = (Regex) => ({ Regex });
const string = (String) => ({ String });
const split = (pattern, behavior, invert = false) => ({ type: 'Split', pattern, behavior, invert });
const byteLevel = (more = {}) => ({ type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true, ...more });
const metaspace = (more = {}) => ({ type: 'Metaspace', replacement: '▁', split: true, ...more });
const sequence = (key, list) => ({ type: 'Sequence', [key]: list });
const template = (single, ids) => ({
  type: 'TemplateProcessing',
  single: single.map((id) => (id === 'A' ? { Sequence: { id, type_id: 0 } } : { SpecialToken: { id, type_id: 0 } })),
  pair: [{ Sequence: { id: 'A', type_id: 0 } }, { Sequence: { id: 'B', type_id: 1 } }],
  special_tokens: Object.fromEntries(Object.entries(ids).map(([id, list]) => [id, { id, ids: list, tokens: list.map(() => id) }])),
});
const llamaDecoder = sequence('decoders', [
  { type: 'Replace', pattern: string('▁'), content: ' ' }, { type: 'ByteFallback' }, { type: 'Fuse' },
  { type: 'Strip', content: ' ', start: 1, stop: 0 },
]);
const llamaNormalizer = sequence('normalizers', [
  { type: 'Prepend', prepend: '▁' }, { type: 'Replace', pattern: string(' '), content: '▁' },
]);

export function features() {
  const out = {};
  const add = (name, model, parts, words = []) => { out[name] = { file: tokenizer(model, parts), words }; };

  // GPT-2's own file: no model type, a prefix space, no use_regex.
  {
    const model = byteModel({ unk_token: '', continuing_subword_prefix: '', end_of_word_suffix: '' });
    delete model.type;
    const pre = byteLevel({ add_prefix_space: true });
    delete pre.use_regex;
    add('gpt2', model, {
      added_tokens: added(model, [['<|endoftext|>']]), pre_tokenizer: pre,
      post_processor: byteLevel({ add_prefix_space: true, trim_offsets: false }), decoder: byteLevel(),
    }, ['<|endoftext|>']);
  }
  // Llama 3's shape: words of the vocabulary are not merged; BOS from a template in a Sequence.
  {
    const model = byteModel({ ignore_merges: true, merges: byteMerges });
    model.vocab['Ġcatsat'] = Object.keys(model.vocab).length;
    const list = added(model, [['<|begin|>'], ['<|end|>']]);
    add('llama3', model, {
      added_tokens: list,
      pre_tokenizer: sequence('pretokenizers', [
        split(regex("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"), 'Isolated'),
        byteLevel({ use_regex: false }),
      ]),
      post_processor: sequence('processors', [byteLevel(), template(['<|begin|>', 'A'], { '<|begin|>': [list[0].id] })]),
      decoder: byteLevel(),
    }, ['<|begin|>', '<|end|>', ' catsat', 'catsat']);
  }
  // o200k's pattern, and NFC.
  {
    const model = byteModel();
    add('o200k', model, {
      normalizer: { type: 'NFC' },
      pre_tokenizer: sequence('pretokenizers', [
        split(regex("[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"), 'Removed', true),
        byteLevel({ use_regex: false }),
      ]),
      decoder: byteLevel(),
    });
  }
  // DeepSeek's shape: many steps, one of them with a $.
  {
    const model = byteModel();
    add('many-steps', model, {
      normalizer: sequence('normalizers', []),
      pre_tokenizer: sequence('pretokenizers', [
        split(regex('[\\r\\n]'), 'Isolated'), split(regex('\\s?\\p{L}+'), 'Isolated'), split(regex('\\s?\\p{P}+'), 'Isolated'),
        split(regex('[一-龥ࠀ-一가-퟿]+'), 'Isolated'), { type: 'Digits', individual_digits: true }, split(regex('\\s+$'), 'Isolated'),
        byteLevel({ use_regex: false }),
      ]),
      decoder: byteLevel(),
    });
  }
  // The flags of added tokens, on normalized text and on text as it is.
  {
    const model = byteModel();
    add('added', model, {
      added_tokens: added(model, [
        ['<left>', { lstrip: true }], ['<right>', { rstrip: true }], ['<both>', { lstrip: true, rstrip: true }],
        ['<word>', { single_word: true }], ['cat', { single_word: true, special: false }],
        ['<a>'], ['<a><b>'], ['<b>'], ['\n\n', { special: false }], ['  ', { special: false }],
        ['é', { normalized: true, special: false }], ['Å', { normalized: true }], ['sat', { special: false, rstrip: true, normalized: true }],
      ]),
      normalizer: { type: 'NFC' }, pre_tokenizer: byteLevel(), decoder: byteLevel(),
    }, ['<left>', '<right>', '<both>', '<word>', 'cat', '<a>', '<b>', '<a><b>', 'é', 'e\u0301', '\u212b', 'A\u030a', 'sat', '\n\n', '  ', ' ', '\u3000', '_', '\u0301', '\u200d', '1', 'ª']);
  }
  // Llama 2's older files: added tokens are normalized, so they begin with a mark.
  {
    const model = markModel();
    add('llama2', model, {
      added_tokens: added(model, [['<unk>', { normalized: true }], ['<s>', { normalized: true }], ['</s>', { normalized: true }], ['[INST]', { special: false }]]),
      normalizer: llamaNormalizer, decoder: llamaDecoder,
      post_processor: template(['<s>', 'A', '</s>'], { '<s>': [1], '</s>': [2] }),
    }, ['<s>', '</s>', '<unk>', '[INST]', '<0x41>', '▁', ' ']);
  }
  // Metaspace in its forms; what the vocabulary lacks, with and without unk and bytes.
  for (const [name, scheme, more] of [['always', 'always', {}], ['first', 'first', { split: false }], ['never', 'never', {}]]) {
    const model = markModel({ byte_fallback: name === 'never', fuse_unk: name === 'always' }, name === 'never' ? undefined : ['<unk>', '<s>', '</s>']);
    add(`metaspace-${name}`, model, {
      added_tokens: added(model, [['<unk>'], ['<s>'], ['</s>']]),
      pre_tokenizer: metaspace({ prepend_scheme: scheme, ...more }), decoder: metaspace({ prepend_scheme: scheme, ...more }),
      post_processor: template(['A', '</s>'], { '</s>': [2] }),
    }, ['<s>', '</s>', '▁', ' ▁', 'ж', 'ß', '漢字']);
  }
  // The older way to write it, and characters that simply go: no unk_token.
  {
    const model = markModel({ unk_token: null, byte_fallback: false }, ['<s>']);
    add('metaspace-old', model, {
      pre_tokenizer: { type: 'Metaspace', replacement: '▁', str_rep: '▁', add_prefix_space: false, prepend_scheme: 'never' },
      decoder: { type: 'Metaspace', replacement: '▁', str_rep: '▁', add_prefix_space: false, prepend_scheme: 'never' },
    }, ['ж', 'ß', '▁']);
  }
  // Some bytes only: unknown characters wait while bytes pass.
  for (const fuse of [true, false]) {
    const model = markModel({ fuse_unk: fuse }, ['<unk>', '<s>', '</s>', ...byteTokens.slice(0, 0xd1)]);
    add(fuse ? 'bytes-some-fused' : 'bytes-some', model, { normalizer: llamaNormalizer, decoder: llamaDecoder }, ['ж', 'ß', 'ñ', '漢字', '😀', '\u0000']);
  }
  // Gemma's shape: no Strip; a String split.
  {
    const model = markModel();
    add('gemma', model, {
      added_tokens: added(model, [['<unk>'], ['<s>'], ['</s>'], ['\n', { special: false }], ['\n\n', { special: false }], ['\n\n\n', { special: false }]]),
      normalizer: { type: 'Replace', pattern: string(' '), content: '▁' },
      pre_tokenizer: split(string('▁'), 'MergedWithPrevious'),
      decoder: sequence('decoders', [{ type: 'Replace', pattern: string('▁'), content: ' ' }, { type: 'ByteFallback' }, { type: 'Fuse' }]),
      post_processor: template(['<s>', 'A'], { '<s>': [1] }),
    }, ['\n', '\n\n', '\n\n\n', '<s>', '▁']);
  }
  // Replace with expressions.
  {
    const model = byteModel();
    add('replace', model, {
      normalizer: sequence('normalizers', [
        { type: 'Replace', pattern: regex('\\s{2,}'), content: ' ' }, { type: 'Replace', pattern: string('th'), content: 'z' },
        { type: 'Replace', pattern: regex('[aeiou]*'), content: '' }, { type: 'NFC' },
      ]),
      pre_tokenizer: byteLevel(), decoder: byteLevel(),
    }, ['thth', 'aeiou', 'a']);
  }
  // Every behavior of Split, both ways round, of expressions and of strings.
  const word = '\\w+|[^\\w\\s]+';
  for (const behavior of ['Removed', 'Isolated', 'MergedWithPrevious', 'MergedWithNext', 'Contiguous']) {
    for (const [name, pattern, invert] of [['', regex(word), false], ['-inverted', regex(word), true], ['-string', string('a'), false], ['-empty', regex('t*'), false]]) {
      const model = byteModel();
      add(`split-${behavior}${name}`, model, {
        pre_tokenizer: sequence('pretokenizers', [split(pattern, behavior, invert), byteLevel({ use_regex: false })]), decoder: byteLevel(),
      }, ['a', 'aa', 't', 'tt', '.', ' ', '_', '\u0301', 'ª', '\u200d', 'Ⅷ']);
    }
  }
  // SmolLM's shape.
  for (const individual of [true, false]) {
    const model = byteModel();
    add(individual ? 'digits-each' : 'digits', model, {
      pre_tokenizer: sequence('pretokenizers', [{ type: 'Digits', individual_digits: individual }, byteLevel()]), decoder: byteLevel(),
    }, ['1', '22', '½', '٣', 'Ⅷ', '²']);
  }
  return out;
}

// Texts for one of them, from the corpus and its own words.
export function texts(name, words) {
  const r = random([...name].reduce((sum, c) => sum * 31 + c.codePointAt(0), 7));
  const pieces = [...CORPUS.join(' ').split(' '), ' ', ' ', '  ', '\n', '\t', '.', ',', '1', '23', ...words, ...words, ...words];
  const out = new Set(['', ' ', 'a', ...words, ...words.map((w) => ` ${w} `), ...words.map((w) => `x${w}y`)]);
  for (let i = 0; i < 60; i++) {
    let text = '';
    for (let n = 1 + r.below(8); n > 0; n--) text += (r.unit() < 0.5 ? ' ' : '') + r.pick(pieces);
    out.add(text);
  }
  return [...out];
}
