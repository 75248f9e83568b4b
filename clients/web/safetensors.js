// Safetensors: u64 little-endian length of a JSON header, the header, the data.

/**
 * @typedef {{dtype: string, shape: number[], data: Float32Array | Uint8Array | Int32Array}} Tensor
 * @typedef {{tensors: Record<string, Tensor>, metadata: Record<string, string>}} Blob
 */

const TYPES = { F32: Float32Array, U8: Uint8Array, I32: Int32Array };

/**
 * Reads a blob. Data are copies, so that they may lie at any offset.
 * @param {ArrayBuffer} buffer
 * @returns {Blob}
 */
export function parse(buffer) {
  const view = new DataView(buffer);
  const headerBytes = Number(view.getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, headerBytes)));
  /** @type {Record<string, Tensor>} */
  const tensors = {};
  for (const [name, entry] of Object.entries(header)) {
    if (name === '__metadata__') continue;
    const Type = TYPES[entry.dtype];
    if (!Type) throw new Error(`dtype ${entry.dtype}`);
    const [from, to] = entry.data_offsets;
    const start = 8 + headerBytes;
    tensors[name] = { dtype: entry.dtype, shape: entry.shape, data: new Type(buffer.slice(start + from, start + to)) };
  }
  return { tensors, metadata: header.__metadata__ ?? {} };
}

/** Reads a blob in base64. */
export function parseBase64(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return parse(bytes.buffer);
}

/**
 * Writes a blob.
 * @param {Record<string, Tensor>} tensors
 * @param {Record<string, string>} [metadata]
 * @returns {Uint8Array}
 */
export function write(tensors, metadata = {}) {
  const header = { __metadata__: metadata };
  let at = 0;
  for (const [name, tensor] of Object.entries(tensors)) {
    header[name] = { dtype: tensor.dtype, shape: tensor.shape, data_offsets: [at, at + tensor.data.byteLength] };
    at += tensor.data.byteLength;
  }
  let text = JSON.stringify(header);
  while (new TextEncoder().encode(text).length % 8) text += ' ';
  const head = new TextEncoder().encode(text);
  const bytes = new Uint8Array(8 + head.length + at);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(head.length), true);
  bytes.set(head, 8);
  let offset = 8 + head.length;
  for (const tensor of Object.values(tensors)) {
    bytes.set(new Uint8Array(tensor.data.buffer, tensor.data.byteOffset, tensor.data.byteLength), offset);
    offset += tensor.data.byteLength;
  }
  return bytes;
}
