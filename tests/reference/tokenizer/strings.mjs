// The texts that every tokenizer is held against: written ones, then random mixtures.
//
// Characters are from Unicode 12 or older, or stand for nothing in any version: libraries with
// older and newer tables agree on them.
import { random } from './random.mjs';

const LANGUAGES = [
  'All human beings are born free and equal in dignity and rights.',
  'Tous les êtres humains naissent libres et égaux en dignité et en droits; où ça? Là-bas, cœur naïf.',
  'Alle Menschen sind frei und gleich an Würde und Rechten geboren. Straße, GROẞ, Übermäßig.',
  'Todos los seres humanos nacen libres e iguales en dignidad y derechos, ¿verdad? ¡Sí, mañana!',
  'Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi.',
  'Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw. Zażółć gęślą jaźń.',
  'Všichni lidé rodí se svobodní a sobě rovní. Příliš žluťoučký kůň úpěl ďábelské ódy.',
  'Minden emberi lény szabadon születik. Árvíztűrő tükörfúrógép.',
  'Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. İstanbul ılık ığdır.',
  'Allir menn eru bornir frjálsir. Þá sæti höfðu þeir.',
  'Visi cilvēki piedzimst brīvi un vienlīdzīgi. Ķekavas šķūnis.',
  'Kaikki ihmiset syntyvät vapaina ja tasavertaisina. Hääyöaie.',
  'Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια. ᾳ ᾧ ἀρχή, Σίσυφος.',
  'Все люди рождаются свободными и равными в своём достоинстве и правах. Ёжик, съешь ещё.',
  'Усі люди народжуються вільними. Ґанок, їжак, єнот.',
  'Сви људи рађају се слободни. Ђорђе, џем, љубав.',
  'Բոլոր մարդիկ ծնվում են ազատ ու հավասար։',
  'ყველა ადამიანი იბადება თავისუფალი და თანასწორი.',
  'יוֹלְדִים כָּל בְּנֵי הָאָדָם בְּנֵי חוֹרִין וְשָׁוִים בְּעֶרְכָּם',
  'כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם.',
  'يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق، وقد وُهبوا عقلًا وضميرًا. ٠١٢٣٤٥٦٧٨٩',
  'تمام افراد بشر آزاد به دنیا می‌آیند و از لحاظ حیثیت با هم برابرند. ۰۱۲۳',
  'تمام انسان آزاد اور حقوق و عزت کے اعتبار سے برابر پیدا ہوئے ہیں۔',
  'सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता प्राप्त है। १२३ क्षत्रिय',
  'সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে।',
  'ਸਾਰਾ ਮਨੁੱਖੀ ਪਰਿਵਾਰ ਆਪਣੀ ਮਹਿਮਾ ਦੇ ਪੱਖੋਂ ਆਜ਼ਾਦ ਹੈ।',
  'મનુષ્યો જન્મથી સ્વતંત્ર છે અને સમાન હક ધરાવે છે.',
  'மனிதப் பிறவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்.',
  'ప్రతిపత్తిస్వత్వముల విషయమున మానవులెల్లరును జన్మతః స్వతంత్రులు.',
  'ಎಲ್ಲಾ ಮಾನವರೂ ಸ್ವತಂತ್ರರಾಗಿಯೇ ಜನಿಸಿದ್ದಾರೆ.',
  'മനുഷ്യരെല്ലാവരും തുല്യാവകാശങ്ങളോടെ ജനിച്ചവരാണ്.',
  'සියලු මනුෂ්‍යයෝ නිදහස්ව උපත ලබා ඇත.',
  'มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ๑๒๓ น้ำ',
  'ມະນຸດທຸກຄົນເກີດມາມີກຽດສັກສີ.',
  'လူတိုင်းသည် တူညီ လွတ်လပ်သော ဂုဏ်သိက္ခာဖြင့် မွေးဖွားလာသူများ ဖြစ်သည်။',
  'មនុស្សទាំងអស់ កើតមកមានសេរីភាព និងសមភាព។',
  'འགྲོ་བ་མིའི་རིགས་རྒྱུད་ཡོངས་ལ་སྐྱེས་ཙམ་ཉིད་ནས།',
  'የሰው ልጅ ሁሉ ሲወለድ ነጻና በክብርና በመብትም እኩልነት ያለው ነው።',
  'ᠬᠦᠮᠦᠨ ᠪᠦᠷ ᠲᠥᠷᠥᠵᠦ ᠮᠡᠨᠳᠡᠯᠡᠬᠦ',
  'ᎠᏂᎦᏓ ᏂᎦᏛ ᏴᏫ ᏂᎨᎫᏓᎸᎾ ᎠᎴ ᎤᏂᏠᏱ',
  '人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。',
  '人人生而自由，在尊嚴和權利上一律平等。龜鱉龘靐。',
  'すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。カタカナ、ｶﾀｶﾅ、ガギグ',
  '모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 닭갈비 값',
  'ᄆᆞᄅᆞᆷ ᄒᆞᆫ글 각 가힣', // Hangul jamo, not composed
  '𐌰𐌻𐌻𐌰𐌹 𐌼𐌰𐌽𐌽𐌰𐌽𐍃 𐍆𐍂𐌴𐌹𐌾𐌰𐌹', // Gothic, outside the basic plane
  '𝔗𝔥𝔢 𝓺𝓾𝓲𝓬𝓴 𝕓𝕣𝕠𝕨𝕟 𝚏𝚘𝚡 𝟏𝟐𝟑 ①②③ Ⅷ ½ ²³ ㎏ ﬁ ﷺ',
];

