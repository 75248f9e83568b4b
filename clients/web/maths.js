// Attention by hand, in double precision: what the server's numbers are held against.

export function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

export const length = (v) => Math.sqrt(dot(v, v));

export function softmax(scores) {
  let largest = -Infinity;
  for (const s of scores) largest = Math.max(largest, s);
  const e = Array.from(scores, (s) => Math.exp(s - largest));
  const sum = e.reduce((a, b) => a + b, 0);
  return e.map((x) => x / sum);
}

/** Rotates pairs (i, i + D/2) of v by position * theta^(-2i/D). */
export function rotate(v, position, theta) {
  const half = v.length / 2;
  const out = new Float64Array(v.length);
  for (let i = 0; i < half; i++) {
    const angle = position * theta ** ((-2 * i) / v.length);
    const [c, s] = [Math.cos(angle), Math.sin(angle)];
    out[i] = v[i] * c - v[i + half] * s;
    out[i + half] = v[i + half] * c + v[i] * s;
  }
  return out;
}

/** The largest difference of two rows; those equal, also as infinities, differ by 0. */
export function largestDifference(a, b, scale = 0) {
  let worst = 0;
  for (let i = 0; i < a.length; i++) {
    if (a[i] === b[i]) continue;
    const difference = Math.abs(a[i] - b[i]) / (scale ? Math.max(1, Math.abs(a[i]) * scale) : 1);
    if (!(difference <= worst)) worst = difference;
  }
  return worst;
}
