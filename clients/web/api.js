// The server's HTTP interface, as this page uses it.
import { parse } from './safetensors.js';

/** An error reply: `code` is the contract's, or "unreachable" when there was no reply. */
export class ApiError extends Error {
  constructor(status, error) {
    super(error.message);
    this.status = status;
    this.code = error.code;
    this.details = error.details ?? {};
  }
}

/** Who answers instead of the server: a recording. @type {((method: string, path: string) => Response) | null} */
let transport = null;
export const setTransport = (fn) => { transport = fn; };

async function send(method, path, body, { signal, accept = 'application/json' } = {}) {
  let response;
  try {
    response = transport ? transport(method, path) : await fetch(path, {
      method,
      signal,
      headers: { Accept: accept, ...(body === undefined ? {} : { 'Content-Type': 'application/json' }) },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError(0, { code: 'unreachable', message: String(error.message) });
  }
  if (response.ok) return response;
  const reply = await response.json().catch(() => null);
  throw new ApiError(response.status, reply?.error ?? { code: 'internal', message: `HTTP ${response.status}` });
}

/** A JSON request; the reply's object, or null if it has none. */
export async function call(method, path, body, options) {
  const response = await send(method, path, body, options);
  return response.status === 204 ? null : response.json();
}

export const getModels = () => call('GET', '/models');
export const getSession = (id) => call('GET', `/sessions/${id}`);
export const getTokens = (id, options) => call('GET', `/sessions/${id}/tokens`, undefined, options);
export const getText = async (path) => (await send('GET', path, undefined, { accept: 'text/plain' })).text();
export const detokenize = async (model, tokens) => (await call('POST', '/detokenize', { model, tokens })).text;

/**
 * A tensor of a session, exactly.
 * @param {string} session
 * @param {string} name "blocks.0.attn.hook_pattern"
 * @param {{q?: string, k?: string, heads?: string, dtype?: string}} [range]
 * @returns {Promise<import('./safetensors.js').Tensor>}
 */
export async function getTensor(session, name, range = {}, options = {}) {
  const query = new URLSearchParams(Object.entries(range).filter(([, value]) => value !== undefined));
  const path = `/sessions/${session}/tensors/${name}${query.size ? `?${query}` : ''}`;
  const response = await send('GET', path, undefined, { ...options, accept: 'application/x-safetensors' });
  return parse(await response.arrayBuffer()).tensors[name];
}

/** Reads NDJSON: calls onObject for each line of a streamed reply. */
export async function readLines(response, onObject) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const lines = (rest + value).split('\n');
    rest = lines.pop();
    for (const line of lines) if (line) onObject(JSON.parse(line));
  }
}

/** A request whose reply is NDJSON. */
export async function stream(method, path, body, onObject, options = {}) {
  await readLines(await send(method, path, body, { ...options, accept: 'application/x-ndjson' }), onObject);
}

/** The same request as a line for a terminal. */
export function curlLine(method, path, body, { streamed = false } = {}) {
  const url = location.origin + path;
  const quoted = body === undefined ? '' : ` -d '${JSON.stringify(body).replaceAll("'", "'\\''")}'`;
  const verb = method === 'DELETE' || (method === 'POST' && body === undefined) ? ` -X ${method}` : '';
  return `curl -s${streamed ? 'N' : ''}${verb} '${url}'${quoted}`;
}
