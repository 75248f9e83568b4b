// A grid of numbers as a picture: one pixel a cell, read by mouse and by keyboard.
//
// The canvas is for the eye; to a screen reader this is a grid with one active cell, whose text is
// the same that the mouse shows.
import { paint } from './colors.js';
import { el, setText } from './dom.js';

let serial = 0;

/**
 * @typedef {object} Picture
 * @property {number} rows
 * @property {number} columns
 * @property {ArrayLike<number>} [bytes] rows * columns; -1: masked, or not there yet
 * @property {(row: number, column: number) => string} describe a cell, in words
 * @property {number} [firstRow] what the first row is called, for aria
 * @property {number} [firstColumn]
 * @property {number} [newest] the first of the newest columns, outlined
 * @property {number} [end] one behind the last of them
 * @property {number} [cellWidth] most CSS pixels a cell
 * @property {number} [height] CSS pixels of the whole
 * @property {() => void} [draw] instead of painting bytes
 */
export class Heatmap {
  /**
   * @param {{label: string, testid?: string, readout?: HTMLElement, onChoose?: (row: number, column: number, event: Event) => void,
   *   onPoint?: (row: number, column: number) => void}} options
   */
  constructor({ label, testid, readout, onChoose, onPoint }) {
    const id = `cell-${serial++}`;
    this.canvas = el('canvas', { 'aria-hidden': 'true', testid });
    this.cell = el('span', { role: 'gridcell', id });
    this.line = el('span', { role: 'row', class: 'visually-hidden' }, this.cell);
    this.mark = el('div', { class: 'mark', 'aria-hidden': 'true', hidden: true });
    this.fresh = el('div', { class: 'fresh', 'aria-hidden': 'true', hidden: true });
    this.box = el('div', { class: 'heatmap-box' }, this.canvas, this.fresh, this.mark);
    this.root = el('div', { class: 'heatmap', role: 'grid', tabindex: '0', 'aria-label': label, 'aria-activedescendant': id }, this.line, this.box);
    this.readout = readout;
    this.onChoose = onChoose;
    this.onPoint = onPoint;
    this.row = 0;
    this.column = 0;
    /** @type {Picture | null} */
    this.picture = null;
    this.root.addEventListener('keydown', (event) => this.#key(event));
    this.root.addEventListener('focus', () => this.#show(true));
    this.root.addEventListener('blur', () => { this.mark.hidden = true; });
    this.box.addEventListener('mousemove', (event) => this.#point(event, false));
    this.box.addEventListener('click', (event) => this.#point(event, true));
    this.box.addEventListener('mouseleave', () => { if (document.activeElement !== this.root) this.mark.hidden = true; });
  }

  set label(text) {
    if (this.root.getAttribute('aria-label') !== text) this.root.setAttribute('aria-label', text);
  }

  /** Shows a picture. */
  set(picture) {
    this.picture = picture;
    const { rows, columns } = picture;
    this.root.setAttribute('aria-rowcount', String(rows));
    this.root.setAttribute('aria-colcount', String(columns));
    this.row = Math.min(this.row, Math.max(0, rows - 1));
    this.column = Math.min(this.column, Math.max(0, columns - 1));
    if (picture.draw) picture.draw();
    else paint(this.canvas, rows, columns, picture.bytes);
    this.box.style.maxWidth = `${Math.max(1, columns) * (picture.cellWidth ?? 20)}px`;
    this.box.style.height = `${picture.height ?? Math.min(240, Math.max(16, rows * 6))}px`;
    const has = picture.newest !== undefined && columns > 0 && picture.end > picture.newest;
    this.fresh.hidden = !has;
    if (has) {
      this.fresh.style.left = `${(100 * picture.newest) / columns}%`;
      this.fresh.style.width = `${(100 * (picture.end - picture.newest)) / columns}%`;
    }
    this.refresh();
  }

  /** Says again what the active cell shows, after its numbers changed. */
  refresh() {
    if (!this.mark.hidden) this.#show(false);
  }

  /** Moves the active cell. */
  moveTo(row, column) {
    this.row = row;
    this.column = column;
    this.#show(true);
  }

  #key(event) {
    if (!this.picture || event.altKey || event.ctrlKey || event.metaKey) return;
    const { rows, columns } = this.picture;
    const moves = {
      ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0],
      PageUp: [0, -16], PageDown: [0, 16], Home: [0, -columns], End: [0, columns],
    };
    const move = moves[event.key];
    if (move) {
      this.row = Math.max(0, Math.min(rows - 1, this.row + move[0]));
      this.column = Math.max(0, Math.min(columns - 1, this.column + move[1]));
      this.#show(true);
    } else if (event.key === 'Enter' || event.key === ' ') {
      this.onChoose?.(this.row, this.column, event);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  #point(event, choose) {
    if (!this.picture) return;
    const { rows, columns } = this.picture;
    const rectangle = this.canvas.getBoundingClientRect();
    this.column = Math.max(0, Math.min(columns - 1, Math.floor(((event.clientX - rectangle.left) / rectangle.width) * columns)));
    this.row = Math.max(0, Math.min(rows - 1, Math.floor(((event.clientY - rectangle.top) / rectangle.height) * rows)));
    this.#show(true);
    if (choose) this.onChoose?.(this.row, this.column, event);
  }

  #show(tell) {
    const { picture } = this;
    if (!picture || !picture.rows || !picture.columns) return;
    const text = picture.describe(this.row, this.column);
    setText(this.cell, text);
    this.line.setAttribute('aria-rowindex', String((picture.firstRow ?? 0) + this.row + 1));
    this.cell.setAttribute('aria-colindex', String((picture.firstColumn ?? 0) + this.column + 1));
    if (this.readout) setText(this.readout, text);
    this.mark.hidden = false;
    this.mark.style.left = `${(100 * this.column) / picture.columns}%`;
    this.mark.style.width = `${100 / picture.columns}%`;
    this.mark.style.top = `${(100 * this.row) / picture.rows}%`;
    this.mark.style.height = `${100 / picture.rows}%`;
    if (tell) this.onPoint?.(this.row, this.column);
  }
}

/** The largest of groups of columns, so that long rows fit; a peak never vanishes. */
export function poolColumns(bytes, rows, columns, most) {
  const size = Math.ceil(columns / most);
  if (size <= 1) return { bytes, columns, size: 1 };
  const pooled = Math.ceil(columns / size);
  const out = new Int16Array(rows * pooled).fill(-1);
  for (let r = 0; r < rows; r++) {
    for (let c = 0; c < columns; c++) {
      const at = r * pooled + Math.floor(c / size);
      out[at] = Math.max(out[at], bytes[r * columns + c]);
    }
  }
  return { bytes: out, columns: pooled, size };
}
