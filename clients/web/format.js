// Numbers as text.

/** Six significant digits, as short as they come; what is behind the mask is -∞. */
export function number(x) {
  if (x === -Infinity) return '-∞';
  if (x === 0) return '0';
  return String(Number(x.toPrecision(6)));
}

export const fixed = (x, digits = 3) => (x === -Infinity ? '-∞' : x.toFixed(digits));

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
export function bytes(n) {
  let unit = 0;
  while (n >= 1024 && unit < UNITS.length - 1) {
    n /= 1024;
    unit++;
  }
  return `${unit ? n.toFixed(n < 10 ? 2 : 1) : n} ${UNITS[unit]}`;
}

export const count = (n) => Math.round(n).toLocaleString('en-US');

export function milliseconds(ms) {
  return ms < 10 ? `${ms.toFixed(2)} ms` : ms < 1000 ? `${ms.toFixed(0)} ms` : `${(ms / 1000).toFixed(1)} s`;
}