const CODE = [
  'int main(void)\n{\n    printf("%d\\n", 1 << 3);\n    return 0;\n}\n',
  "for (let i=0;i<10;i++){console.log(`${i}: ${a[i]??'none'}`);}",
  'def f(x):\n\treturn {k: v for k, v in x.items() if v is not None}\n\n\nclass A(B):\n\tpass\n',
  'SELECT * FROM t WHERE a>=1.5e-10 AND b<>\'it\'\'s\'; -- comment',
  '<div class="x">&nbsp;&lt;b&gt;</div><!-- <|im_end|> -->\r\n\r\n',
  '{"a":[1,2.0,-3e+4,null,true],"b":"\\u00e9\\n"}',
  '#include <stdio.h>\r\n#define MAX(a,b) ((a)>(b)?(a):(b))\r\n',
  'https://example.org/a/b?c=d&e=%20f#g user@example.org 192.168.0.1 2001:db8::1',
  '$ rm -rf ./*.tmp && echo "done" | tee -a log.txt 2>&1',
  '\\begin{equation} e^{i\\pi}+1=0 \\end{equation}',
  'x = 3.14159265358979; y=0xDEADBEEF; z=1_000_000; 12345678901234567890',
  "I'm, you'll, we've, they'd, it's, don't, I'M YOU'LL WE'VE THEY'D IT'S DON'T 'tis 'RE 'Ve",
  '|---|:-:|\n| a | b |\n* item\n  - sub\n\n# Title #\n> quote',
];

const EMOJI = [
  '😀', '👍🏽', '👨‍👩‍👧‍👦', '🏳️‍🌈', '🇩🇪🇫🇷🇯🇵', '❤️', '☎︎', '1️⃣#️⃣', '🧑🏿‍🚀', '👩‍❤️‍💋‍👨', '🏴󠁧󠁢󠁳󠁣󠁴󠁿', '🤷🏼‍♂️', '✈️→⌘©®™', '\u{1f3fd}', '\u200d',
];

const SPECIAL = [
  '<|endoftext|>', '<|im_start|>', '<|im_end|>', '<think>', '</think>', '<tool_call>', '</tool_call>', '<|vision_start|>', '<|box_end|>', '<tts_pad>', '<|buffer3|>', '<|fim_prefix|>', '<s>', '</s>', '<unk>', '<0x0A>', '<0xE9>', '<|im_start', 'im_end|>', '<|', '|>', '▁', '▁▁', 'Ġ', 'Ċ',
];

const ODD = [
  '\u0000', '\u0001\u0002\u001b[0m\u007f', '\u0085\u00a0\u1680\u2003\u2028\u2029\u202f\u205f\u3000', '\u180e', '\u200b\u200c\u200d\u2060\ufeff', '\u0301', '\u0301\u0327\u0323', 'e\u0323\u0302', 'q\u0307\u0323', '\u1112\u1161\u11ab', '\u11a8', '\u212b\u2126\u212a', '\u0958\u0929', '\ufb2c\u05e9\u05bc\u05c1', '\u0344\u0f73\u0f75\u0f81', '\ue000\uf8ff\u{f0000}\u{10fffd}', '\ufffe\uffff\u{1ffff}\u{10ffff}', '\ufffd', '\u{e0001}\u{e0061}', '\ufe0f', '\u061c\u202e\u2066', '\u0378\u{2fe0}', '\u017f\u0131\u0130', "'\u017f 'S '\u017f", '\u1e9b\u0323', '\u0f71\u0f72\u0f74', '\u0345\u03b1\u0301', '\u{1d15f}\u{1d165}',
];

