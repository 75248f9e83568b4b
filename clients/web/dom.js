// Makes elements. Text is always set as text, never parsed as HTML.
import { t } from './i18n.js';

/**
 * @param {string} tag
 * @param {Record<string, any>} [props] i18n, i18nLabel, i18nTitle: keys of the dictionaries, followed
 *   when the language changes; text; testid; data; on: listeners; the rest are attributes, or
 *   properties where an element's state is one
 * @param {...(Node|string|null)} children
 */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === 'i18n') {
      node.dataset.i18n = value;
      node.textContent = t(value);
    } else if (name === 'i18nLabel') {
      node.dataset.i18nLabel = value;
      node.setAttribute('aria-label', t(value));
    } else if (name === 'i18nTitle') {
      node.dataset.i18nTitle = value;
      node.title = t(value);
    } else if (name === 'text') node.textContent = value;
    else if (name === 'testid') node.dataset.testid = value;
    else if (name === 'data') Object.assign(node.dataset, value);
    else if (name === 'on') for (const [type, fn] of Object.entries(value)) node.addEventListener(type, fn);
    else if (name === 'value' || name === 'checked' || name === 'disabled' || name === 'hidden') node[name] = value;
    else node.setAttribute(name, value === true ? '' : value);
  }
  for (const child of children) if (child !== null && child !== undefined) node.append(child);
  return node;
}

/** A panel: a titled section with room for controls in its head. */
export function panel(id, titleKey, { controls = [], note = null, shape = false } = {}, ...children) {
  const title = el('h2', { i18n: titleKey, id: `${id}-title` });
  const badge = shape ? el('span', { class: 'shape', testid: `${id}-shape` }) : null;
  const root = el('section', { class: 'panel', id: `panel-${id}`, testid: `panel-${id}`, 'aria-labelledby': `${id}-title` },
    el('div', { class: 'panel-head' }, title, badge, ...controls),
    note ? el('p', { class: 'note', i18n: note }) : null,
    ...children);
  return { root, badge };
}

/** Replaces what a node holds. */
export function fill(node, ...children) {
  node.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Sets a text only if it is another: an unchanged node costs no layout. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** A labelled control. */
export function field(labelKey, control, extra = {}) {
  return el('label', { class: 'field', ...extra }, el('span', { i18n: labelKey }), control);
}

/** A button. */
export function button(key, onClick, props = {}) {
  return el('button', { type: 'button', i18n: key, on: { click: onClick }, ...props });
}

/** A select; options are [value, key or text] pairs. */
export function select(options, value, onChange, props = {}) {
  return el('select', { on: { change: (event) => onChange(event.target.value) }, ...props },
    ...options.map(([id, key, plain]) => el('option', { value: id, selected: id === value, ...(plain ? { text: key } : { i18n: key }) })));
}

/** A drawing in SVG. */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
