// What a screen reader hears of things that happen by themselves: at most one line a second.
import { el } from './dom.js';

export const region = el('div', { class: 'visually-hidden', 'aria-live': 'polite', role: 'status', testid: 'live' });
let waiting = '';
let timer = 0;

/** Says a line; of several within a second, the last. */
export function announce(text) {
  waiting = text;
  if (timer) return;
  region.textContent = text;
  waiting = '';
  timer = window.setTimeout(() => {
    timer = 0;
    if (waiting) announce(waiting);
  }, 1000);
}
