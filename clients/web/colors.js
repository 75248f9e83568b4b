// One byte, one colour: dark violet through red and orange to pale yellow, ever brighter, and no two
// alike, so that a pixel can be read back as its byte.

/** @type {Uint8ClampedArray} 256 times red, green, blue */
export const LUT = new Uint8ClampedArray(256 * 3);
for (let i = 0; i < 256; i++) {
  const x = i / 255;
  LUT[3 * i] = Math.round(20 + 235 * Math.sin((Math.PI / 2) * x) ** 0.9);
  LUT[3 * i + 1] = Math.round(8 + 238 * x ** 1.6);
  LUT[3 * i + 2] = Math.round(40 + 90 * Math.sin(Math.PI * Math.min(1, 1.5 * x)) + 130 * x ** 6);
}

/** The byte of a colour, or -1. */
export function byteOf(r, g, b) {
  for (let i = 0; i < 256; i++) if (LUT[3 * i] === r && LUT[3 * i + 1] === g && LUT[3 * i + 2] === b) return i;
  return -1;
}

/** A weight as the server makes it a byte: round(255 sqrt(p)), in single precision. */
export function sqrtByte(p) {
  return Math.trunc(Math.fround(Math.fround(255 * Math.fround(Math.sqrt(p))) + 0.5));
}

/** The byte that shows a weight on a scale; log: 16 octaves. */
export function weightByte(p, scale) {
  if (scale === 'sqrt') return sqrtByte(p);
  if (scale === 'linear') return Math.round(255 * p);
  return p > 0 ? Math.max(0, Math.round(255 * (1 + Math.log2(p) / 16))) : 0;
}

/**
 * Paints bytes, one pixel a cell. -1: transparent (behind the mask, or nothing there yet).
 * @param {HTMLCanvasElement} canvas
 * @param {ArrayLike<number>} bytes rows * columns
 */
export function paint(canvas, rows, columns, bytes) {
  if (canvas.width !== columns || canvas.height !== rows) {
    canvas.width = columns;
    canvas.height = rows;
  }
  if (!rows || !columns) return;
  const context = canvas.getContext('2d', { willReadFrequently: true });
  const image = context.createImageData(columns, rows);
  const out = image.data;
  for (let i = 0, n = rows * columns; i < n; i++) {
    const byte = bytes[i];
    if (byte < 0) continue;
    out[4 * i] = LUT[3 * byte];
    out[4 * i + 1] = LUT[3 * byte + 1];
    out[4 * i + 2] = LUT[3 * byte + 2];
    out[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}
