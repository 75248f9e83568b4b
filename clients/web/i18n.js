// The page's two languages: texts by key, from en.json and zh-cn.json, which have the same keys.

const FILES = { en: '/web/en.json', 'zh-CN': '/web/zh-cn.json' };
/** @type {Record<string, string>} */
let texts = {};
let current = 'en';
const listeners = new Set();

/** The language in use: "en" or "zh-CN". */
export const language = () => current;

/** Which of the two a list of preferences means. */
export function pickLanguage(preferences) {
  for (const preference of preferences) {
    if (/^zh/i.test(preference)) return 'zh-CN';
    if (/^en/i.test(preference)) return 'en';
  }
  return 'en';
}

/** Loads a language and puts it on the page. */
export async function setLanguage(name) {
  const response = await fetch(FILES[name]);
  if (!response.ok) throw new Error(`${FILES[name]}: ${response.status}`);
  texts = await response.json();
  current = name;
  document.documentElement.lang = name;
  translate(document);
  document.title = t('title');
  for (const fn of listeners) fn();
}

/** Calls fn after each change of the language. */
export const onLanguage = (fn) => listeners.add(fn);

/**
 * The text of a key, with {name} replaced by params.name.
 * @param {string} key
 * @param {Record<string, any>} [params]
 */
export function t(key, params = {}) {
  const text = texts[key] ?? key;
  return text.replace(/\{(\w+)\}/g, (_, name) => String(params[name] ?? ''));
}

/** Puts the language on every element under root that names a key. */
export function translate(root) {
  for (const node of root.querySelectorAll('[data-i18n]')) node.textContent = t(node.dataset.i18n);
  for (const node of root.querySelectorAll('[data-i18n-label]')) node.setAttribute('aria-label', t(node.dataset.i18nLabel));
  for (const node of root.querySelectorAll('[data-i18n-placeholder]')) node.placeholder = t(node.dataset.i18nPlaceholder);
  for (const node of root.querySelectorAll('[data-i18n-title]')) node.title = t(node.dataset.i18nTitle);
}