const SPACES = [' ', '  ', '   ', '\t', '\n', '\r\n', '\n\n', ' \n', '\n ', '\t\t', '          ', '\u00a0', '\u3000', '\r', '\v\f', ' \t \n \r\n '];

const RANGES = [
  [0x00, 0x1f], [0x20, 0x7e], [0x61, 0x7a], [0x30, 0x39], [0x80, 0xff], [0x100, 0x17f], [0x1e00, 0x1eff],
  [0x300, 0x345], [0x391, 0x3c9], [0x410, 0x44f], [0x5d0, 0x5ea], [0x5b0, 0x5bd], [0x621, 0x652], [0x905, 0x94d],
  [0xe01, 0xe3a], [0xac00, 0xd7a3], [0x1100, 0x1112], [0x1161, 0x1175], [0x11a8, 0x11c2], [0x4e00, 0x9fa5],
  [0x20000, 0x2a6d6], [0x3041, 0x3096], [0x30a1, 0x30fa], [0xff01, 0xff9f], [0x2010, 0x2027], [0x20a0, 0x20bf],
  [0x2100, 0x214f], [0x2190, 0x21ff], [0x2500, 0x257f], [0x1f600, 0x1f64f], [0x1f1e6, 0x1f1ff], [0xf900, 0xfa0d],
  [0xe000, 0xe0ff], [0x1d400, 0x1d454],
];

function cutSomewhere(chars, r) {
  const start = r.below(chars.length);
  return chars.slice(start, start + 1 + r.below(30)).join('');
}

function mixture(r) {
  const parts = [];
  const n = 1 + r.below(4);
  for (let i = 0; i < n; i++) {
    const kind = r.unit();
    if (kind < 0.35) parts.push(cutSomewhere([...r.pick(LANGUAGES)], r));
    else if (kind < 0.45) parts.push(cutSomewhere([...r.pick(CODE)], r));
    else if (kind < 0.52) parts.push(r.pick(EMOJI));
    else if (kind < 0.6) parts.push(r.pick(SPECIAL));
    else if (kind < 0.68) parts.push(r.pick(ODD));
    else if (kind < 0.8) parts.push(r.pick(SPACES).repeat(1 + r.below(3)));
    else if (kind < 0.85) parts.push(String(r.below(10 ** (1 + r.below(9)))));
    else {
      const [low, high] = r.pick(RANGES);
      const count = 1 + r.below(12);
      for (let k = 0; k < count; k++) parts.push(String.fromCodePoint(low + r.below(high - low + 1)));
    }
  }
  let text = parts.join('');
  const form = r.unit();
  if (form < 0.12) text = text.normalize('NFD');
  else if (form < 0.16) text = text.normalize('NFKD');
  else if (form < 0.2) text = text.toUpperCase();
  return text;
}

function longWord(r, unit, length) {
  let text = '';
  while (text.length < length) text += r.pick(unit);
  return text;
}

export function strings() {
  const r = random(260);
  const all = ['', 'a', ' ', ' a', 'Once upon a time'];
  for (const text of LANGUAGES) all.push(text, text.normalize('NFD'), ` ${text}\n`);
  for (const list of [CODE, EMOJI, SPECIAL, ODD, SPACES]) all.push(...list);
  for (const text of SPECIAL) all.push(`a ${text} b`, `${text}${text}`, `\n${text} \n`, `x${text}`, `${text}x`);
  for (const text of SPACES) all.push(`a${text}b`, `${text}a`, `a${text}`, `1${text}.${text}`);
  for (const text of ODD) all.push(`a${text}b ${text} 1${text}`);
  for (const text of EMOJI) all.push(`a${text}${text} ${text}`);
  for (let n = 1; n < 10; n++) all.push('1234567890'.slice(0, n), ' '.repeat(n * n), '\n'.repeat(n), '-'.repeat(n * n));
  all.push(longWord(r, ['a', 'b', 'ab', 'the'], 800), longWord(r, ['é', 'e\u0301', '中'], 500));
  all.push(longWord(r, [' ', '  ', '\n'], 600), longWord(r, ['\u0301', '\u0323', '\u0327'], 300));
  all.push(longWord(r, ['👩', '\u200d', '🏽'], 120), longWord(r, ['.', '!', '/*', '='], 500));
  const seen = new Set(all);
  while (seen.size < 2200) seen.add(mixture(r));
  return [...seen];
}
