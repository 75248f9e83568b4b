// The view in the address: #s=story&l=2&h=1&q=17&k=4&lang=zh-CN
import { language } from './i18n.js';
import { focus } from './focus.js';
import { state } from './state.js';

/** Reads the address: what it names. */
export function readLink() {
  const params = new URLSearchParams(location.hash.slice(1));
  const int = (name) => (/^\d{1,9}$/.test(params.get(name) ?? '') ? Number(params.get(name)) : null);
  return { session: params.get('s'), layer: int('l'), head: int('h'), query: int('q'), key: int('k'), language: params.get('lang') };
}

/** Puts the view into the address, without a new entry in the history. */
export function writeLink() {
  const params = new URLSearchParams();
  if (focus) {
    params.set('s', focus.session);
    params.set('l', String(state.view.layer));
    params.set('h', String(state.view.head));
    if (state.view.query !== null) params.set('q', String(state.view.query));
    if (state.view.key) params.set('k', String(state.view.key));
  }
  params.set('lang', language());
  const hash = `#${params}`;
  if (location.hash !== hash) history.replaceState(null, '', hash);
}
